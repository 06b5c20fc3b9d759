package ref

import "reprise/kernels"

// sequence is one row of a launch with its cursor.
type sequence struct {
	slot, n, first int // first token in the batch
	pad            int // tokens behind n that belong to the row and do not count
	scratch        int // scratch block, -1 for none
	stage          int32
	cuts           []cut
	kernels.Cursor
}

// cut is entry number index of kernels.Cuts: behind place tokens of the row the state goes into a block.
type cut struct{ index, place, block int }

// position is the absolute index of the row's first token.
func (s sequence) position() int { return int(s.Origin) + int(s.H) }

// sequences resolves the rows of a launch.
func (o ops[F]) sequences(r kernels.Rows, c kernels.Cursors) []sequence {
	slot, n, start, scratch, stage := o.ints(r.Slot), o.ints(r.N), o.ints(r.Start), o.ints(r.Scratch), o.ints(r.Stage)
	places, blocks := o.ints(r.Cuts.Place), o.ints(r.Cuts.Block)
	list := make([]sequence, r.Count)
	for i := range list {
		s := sequence{slot: slot.at(i), n: n.at(i), scratch: -1}
		if scratch != nil {
			s.scratch, s.stage = scratch.at(i), int32(stage.at(i))
		}
		if r.T > 0 {
			s.first, s.pad = r.First+i*r.T, r.T-s.n
		} else {
			s.first = start.at(i)
		}
		for j := range r.Cuts.PerRow {
			at := i*r.Cuts.PerRow + j
			s.cuts = append(s.cuts, cut{at, places.at(at), blocks.at(at)})
		}
		s.Cursor = o.cursor(c, s.slot)
		list[i] = s
	}
	return list
}

// flushes reports whether a step folds the row's records.
func (s sequence) flushes(w kernels.Window) bool { return kernels.Flushes(s.H, int32(s.n), int32(w.L)) }

func (o ops[F]) cursor(c kernels.Cursors, slot int) kernels.Cursor {
	at := func(b kernels.Buffer) int32 { return int32(o.ints(b).at(slot)) }
	return kernels.Cursor{Origin: at(c.Origin), H: at(c.H), Src: at(c.Src), Dst: at(c.Dst)}
}

func (o ops[F]) setCursor(c kernels.Cursors, slot int, v kernels.Cursor) {
	o.ints(c.Origin).set(slot, int(v.Origin))
	o.ints(c.H).set(slot, int(v.H))
	o.ints(c.Src).set(slot, int(v.Src))
	o.ints(c.Dst).set(slot, int(v.Dst))
}

// zeroPadding clears the tokens of a row that do not count.
func (s sequence) zeroPadding(zero func(token int)) {
	for j := range s.pad {
		zero(s.first + s.n + j)
	}
}
