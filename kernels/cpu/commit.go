package cpu

import (
	"slices"

	"reprise/kernels"
)

// committing is a commit's memory.
type committing struct {
	kernels.Commit
	slots
	cursors
	counts, sampled, pos []int32
}

// Commit accepts drafts, applies the stops, writes cursors and slots, and reports.
func (o *ops) Commit(p kernels.Commit) {
	o.enter("Commit")
	must(p.Validate())
	if p.Step.Empty() && p.Prefill.Empty() {
		return
	}
	c := &o.committing
	*c = committing{p, slotsOf(p.Slots), cursorsOf(p.Cursors), i32(p.Tables.Counts), i32(p.Sampled), i32(p.Pos)}
	accepted, finish, final := i32(p.Accepted), i32(p.Finish), i32(p.Final)
	step, prefill := launchOf(p.Step), launchOf(p.Prefill)
	for r := range step.Count {
		accepted[r], finish[r] = c.step(r, step.span(r))
	}
	for r := range prefill.Count {
		accepted[step.Count+r], finish[step.Count+r] = c.prefill(final[r], prefill.span(r))
	}
}

// step accepts the drafts of a row that were sampled too, cuts the run at its first end and returns its length.
func (c *committing) step(r int, s span) (accepted, finish int32) {
	if s.n == 0 {
		return 0, int32(kernels.Running)
	}
	sampled := c.sampled[c.SampleFirst+r*c.Step.T:]
	a, end := 0, kernels.Running
	for more := true; more; {
		id := sampled[a]
		a++
		end = c.accept(s.slot, id, c.pos[s.first]+int32(a))
		more = end == kernels.Running && a < s.n && id == c.draft(s.slot, a-1)
	}
	if end != kernels.Running {
		c.active[s.slot] = 0
	}
	c.noDrafts(s.slot)
	c.set(s.slot, c.get(s.slot).CommitStep(int32(s.n), int32(a), int32(c.Window.L)))
	return int32(a), int32(end)
}

// prefill takes the first token of a row whose prompt is complete.
func (c *committing) prefill(final int32, s span) (accepted, finish int32) {
	if s.n == 0 {
		return 0, int32(kernels.Running)
	}
	c.noDrafts(s.slot)
	c.set(s.slot, c.get(s.slot).CommitPrefill(int32(s.n)))
	if final < 0 {
		return 0, int32(kernels.Running)
	}
	end := c.accept(s.slot, c.sampled[final], c.pos[s.first+s.n-1]+1)
	c.active[s.slot] = 0
	if end == kernels.Running {
		c.active[s.slot] = 1
	}
	return 1, int32(end)
}

// accept makes id the last token of a slot, at the given index of its sequence, and says whether it ends it.
func (c *committing) accept(slot, id, index int32) kernels.Finish {
	c.last[slot] = id
	p := &c.params[slot]
	if p.Flags&kernels.UsePenalties != 0 {
		c.counts[int(slot)*c.Tables.Vocab+int(id)]++
	}
	switch {
	case index >= p.MinLen && id >= 0 && slices.Contains(c.stopIDs(slot), id):
		return kernels.FinishStop
	case index+1 >= p.MaxLen:
		return kernels.FinishLength
	}
	return kernels.Running
}
