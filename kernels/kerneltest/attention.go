package kerneltest

import (
	"fmt"
	"math"
	"slices"

	"reprise/kernels"
)

var shapes = []shape{
	{8, 2, 64, 16, kernels.F32},
	{4, 4, 128, 8, kernels.F32},
	{16, 2, 256, 32, kernels.F32},
	{6, 1, 64, 8, kernels.BF16},
	{8, 4, 256, 16, kernels.BF16},
	{4, 2, 128, 64, kernels.BF16},
	{8, 2, 128, 32, kernels.F8E4M3},
	{4, 2, 128, 4, kernels.F8E4M3},
	{4, 2, 256, 16, kernels.F8E4M3},
	{4, 2, 8, 16, kernels.F32},
	{3, 3, 20, 5, kernels.F8E4M3},
	{1, 1, 2, 1, kernels.BF16},
}

func attentionCases(short bool) []testcase {
	var list []testcase
	add := func(name string, run func(b *bench)) { list = append(list, testcase{name, run}) }
	for _, s := range shapes {
		if short && s.dim > 128 {
			continue
		}
		for _, t := range []int{1, 3, 8, 0} {
			add(fmt.Sprintf("write %v T%d", s, t), func(b *bench) { writeCase(b, s, t, kernels.WriteKV{}) })
			add(fmt.Sprintf("attend %v T%d", s, t), func(b *bench) { attendCase(b, s, t, 1, t == 3) })
		}
		rotary := s.dim / 4 * 2
		add(fmt.Sprintf("write %v norm rope", s), func(b *bench) { writeCase(b, s, 2, kernels.WriteKV{Rotary: rotary, KScale: 0.03, VScale: 0.5}) })
		add(fmt.Sprintf("attend %v placement", s), func(b *bench) { attendPlacementCase(b, s, 2) })
		add(fmt.Sprintf("attend %v packed placement", s), func(b *bench) { attendPlacementCase(b, s, 0) })
	}
	s := shapes[0]
	add("write all dims rotated", func(b *bench) { writeCase(b, s, 0, kernels.WriteKV{Rotary: s.dim, KScale: 1}) })
	add("write wide", func(b *bench) { b.wide = true; writeCase(b, s, 3, kernels.WriteKV{Rotary: 8}) })
	add("attend wide", func(b *bench) { b.wide = true; attendCase(b, s, 3, 1, true) })
	add("attend sharp", func(b *bench) { attendCase(b, s, 2, 40, false) })
	add("attend sharp packed", func(b *bench) { attendCase(b, s, 0, 40, true) })
	for _, x := range longShapes {
		for _, t := range []int{1, 8, 0} {
			if short && (x.dim > 128 || t == 1) {
				continue
			}
			add(fmt.Sprintf("attend long %v T%d", x, t), func(b *bench) { attendRows(b, x, longRows(t), t, 1, x.heads > 1) })
		}
	}
	for _, x := range []shape{{5, 1, 64, 16, kernels.BF16}, {4, 1, 64, 16, kernels.F8E4M3}} { // more than 16 chunks of a row
		for _, t := range []int{1, 4} {
			rows := []kvRow{{slot: 1, position: 2300, n: max(t-1, 1), seed: 1}, {slot: 2, position: 5, n: 1, seed: 2}}
			add(fmt.Sprintf("attend longer %v T%d", x, t), func(b *bench) { attendRows(b, x, rows, t, 1, t > 1) })
		}
	}
	for _, x := range []shape{{4, 2, 128, 16, kernels.BF16}, {8, 8, 64, 16, kernels.F8E4M3}} {
		add(fmt.Sprintf("attend long among many %v", x), func(b *bench) { attendRows(b, x, amongMany(32, longRows(1)), 1, 1, false) })
	}
	for _, x := range manyHeads {
		if !short {
			add(fmt.Sprintf("attend among many heads %v T%d", x.shape, x.t), func(b *bench) { attendRows(b, x.shape, amongMany(128, longRows(x.t)), x.t, 1, x.t > 1) })
		}
	}
	for _, x := range shapes {
		if x.dtype == kernels.F8E4M3 && x.dim >= 64 && !(short && x.dim > 128) {
			for _, t := range []int{1, 8, 0} { // most entries are subnormal
				add(fmt.Sprintf("attend small codes %v T%d", x, t), func(b *bench) { b.scales = 11; attendCase(b, x, t, 1, false) })
			}
		}
	}
	add("chunks", func(b *bench) { chunksCase(b, s) })
	return list
}

// longShapes are those of real layers that devices have kernels of their own for, and one that has none.
var longShapes = []shape{
	{2, 1, 64, 16, kernels.F32},
	{5, 1, 128, 16, kernels.BF16},
	{16, 1, 128, 16, kernels.F8E4M3},
	{4, 2, 64, 16, kernels.F8E4M3},
	{4, 1, 256, 16, kernels.BF16},
	{8, 2, 256, 32, kernels.F8E4M3},
}

