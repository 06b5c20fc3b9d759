package kerneltest

import (
	"slices"

	"reprise/kernels"
)

// cutPlaces are rows and where they are cut: behind the first tokens, at the end and in front of it, around the ends of
// chunks, several times in one chunk, and not at all; a row without tokens has a cut that does not exist.
var cutPlaces = []struct {
	n      int
	places []int
}{
	{1, []int{1}},
	{5, nil},
	{130, []int{64, 65, 129}},
	{7, []int{1, 2, 3, 7}},
	{0, []int{1}},
	{66, []int{1, 65}},
	{70, nil},
	{40, []int{17, 31, 33}},
	{3, []int{2}},
}

// cancelling is the tolerance of their outputs: among so many tokens are some whose sums over the state cancel, and the norm
// magnifies what is left together with its roundings, which come out differently in every order of summation.
const cancelling = 2 * manyRoundings

// cutBlocks is enough blocks for their cuts.
const cutBlocks = 20

// cutRows are those rows, between null rows and inactive ones, with cuts too, which go into blocks of their own, from block
// first on.
func (b *bench) cutRows(w kernels.Window, first int) []ssmRow {
	rows, blocks, i := b.scanRows(w, slices.Repeat([]int{1}, len(cutPlaces))), b.Perm(cutBlocks), 0
	for at := range rows {
		r, places := &rows[at], []int{1}
		if r.n > 0 {
			r.n, places = cutPlaces[i].n, cutPlaces[i].places
			i++
		}
		for _, place := range places {
			block := -1
			if place <= r.n {
				block, blocks = first+blocks[0], blocks[1:]
			}
			r.cuts = append(r.cuts, cut{place, block})
		}
	}
	return rows
}

// cutCase is one launch of packed rows of which some are cut.
func cutCase(b *bench, k layerKind, w kernels.Window) {
	slots, blocks := 1+2*len(cutPlaces), 1+3*len(cutPlaces)
	p := newSSMPool(b, k.make(b), w, slots, blocks+cutBlocks)
	p.scans(b.cutRows(w, blocks), cancelling)
}

// cutEndCase is a launch of pairs of rows that are the same but for one that is cut where the other one ends: it has the
// other's bits there, in formats below float32 too. Where states need scratch blocks, half of the rows that are cut leave
// their own state in one.
func cutEndCase(b *bench, k layerKind, w kernels.Window) {
	places := []int{1, 2, 15, 16, 17, 40, 64, 65}
	p := newSSMPool(b, k.make(b), w, 1+2*len(places), 1+5*len(places))
	var rows []ssmRow
	for i, place := range places {
		r := ssmRow{slot: 1 + 2*i, n: 70, origin: 3 * i, src: 1 + 5*i, dst: 2 + 5*i, seed: b.Uint64(), cuts: []cut{{place, 3 + 5*i}}}
		ends := ssmRow{slot: 2 + 2*i, n: place, origin: r.origin, src: 4 + 5*i, dst: 5 + 5*i, seed: r.seed}
		if b.precision.Scratch() && i%2 == 0 {
			r.scratch = 1 + i
		}
		rows = append(rows, r, ends)
	}
	p.fill(rows, false)
	x := newBatch(p, rows, 0, 0)
	p.allowScan(rows)
	b.run(func(o kernels.Ops, s side) { x.launch(o, s, scan) })
	for i := 0; i < len(rows); i += 2 {
		cut, ends := rows[i], rows[i+1]
		b.twins("state at a cut", []piece{p.blockPiece(cut.cuts[0].block)}, []piece{p.blockPiece(ends.dst)})
		for j := range min(p.kind.taps()-1, ends.n) {
			last := ends.origin + ends.n - 1 - j
			b.twins("raw row in front of a cut", []piece{p.tail(i, p.kind.taps()-2-j)}, []piece{p.ringRow(ends.slot, p.layout.Conv, last)})
		}
	}
}

// cutSplit is one sequence in row 0, where it is cut, in row 1, which is scanned in parts that end there, and in a row for
// every cut, of which the tokens from there to the next cut are scanned.
type cutSplit struct {
	*batch
	places    []int
	stretches []stretch
	n, start  *array // of stretches
}

// stretch is a launch of n tokens of a row, from token from on.
type stretch struct{ row, from, n int }

// Blocks of states: where cut i leaves it, where the part up to there does, and where what goes on from cut i ends.
func (c *cutSplit) left(i int) int  { return 5 + 3*i }
func (c *cutSplit) ended(i int) int { return 6 + 3*i }
func (c *cutSplit) final(i int) int { return 7 + 3*i }

