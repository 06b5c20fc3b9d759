package cpu

import (
	"math"

	"reprise/kernels"
)

// cache is an attention layer's pages.
type cache struct {
	kernels.KV
	table []int32
	pages kernels.Buffer
	line  int // bytes of one token's head
	scale int // offset of the scales in a page
}

// Parts of a page.
const (
	keys = iota
	values
)

func cacheOf(k kernels.KV) cache {
	return cache{k, i32(k.Table), k.Pages, k.HeadDim * k.DType.Size(), int(k.ScaleOffset())}
}

// place is where a token of a slot is kept: the address of its page and its place there.
func (c *cache) place(slot int32, token int) (page uintptr, at int) {
	id := c.table[int(slot)*c.TableStride+token/c.PageTokens]
	from := int64(id) * c.PageStride
	if id < 0 || from+c.PageBytes() > c.pages.Size {
		fail("page %d of slot %d, token %d", id, slot, token)
	}
	return c.pages.Addr + uintptr(from), token % c.PageTokens
}

// index numbers the lines of a page: [keys|values][head][token].
func (c *cache) index(part, head, at int) int { return (part*c.Heads+head)*c.PageTokens + at }

// element is the address of the stored elements of line i.
func (c *cache) element(page uintptr, i int) uintptr { return page + uintptr(i*c.line) }

// factor is what the elements of line i are to be multiplied by.
func (c *cache) factor(page uintptr, i int) *float32 {
	return (*float32)(pointer(page + uintptr(c.scale+4*i)))
}

// store writes one token's head. fixed is the checkpoint's scale of F8E4M3, or 0 for the largest element's.
func (c *cache) store(page uintptr, i int, x []float32, fixed float32) {
	at := c.element(page, i)
	switch c.DType {
	case kernels.F32:
		copy(elements[float32](at, len(x)), x)
	case kernels.BF16:
		dst := elements[uint16](at, len(x))
		for j, v := range x {
			dst[j] = kernels.F32ToBF16(v)
		}
	case kernels.F8E4M3:
		if fixed == 0 {
			fixed = magnitude(x) / 448
		}
		if fixed == 0 {
			fixed = 1
		}
		*c.factor(page, i) = fixed
		dst := elements[uint8](at, len(x))
		for j, v := range x {
			dst[j] = kernels.F32ToF8E4M3(v / fixed)
		}
	default:
		panic("cpu: cache of " + c.DType.String())
	}
}

// magnitude is the largest absolute value.
func magnitude(x []float32) float32 {
	var most float32
	for _, v := range x {
		most = max(most, math.Float32frombits(math.Float32bits(v)&^(1<<31)))
	}
	return most
}

// writing is the memory of WriteKV.
type writing struct {
	kernels.WriteKV
	launch
	cache      cache
	cursors    cursors
	scratch    []scratch
	rowOf      []int32 // row of each token of the launch
	pos        []int32
	q, k, v    rows
	out        rows
	qNorm      []float32 // or nil
	kNorm      []float32 // or nil
	invFreq    []float32
	headDim    int
	firstToken int
}

// WriteKV normalises and rotates q and k and stores k and v.
func (o *ops) WriteKV(p kernels.WriteKV) {
	o.enter("WriteKV")
	must(p.Validate())
	if p.Rows.Empty() {
		return
	}
	w := &o.writing
	*w = writing{
		WriteKV: p, launch: launchOf(p.Rows), cache: cacheOf(p.KV), cursors: cursorsOf(p.Cursors),
		scratch: o.scratch, rowOf: w.rowOf, pos: i32(p.Pos),
		q: rowsOf(p.Q), k: rowsOf(p.K), v: rowsOf(p.V), out: rowsOf(p.QOut),
		qNorm: f32(p.QNorm), kNorm: f32(p.KNorm), invFreq: f32(p.InvFreq), headDim: p.KV.HeadDim,
	}
	w.rowOf = grow(w.rowOf, p.Rows.Tokens)
	w.firstToken = p.Rows.First
	for r := range w.launch.Count {
		s := w.span(r)
		for j := range s.n + s.padding {
			w.rowOf[s.first+j-w.firstToken] = int32(r)
		}
	}
	o.eachRow(p.Rows.Tokens, 4*(w.out.cols+2*w.k.cols), o.writeRow)
}

// row handles one token of the launch.
func (w *writing) row(i, worker int) {
	t := w.firstToken + i
	s := w.span(int(w.rowOf[i]))
	out := w.out.row(t)
	if t >= s.first+s.n {
		clear(out)
		return
	}
	half := w.Rotary / 2
	memory := w.scratch[worker].take(2*half + w.headDim)
	cos, sin, head := memory[:half], memory[half:2*half], memory[2*half:]
	angles(cos, sin, w.invFreq, w.pos[t])
	for h := range w.QHeads {
		dst := out[h*w.headDim : (h+1)*w.headDim]
		w.turn(dst, w.q.row(t)[h*w.QStride:][:w.headDim], w.qNorm, cos, sin)
	}
	page, at := w.cache.place(s.slot, int(w.cursors.position(s.slot))+t-s.first)
	for h := range w.cache.Heads {
		w.turn(head, w.k.row(t)[h*w.headDim:][:w.headDim], w.kNorm, cos, sin)
		w.cache.store(page, w.cache.index(keys, h, at), head, w.KScale)
		w.cache.store(page, w.cache.index(values, h, at), w.v.row(t)[h*w.headDim:][:w.headDim], w.VScale)
	}
}

// turn writes the normalised and rotated head.
func (w *writing) turn(dst, x, norm, cos, sin []float32) {
	if norm != nil {
		normalise(dst, x, norm, w.Eps)
	} else {
		copy(dst, x)
	}
	half := len(cos)
	for i := range half {
		a, b := dst[i], dst[i+half]
		dst[i], dst[i+half] = a*cos[i]-b*sin[i], b*cos[i]+a*sin[i]
	}
}

func angles(cos, sin, invFreq []float32, position int32) {
	for i := range cos {
		s, c := math.Sincos(float64(position) * float64(invFreq[i]))
		cos[i], sin[i] = float32(c), float32(s)
	}
}