// manyHeads are shapes, and tokens of rows, of which 131 rows have more than 1,024 KV heads, with 16 and 24 rows of queries of
// a head.
var manyHeads = []struct {
	shape
	t int
}{
	{shape{8, 8, 128, 16, kernels.BF16}, 16}, {shape{8, 8, 128, 16, kernels.BF16}, 24},
	{shape{16, 8, 128, 16, kernels.F8E4M3}, 8}, {shape{8, 8, 128, 8, kernels.F8E4M3}, 20},
}

// longRows is rows whose contexts devices may cut, beside a short one.
func longRows(t int) []kvRow {
	n := min(max(t, 1), 5)
	if t == 0 {
		n = 37
	}
	return []kvRow{{slot: 2, position: 1500, n: n, seed: 1}, {slot: 1, position: 3, n: 1, seed: 2}, {slot: 3, position: 379, n: max(n-1, 1), seed: 3}}
}

// amongMany puts n short rows in front of rows of the slots 1 to 3.
func amongMany(n int, rows []kvRow) []kvRow {
	for i := range n {
		rows = slices.Insert(rows, i, kvRow{slot: 4 + i, position: i, n: 1, seed: uint64(4 + i)})
	}
	return rows
}

// kvRows is rows with contexts from none to several pages; a null row and one that is not active between them.
func (b *bench) kvRows(t int) []kvRow {
	lengths, contexts := []int{1, 2, 5, 17, 40}, []int{0, 1, 7, 8, 16, 31, 33, 100}
	var list []kvRow
	for i, slot := range b.Perm(len(contexts)) {
		r := kvRow{slot: 1 + slot, position: contexts[i], n: lengths[i%len(lengths)], seed: b.Uint64()}
		if t > 0 {
			r.n = 1 + i%t
		}
		list = append(list, r)
	}
	idle := kvRow{slot: len(contexts) + 1, position: 9, seed: b.Uint64()}
	return slices.Insert(list, 3, kvRow{}, idle)
}

// writeCase writes q, k and v of new tokens. Of p it takes Rotary and the scales; with Rotary, heads are normalised.
func writeCase(b *bench, s shape, t int, p kernels.WriteKV) {
	a := newAttention(b, s, b.kvRows(t), t, 2, false)
	all, stride := a.first+a.tokens+1, s.dim
	normed := p.Rotary > 0
	if normed {
		stride = 2 * s.dim // a gate sits between heads
	}
	raw := b.input("raw q", all, s.queries*stride)
	k, v := b.input("k", all, s.heads*s.dim), b.input("v", all, s.heads*s.dim)
	qNorm, kNorm := b.floats("q norm", b.normal(s.dim, 1, 0.3)), b.floats("k norm", b.normal(s.dim, 1, 0.3))
	pos, freq := make([]int, all), make([]float32, p.Rotary/2)
	for i := range freq {
		freq[i] = float32(math.Pow(1e4, -2*float64(i)/float64(p.Rotary)))
	}
	for _, r := range a.rows {
		for j := range r.n { // rotation goes by Pos, the place in the cache by the cursor
			pos[r.first+j] = r.position + j + 3
		}
		a.allowTokens(r)
	}
	position, inverse := b.ints("pos", pos...), b.floats("inverse frequencies", freq)
	b.run(func(o kernels.Ops, s side) {
		w := kernels.WriteKV{Rows: a.kernelRows(s), Cursors: a.cursors(s), Pos: position.buf[s], KV: a.kv(s), Q: raw.on(s), K: k.on(s), V: v.on(s),
			QHeads: a.shape.queries, QStride: stride, Rotary: p.Rotary, InvFreq: inverse.buf[s], KScale: p.KScale, VScale: p.VScale, QOut: a.out.on(s)}
		if normed {
			w.QNorm, w.KNorm, w.Eps = qNorm.buf[s], kNorm.buf[s], 1e-6
		}
		o.WriteKV(w)
	})
	b.close("q", fewRoundings, a.counted(a.out))
	b.zero("padding", a.padding(a.out))
	a.compareTokens()
}

// allowTokens lets a program write the cache entries of a row's new tokens.
func (a *attention) allowTokens(r kvRow) {
	for i := range r.n {
		for line := range 2 * a.shape.heads {
			elements, scale := a.entry(r.slot, r.position+i, line%2, line/2)
			a.pages.mutable = append(a.pages.mutable, elements.span)
			if a.shape.dtype == kernels.F8E4M3 {
				a.pages.mutable = append(a.pages.mutable, scale.span)
			}
		}
	}
}

// compareTokens compares the cache entries of the new tokens.
func (a *attention) compareTokens() {
	a.b.Helper()
	var elements, scales []piece
	for _, r := range a.rows {
		for i := range r.n {
			for line := range 2 * a.shape.heads {
				e, s := a.entry(r.slot, r.position+i, line%2, line/2)
				elements, scales = append(elements, e), append(scales, s)
			}
		}
	}
	if a.shape.dtype == kernels.F32 {
		a.b.close("cache", fewRoundings, elements)
		return
	}
	a.b.codes("cache", elements)
	if a.shape.dtype == kernels.F8E4M3 {
		a.b.close("scales", fewRoundings, scales)
	}
}

