package kerneltest

import (
	"slices"

	"reprise/kernels"
)

// elsewhere is the same rows in other slots and blocks and in the reverse order.
func (b *bench) elsewhere(rows []ssmRow, slots, blocks int) []ssmRow {
	slot, block := b.Perm(slots-1), b.Perm(blocks-1)
	moved := slices.Clone(rows)
	for i := range moved {
		r := &moved[i]
		if r.slot > 0 {
			r.slot, r.src, r.dst = 1+slot[r.slot-1], 1+block[r.src-1], 1+block[r.dst-1]
		}
	}
	slices.Reverse(moved)
	return moved
}

// twin compares the bits of outputs, records and blocks of the same rows in two places.
func (b *bench) twin(p, q *ssmPool, x, y *batch, fields []kernels.Field, blocks bool) {
	b.Helper()
	for i, r := range x.rows {
		s := y.rows[len(y.rows)-1-i]
		b.twins("out", x.out.part(r.first, r.n), y.out.part(s.first, s.n))
		for _, f := range fields {
			b.twins("ring", p.records([]ssmRow{r}, f), q.records([]ssmRow{s}, f))
		}
		if blocks && r.n > 0 {
			b.twins("block", []piece{p.blockPiece(r.dst)}, []piece{q.blockPiece(s.dst)})
		}
	}
}

// placementCase runs the same step rows in two places and, one by one, alone: the bits must be the same.
func placementCase(b *bench, k layerKind) {
	const t = 4
	kind, w := k.make(b), kernels.Window{L: 16, T: t}
	phases := everyPhase(16)
	slots, blocks := 1+2*len(phases), 1+3*len(phases)
	p, q := newSSMPool(b, kind, w, slots, blocks), newSSMPool(b, kind, w, slots, blocks)
	rows := b.stepRows(phases, t)
	moved := b.elsewhere(rows, slots, blocks)
	p.fill(rows, false)
	q.fill(moved, false)
	x, y := newBatch(p, rows, t, 0), newBatch(q, moved, t, 5)
	p.allowStep(rows)
	q.allowStep(moved)
	b.run(func(o kernels.Ops, s side) {
		x.launch(o, s, step)
		for i := range moved {
			y.only(i).launch(o, s, step)
		}
	})
	b.twin(p, q, x, y, p.recordFields(), false)
	for i, r := range rows {
		if r.flushes(w) {
			b.twins("block", []piece{p.blockPiece(r.dst)}, []piece{q.blockPiece(moved[len(moved)-1-i].dst)})
		}
	}
}

// only is a launch of row i alone.
func (k *batch) only(i int) *batch {
	one := *k
	one.rows = k.rows[i : i+1]
	one.first, one.tokens = k.rows[i].first, max(k.t, k.rows[i].n)
	one.slot, one.n, one.start = k.slot.entry(i), k.n.entry(i), k.start.entry(i)
	if one.cuts = len(one.rows[0].cuts); one.cuts > 0 {
		one.place, one.block = k.place.entries(i*k.cuts, one.cuts), k.block.entries(i*k.cuts, one.cuts)
	}
	return &one
}

// scanPlacementCase is the same for packed rows.
func scanPlacementCase(b *bench, k layerKind) {
	kind, w := k.make(b), kernels.Window{L: 8, T: 2}
	lengths := []int{1, 2, 31, 64, 65, 130, 3}
	slots, blocks := 1+2*len(lengths), 1+3*len(lengths)
	p, q := newSSMPool(b, kind, w, slots, blocks), newSSMPool(b, kind, w, slots, blocks)
	rows := b.scanRows(w, lengths)
	moved := b.elsewhere(rows, slots, blocks)
	p.fill(rows, true)
	q.fill(moved, true)
	x, y := newBatch(p, rows, 0, 0), newBatch(q, moved, 0, 5)
	p.allowScan(rows)
	q.allowScan(moved)
	b.run(func(o kernels.Ops, s side) {
		x.launch(o, s, scan)
		for i := range moved {
			y.only(i).launch(o, s, scan)
		}
	})
	b.twin(p, q, x, y, nil, true)
}