// next is the place of the cut behind cut i, or the end.
func (c *cutSplit) next(i, end int) int {
	if i+1 < len(c.places) {
		return c.places[i+1]
	}
	return end
}

// cutSplitCase scans all these. Chunks end at cuts, so that the bits are those of the parts, of outputs and of the states
// at every cut and at the end; and those of what goes on from a cut in a slot whose ring has nothing but its tail.
func cutSplitCase(b *bench, k layerKind) {
	const n = 100
	c := &cutSplit{places: []int{1, 2, 33, 34, 66, 67, 98, 99}, stretches: []stretch{{0, 0, n}}}
	whole := ssmRow{slot: 1, n: n, origin: 1, h: 2, src: 1, dst: 2, seed: b.Uint64()}
	rows, from := []ssmRow{whole, whole}, 0
	rows[1].slot, rows[1].src, rows[1].dst = 2, 3, 4
	for i, place := range append(c.places, n) {
		c.stretches = append(c.stretches, stretch{1, from, place - from})
		if from = place; from < n {
			rows[0].cuts = append(rows[0].cuts, cut{place, c.left(i)})
		}
	}
	for i, place := range c.places {
		rest := ssmRow{slot: 3 + i, n: n, origin: whole.position() + place, src: c.left(i), dst: c.final(i), seed: whole.seed}
		c.stretches = append(c.stretches, stretch{len(rows), place, c.next(i, n) - place})
		rows = append(rows, rest)
	}
	p := newSSMPool(b, k.make(b), kernels.Window{L: 8, T: 4}, 1+len(rows), c.left(len(c.places)))
	p.fill(rows, true)
	c.batch = newBatch(p, rows, 0, 0)
	var lengths, starts []int
	for _, t := range c.stretches {
		lengths, starts = append(lengths, t.n), append(starts, c.rows[t.row].first+t.from)
	}
	c.n, c.start = b.ints("lengths", lengths...), b.ints("starts", starts...)
	for _, a := range []*array{p.blocks, p.rings, p.tails, p.cursor[0], p.cursor[1], p.cursor[2]} {
		a.allow(0, len(a.before))
	}
	b.run(c.run)
	c.compare()
}

// run launches the stretches. Between the parts of row 1 its state is set aside and its cursor moves; the rows behind it
// get their tails.
func (c *cutSplit) run(o kernels.Ops, s side) {
	p := c.pool
	for i, t := range c.stretches {
		r := c.rows[t.row]
		switch {
		case t.row == 1 && t.from > 0:
			o.Copy(p.block(s, c.ended(i-2)), p.block(s, r.dst))
			for j, v := range []int{r.position() + t.from, 0, r.dst} {
				o.Upload(p.cursor[j].entry(r.slot).buf[s], intBytes([]int{v}))
			}
		case t.row > 1:
			for j := range p.kind.taps() - 1 {
				if token := r.origin - p.kind.taps() + 1 + j; token >= 0 {
					o.Copy(p.ringRow(r.slot, p.layout.Conv, token).buffer(s), p.tail(t.row-2, j).buffer(s))
				}
			}
		}
		c.stretch(o, s, i)
	}
}

// stretch is one launch.
func (c *cutSplit) stretch(o kernels.Ops, s side, i int) {
	t := c.stretches[i]
	k := c.only(t.row)
	k.n, k.start, k.first, k.tokens = c.n.entry(i), c.start.entry(i), c.rows[t.row].first+t.from, t.n
	k.launch(o, s, scan)
}

// compare requires the same bits wherever the same was computed. The oracle has more bits in a state than the blocks
// between parts, which it is compared with as numbers.
func (c *cutSplit) compare() {
	b, p, n := c.pool.b, c.pool, c.rows[0].n
	b.Helper()
	block := func(i int) []piece { return []piece{p.blockPiece(i)} }
	out := func(row, from, to int) []piece { return c.out.part(c.rows[row].first+from, to-from) }
	same := b.twins
	if b.devices[device].Name() == b.devices[oracle].Name() {
		same = func(what string, x, y []piece) { b.closeTo(what, manyRoundings, y, x) }
	}
	same("outputs of parts", out(0, 0, n), out(1, 0, n))
	same("state behind the parts", block(c.rows[0].dst), block(c.rows[1].dst))
	for i, place := range c.places {
		next, end := c.left(i+1), c.next(i, n)
		if end == n {
			next = c.rows[0].dst
		}
		same("state at a cut", block(c.left(i)), block(c.ended(i)))
		same("outputs behind a cut", out(0, place, end), out(2+i, place, end))
		same("state of what goes on from a cut", block(next), block(c.final(i)))
	}
}
