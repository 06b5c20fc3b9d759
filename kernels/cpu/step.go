package cpu

import (
	"reprise/kernels"
)

// slots are the per-slot arrays.
type slots struct {
	kernels.Slots
	active, last, drafts, draftCount, stops []int32
	params                                  []kernels.SlotParams
}

func slotsOf(s kernels.Slots) slots {
	return slots{s, i32(s.Active), i32(s.Last), i32(s.Drafts), i32(s.DraftCount), i32(s.Stops), view[kernels.SlotParams](s.Params)}
}

// stopIDs is the list of a slot; unused entries are -1.
func (s *slots) stopIDs(slot int32) []int32 {
	from := int(slot) * s.MaxStops
	return s.stops[from : from+s.MaxStops]
}

func (s *slots) draft(slot int32, i int) int32 { return s.drafts[int(slot)*s.DraftStride+i] }

// drafted is the number of a slot's drafts that may be verified.
func (s *slots) drafted(slot int32) int32 {
	if s.draftCount == nil {
		return int32(s.DraftStride)
	}
	return s.draftCount[slot]
}

// noDrafts forgets the drafts of a slot: they followed another last token.
func (s *slots) noDrafts(slot int32) {
	if s.draftCount != nil {
		s.draftCount[slot] = 0
	}
}

// cursors are the per-slot arrays of kernels.Cursors.
type cursors struct{ origin, h, src, dst []int32 }

func cursorsOf(c kernels.Cursors) cursors {
	return cursors{i32(c.Origin), i32(c.H), i32(c.Src), i32(c.Dst)}
}

func (c cursors) get(slot int32) kernels.Cursor {
	return kernels.Cursor{Origin: c.origin[slot], H: c.h[slot], Src: c.src[slot], Dst: c.dst[slot]}
}

func (c cursors) set(slot int32, v kernels.Cursor) {
	c.origin[slot], c.h[slot], c.src[slot], c.dst[slot] = v.Origin, v.H, v.Src, v.Dst
}

// position is the index of the next token of a slot.
func (c cursors) position(slot int32) int32 { return c.origin[slot] + c.h[slot] }

// span is a row's tokens: the first in the batch, those that count and those of padding behind.
type span struct {
	slot       int32
	first      int
	n, padding int
}

// launch reads kernels.Rows.
type launch struct {
	kernels.Rows
	slot, n, start []int32
}

func launchOf(r kernels.Rows) launch { return launch{r, i32(r.Slot), i32(r.N), i32(r.Start)} }

func (l *launch) span(r int) span {
	s := span{slot: l.slot[r], n: int(l.n[r])}
	if l.T > 0 {
		s.first, s.padding = l.First+r*l.T, l.T-s.n
	} else {
		s.first = int(l.start[r])
	}
	return s
}

// Begin derives token ids, positions and row lengths from the slots.
func (o *ops) Begin(p kernels.Begin) {
	o.enter("Begin")
	must(p.Validate())
	if !p.Step.Empty() {
		beginStep(p)
	}
	if !p.Prefill.Empty() {
		beginPrefill(p)
	}
}

func beginStep(p kernels.Begin) {
	s, c, step, want := slotsOf(p.Slots), cursorsOf(p.Cursors), launchOf(p.Step), i32(p.Want)
	ids, pos := i32(p.IDs), i32(p.Pos)
	for r := range step.Count {
		slot := step.slot[r]
		position, n := c.position(slot), int32(0)
		if s.active[slot] != 0 {
			n = max(0, min(want[r], s.params[slot].MaxLen-position-1, int32(step.T), 1+s.drafted(slot)))
		}
		step.n[r] = n
		for j := range int32(step.T) {
			id, at := int32(0), int32(-1)
			switch {
			case j >= n:
			case j == 0:
				id, at = s.last[slot], position
			default:
				id, at = s.draft(slot, int(j)-1), position+j
			}
			token := step.First + r*step.T + int(j)
			ids[token], pos[token] = id, at
		}
	}
}

func beginPrefill(p kernels.Begin) {
	c, prefill := cursorsOf(p.Cursors), launchOf(p.Prefill)
	ids, pos := i32(p.IDs), i32(p.Pos)
	copy(ids[prefill.First:], i32(p.PrefillIDs)[:prefill.Tokens])
	for r := range prefill.Count {
		s := prefill.span(r)
		for j := range s.n {
			pos[s.first+j] = c.position(s.slot) + int32(j)
		}
	}
}
