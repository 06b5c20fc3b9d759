package kerneltest

import (
	"fmt"
	"math"
	"math/rand/v2"

	"reprise/kernels"
)

// shape is one kind of attention layer.
type shape struct {
	queries, heads, dim, page int
	dtype                     kernels.DType
}

func (s shape) String() string {
	return fmt.Sprintf("%d/%dx%d page %d %s", s.queries, s.heads, s.dim, s.page, s.dtype)
}

// kvRow is one row of a launch: a slot with a context of position tokens that appends n more.
type kvRow struct {
	slot, position, n int
	seed              uint64
	first             int // first token in the batch; set by newAttention
}

// attention is a cache and the rows of one launch. The cache is NaN wherever no token of a row lies.
type attention struct {
	b              *bench
	shape          shape
	rows           []kvRow
	t              int // 0 = packed
	first, tokens  int
	layout         kernels.KV // without buffers
	pageStride     int
	pageOf         map[[2]int]int // page of (slot, number)
	pages, table   *array
	slot, n, start *array
	cursor         [4]*array
	q, out         matrix
}

// newAttention lays the rows behind first tokens of somebody else. Pages are taken in the order of perm; filled is
// whether the new tokens are in the cache already.
func newAttention(b *bench, s shape, rows []kvRow, t, first int, filled bool) *attention {
	b.Helper()
	a := &attention{b: b, shape: s, rows: rows, t: t, first: first, pageOf: map[[2]int]int{}}
	var slot, n, start []int
	for i := range rows {
		rows[i].first = first + a.tokens
		slot, n, start = append(slot, rows[i].slot), append(n, rows[i].n), append(start, rows[i].first)
		a.tokens += max(t, rows[i].n)
	}
	a.slot, a.n, a.start = b.ints("slot", slot...), b.ints("n", n...), b.ints("start", start...)
	a.layPages()
	a.fill(filled)
	a.layCursors()
	q := nans((first + a.tokens + 1) * s.queries * s.dim)
	for _, r := range rows {
		copy(q[r.first*s.queries*s.dim:], gaussian(r.random(3), r.n*s.queries*s.dim, 1.5))
	}
	a.q = b.matrix("q", first+a.tokens+1, s.queries*s.dim, q)
	a.out = b.output("out", first+a.tokens+1, s.queries*s.dim, first, a.tokens)
	return a
}

// random is a source of the row's own; part tells its uses apart.
func (r kvRow) random(part uint64) *rand.Rand { return rand.New(rand.NewPCG(r.seed, part)) }

// layPages gives every row the pages of its tokens, in a random order; page 0 and entries beyond are null.
func (a *attention) layPages() {
	stride, count, slots := 1, 1, 1
	for _, r := range a.rows {
		pages := (r.position + r.n + a.shape.page - 1) / a.shape.page
		stride, count, slots = max(stride, pages+1), count+pages, max(slots, r.slot+1)
	}
	order, next := a.b.Perm(count-1), 0
	table := make([]int, slots*stride)
	for _, r := range a.rows {
		for i := 0; i*a.shape.page < r.position+r.n; i++ {
			a.pageOf[[2]int{r.slot, i}] = 1 + order[next]
			table[r.slot*stride+i] = 1 + order[next]
			next++
		}
	}
	a.layout = kernels.KV{PageTokens: a.shape.page, Heads: a.shape.heads, HeadDim: a.shape.dim, DType: a.shape.dtype, TableStride: stride}
	a.pageStride = int(a.layout.PageBytes()) + 256 // the next layer's
	a.table = a.b.ints("table", table...)
	a.pages = a.b.array("pages", encode(kernels.F32, nans(count*a.pageStride/4)))
}

func (a *attention) layCursors() {
	slots := len(a.table.before) / 4 / a.layout.TableStride
	values := [4][]int{make([]int, slots), make([]int, slots), make([]int, slots), make([]int, slots)}
	for _, r := range a.rows {
		h := min(r.position, int(r.seed%9))
		values[0][r.slot], values[1][r.slot] = r.position-h, h
	}
	for i, v := range values {
		a.cursor[i] = a.b.ints("cursor", v...)
	}
}

// entry is where the key (part 0) or value (part 1) of a token's head is stored, and its scale.
func (a *attention) entry(slot, token, part, head int) (elements, scale piece) {
	line := (part*a.shape.heads+head)*a.shape.page + token%a.shape.page
	page := a.pageOf[[2]int{slot, token / a.shape.page}] * a.pageStride
	size := a.shape.dim * a.shape.dtype.Size()
	at := page + int(a.layout.ScaleOffset()) + 4*line
	return piece{a.pages, span{page + line*size, page + (line+1)*size}, a.shape.dtype}, piece{a.pages, span{at, at + 4}, kernels.F32}
}

// fill writes keys and values of the contexts, and of the new tokens too if filled.
func (a *attention) fill(filled bool) {
	pages := a.pages.before
	for _, r := range a.rows {
		g, length := r.random(1), r.position
		if filled {
			length += r.n
		}
		for i := range length {
			for line := range 2 * a.shape.heads {
				elements, scale := a.entry(r.slot, i, line%2, line/2)
				v, s := gaussian(g, a.shape.dim, 1), float32(1)
				if a.shape.dtype == kernels.F8E4M3 {
					s = float32(math.Ldexp(g.Float64()+0.5, a.b.scales-5))
					copy(pages[scale.from:], encode(kernels.F32, []float32{s}))
				}
				for d := range v {
					v[d] /= s
				}
				copy(pages[elements.from:], encode(a.shape.dtype, v))
			}
		}
	}
	a.b.set(a.pages, pages)
}

func (a *attention) kv(s side) kernels.KV {
	k := a.layout
	k.Pages, k.PageStride, k.Table = a.pages.buf[s], int64(a.pageStride), a.table.buf[s]
	return k
}

func (a *attention) cursors(s side) kernels.Cursors {
	c := a.cursor
	return kernels.Cursors{Origin: c[0].buf[s], H: c[1].buf[s], Src: c[2].buf[s], Dst: c[3].buf[s]}
}

func (a *attention) kernelRows(s side) kernels.Rows {
	r := kernels.Rows{Count: len(a.rows), First: a.first, Tokens: a.tokens, T: a.t, MaxLen: a.t, Slot: a.slot.buf[s], N: a.n.buf[s]}
	if a.t == 0 {
		r.Start = a.start.buf[s]
		for _, row := range a.rows {
			r.MaxLen = max(r.MaxLen, row.n)
		}
	}
	return r
}

// counted and padding are rows of m that count and that do not.
func (a *attention) counted(m matrix) []piece {
	var list []piece
	for _, r := range a.rows {
		list = append(list, m.part(r.first, r.n)...)
	}
	return list
}

func (a *attention) padding(m matrix) []piece {
	var list []piece
	for _, r := range a.rows {
		list = append(list, m.part(r.first+r.n, max(a.t-r.n, 0))...)
	}
	return list
}

// only is a launch of row i alone.
func (a *attention) only(i int) *attention {
	one := *a
	one.rows = a.rows[i : i+1]
	one.first, one.tokens = a.rows[i].first, max(a.t, a.rows[i].n)
	one.slot, one.n, one.start = a.slot.entry(i), a.n.entry(i), a.start.entry(i)
	return &one
}
