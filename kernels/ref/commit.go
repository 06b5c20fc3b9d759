package ref

import (
	"slices"

	"reprise/kernels"
)

// committing is a commit's memory.
type committing struct {
	kernels.Commit
	slots
	counts, sampled, pos ints
}

func (o ops[F]) Commit(p kernels.Commit) {
	o.begin("Commit", p.Validate())
	c := committing{p, o.slots(p.Slots), o.ints(p.Tables.Counts), o.ints(p.Sampled), o.ints(p.Pos)}
	accepted, finish, final := o.ints(p.Accepted), o.ints(p.Finish), o.ints(p.Final)
	for r, s := range o.sequences(p.Step, p.Cursors) {
		a, f := 0, kernels.Running
		if s.n > 0 {
			a, f = c.step(r, s)
			c.setDrafts(s.slot, 0)
			o.setCursor(p.Cursors, s.slot, s.CommitStep(int32(s.n), int32(a), int32(p.Window.L)))
		}
		accepted.set(r, a)
		finish.set(r, int(f))
	}
	for r, s := range o.sequences(p.Prefill, p.Cursors) {
		a, f := 0, kernels.Running
		if s.n > 0 {
			a, f = c.prefill(final.at(r), s)
			c.setDrafts(s.slot, 0)
			o.setCursor(p.Cursors, s.slot, s.CommitPrefill(int32(s.n)))
		}
		accepted.set(p.Step.Count+r, a)
		finish.set(p.Step.Count+r, int(f))
	}
}

// step accepts the drafts of a row that were sampled too and cuts the run at the first end.
func (c committing) step(r int, s sequence) (int, kernels.Finish) {
	first := c.SampleFirst + r*c.Step.T
	for a := 1; ; a++ {
		id := c.sampled.at(first + a - 1)
		f := c.accept(s.slot, id, c.pos.at(s.first)+a)
		if f == kernels.Running && a < s.n && id == c.draft(s.slot, a-1) {
			continue
		}
		if f != kernels.Running {
			c.active.set(s.slot, 0)
		}
		return a, f
	}
}

// prefill takes the first token of a row whose prompt is complete.
func (c committing) prefill(final int, s sequence) (int, kernels.Finish) {
	if final < 0 {
		return 0, kernels.Running
	}
	f := c.accept(s.slot, c.sampled.at(final), c.pos.at(s.first+s.n-1)+1)
	active := 0
	if f == kernels.Running {
		active = 1
	}
	c.active.set(s.slot, active)
	return 1, f
}

// accept makes id the last token of a slot, at the given index of its sequence, and says whether it ends it.
func (c committing) accept(slot, id, index int) kernels.Finish {
	c.last.set(slot, id)
	p := c.param(slot)
	if p.Flags&kernels.UsePenalties != 0 {
		at := slot*c.Tables.Vocab + id
		c.counts.set(at, c.counts.at(at)+1)
	}
	switch {
	case index >= int(p.MinLen) && slices.Contains(c.stopIDs(slot), id):
		return kernels.FinishStop
	case index+1 >= int(p.MaxLen):
		return kernels.FinishLength
	}
	return kernels.Running
}