// attendCase attends to a filled cache; sharpness scales the scores, so that a softmax without its maximum overflows.
func attendCase(b *bench, s shape, t int, sharpness float32, gated bool) {
	attendRows(b, s, b.kvRows(t), t, sharpness, gated)
}

func attendRows(b *bench, s shape, rows []kvRow, t int, sharpness float32, gated bool) {
	a := newAttention(b, s, rows, t, 2, true)
	gate := a.gate()
	b.run(func(o kernels.Ops, s side) {
		p := a.attend(s, sharpness)
		if gated {
			p.Gate, p.GateStride = gate.on(s), a.shape.dim+3
		}
		o.Attend(p)
	})
	b.close("out", manyRoundings, a.counted(a.out))
	b.zero("padding", a.padding(a.out))
}

// gate is gates whose heads lie dim+3 apart, the last without the gap.
func (a *attention) gate() matrix {
	a.b.Helper()
	return a.b.input("gate", a.first+a.tokens+1, a.shape.queries*(a.shape.dim+3)-3)
}

func (a *attention) attend(s side, sharpness float32) kernels.Attend {
	scale := sharpness / float32(math.Sqrt(float64(a.shape.dim)))
	return kernels.Attend{Rows: a.kernelRows(s), Cursors: a.cursors(s), KV: a.kv(s), Q: a.q.on(s), QHeads: a.shape.queries, Scale: scale, Out: a.out.on(s)}
}

// attendPlacementCase runs the same rows in other slots and pages, in the reverse order and one by one: same bits.
func attendPlacementCase(b *bench, s shape, t int) {
	rows := b.kvRows(t)
	moved, slots := slices.Clone(rows), b.Perm(len(rows)-1)
	for i := range moved {
		if moved[i].slot > 0 {
			moved[i].slot = 1 + slots[moved[i].slot-1]
		}
	}
	slices.Reverse(moved)
	x, y := newAttention(b, s, rows, t, 0, true), newAttention(b, s, moved, t, 5, true)
	b.run(func(o kernels.Ops, s side) {
		o.Attend(x.attend(s, 1))
		for i := range moved {
			o.Attend(y.only(i).attend(s, 1))
		}
	})
	for i, r := range rows {
		b.twins("out", x.out.part(r.first, r.n), y.out.part(moved[len(moved)-1-i].first, r.n))
	}
}

// chunksCase writes and attends a prompt whole and in two chunks, of which the second reads the first one's pages.
func chunksCase(b *bench, s shape) {
	const length = 45
	whole := kvRow{slot: 1, n: length, seed: 7}
	parts := kvRow{slot: 2, n: length, seed: 7}
	a := newAttention(b, s, []kvRow{whole, parts}, 0, 0, false)
	k, v := b.twice(s, length), b.twice(s, length)
	for _, r := range a.rows {
		a.allowTokens(r)
	}
	qOut := b.output("q out", 2*length, s.queries*s.dim, 0, 2*length)
	pos := b.ints("pos", make([]int, 2*length)...)
	for _, cut := range []int{1, 16, 20, 44} {
		lengths, starts := b.ints("n", length, cut, length-cut), b.ints("starts", 0, length, length+cut)
		origins := b.ints("origins", 0, 0, 0)
		origins.allow(0, 12)
		chunk := func(o kernels.Ops, s side, slot, row, n int) {
			rows := kernels.Rows{Count: 1, Tokens: n, MaxLen: n, Slot: a.slot.buf[s].Slice(int64(4*slot), 4), N: lengths.buf[s].Slice(int64(4*row), 4), Start: starts.buf[s].Slice(int64(4*row), 4)}
			if row > 0 {
				rows.First = length + cut*(row-1)
			}
			c := a.cursors(s)
			c.Origin, c.H = origins.buf[s], c.Src
			o.WriteKV(kernels.WriteKV{Rows: rows, Cursors: c, Pos: pos.buf[s], KV: a.kv(s), Q: a.q.on(s), K: k.on(s), V: v.on(s),
				QHeads: a.shape.queries, QStride: a.shape.dim, QOut: qOut.on(s)})
			p := a.attend(s, 1)
			p.Rows, p.Cursors, p.Q = rows, c, qOut.on(s)
			o.Attend(p)
		}
		at := intBytes([]int{cut})
		b.run(func(o kernels.Ops, s side) {
			chunk(o, s, 0, 0, length)
			chunk(o, s, 1, 1, cut)
			o.Upload(origins.buf[s].Slice(8, 4), at)
			chunk(o, s, 1, 2, length-cut)
		})
		b.closeTo(fmt.Sprintf("cut at %d", cut), manyRoundings, a.out.part(length, length), a.out.part(0, length))
	}
}

// twice is keys or values of length tokens, and the same again.
func (b *bench) twice(s shape, length int) matrix {
	b.Helper()
	v := b.normal(length*s.heads*s.dim, 0, 1)
	return b.matrix("twice", 2*length, s.heads*s.dim, append(v, v...))
}
