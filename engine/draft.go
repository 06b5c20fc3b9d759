package engine

import (
	"time"

	"reprise/engine/sched"
	"reprise/kernels"
	"reprise/sampler"
	"reprise/spec"
)

// newDrafter makes the drafter that the options ask for, or none.
func (e *Engine) newDrafter() (spec.Drafter, error) {
	switch {
	case e.options.Drafts == 0:
		return nil, nil
	case e.options.DraftMethod == spec.NGram:
		return spec.NewLookup(e.dev, e.plan.lookup(e.options))
	}
	return spec.NewMTP(e.dev, e.model, e.kv.MTPLayers(), e.tables, e.plan.mtp())
}

// chooseDepth decides how many drafts the next step proposes, from what the sequences of the last one did with theirs.
func (e *Engine) chooseDepth() {
	if e.drafter == nil {
		return
	}
	e.records = e.records[:0]
	last := e.lanes[1-e.next]
	for _, rows := range [...][]row{last.steps, last.prefills} {
		for i := range rows {
			switch q := rows[i].seq; {
			case q.ended:
			case q.plain():
				e.records = append(e.records, nil)
			default:
				e.records = append(e.records, &q.record)
			}
		}
	}
	e.depth = e.control.Next(e.sched.Running(), e.records)
	e.stats.depth.Store(int64(e.depth))
}

// learn notes what a finished step says about the time that rows and prompts take, and about drafts: whether they were
// accepted, and what they cost. A step counts as costs if the device had nothing else to wait for, for drafts if it
// verified as many as it proposed.
func (e *Engine) learn(l *lane) {
	now := time.Now()
	took := now.Sub(e.collected)
	e.collected = now
	if l.queued {
		e.pace.took(len(l.steps), l.plan.PrefillTokens(), took)
	}
	if e.drafter == nil {
		return
	}
	for i := range l.steps {
		if n := int(l.out.n[i]); n > 1 {
			accepted := int(l.out.accepted.host[i]) - 1
			e.control.Accepted(&l.steps[i].seq.record, n-1, accepted)
			e.stats.drafted(n-1, accepted)
		}
	}
	if l.queued && len(l.prefills) == 0 && l.plan.T == 1+l.depth {
		e.control.Took(len(l.steps), l.depth, took)
	}
}

// wantDrafts is the drafts to propose behind a sequence's row in this step; negative: it never drafts.
func (e *Engine) wantDrafts(l *lane, q *seq) int {
	switch {
	case e.drafter == nil || q.plain():
		return -1
	case l.shallow:
		return min(e.depth, 1)
	}
	return e.depth
}

// lookahead is the tokens behind a row's own that its drafts need memory for.
func (e *Engine) lookahead(l *lane, id sched.ID) int {
	if e.drafter == nil {
		return 0
	}
	return e.drafter.Lookahead(e.wantDrafts(l, e.seqs[id]))
}

// want notes what a row is to draft, and whether the drafter must see the step at all.
func (f *filler) want(q *seq, prefill bool) {
	n, in := f.e.wantDrafts(f.l, q), &f.l.in
	in.draftSlot.host[f.rows], in.draftWant.host[f.rows] = int32(q.slot), int32(n)
	f.rows++
	f.depth = max(f.depth, n)
	f.drafts = f.drafts || n > 0 || n == 0 && (prefill || f.e.drafter.Follows())
}

// verifyNext lets the scheduler verify next what the rows of a launched step draft.
func (e *Engine) verifyNext(l *lane) {
	if e.drafter == nil {
		return
	}
	for _, rows := range [...][]row{l.steps, l.prefills} {
		for i := range rows {
			e.sched.SetDrafts(rows[i].seq.id, e.wantDrafts(l, rows[i].seq))
		}
	}
}

// bindDrafts points the drafter at the filled parts of a lane whose other operations are bound.
func (e *Engine) bindDrafts(l *lane, steps, prefills, depth int) {
	c, rows := &l.commit, steps+prefills
	l.step = spec.Step{
		Committed: kernels.Committed{
			Step: c.Step, Prefill: c.Prefill, IDs: l.batch.IDs, Pos: c.Pos, Sampled: c.Sampled, SampleFirst: c.SampleFirst,
			Final: c.Final, Accepted: c.Accepted, Slots: c.Slots, Want: l.in.draftWant.part(rows),
		},
		Batch: &l.batch, Following: l.in.following.part(prefills), Slot: l.in.draftSlot.part(rows), Depth: depth,
	}
}

// fillCoins tosses for every draft of a lane's step rows.
func (e *Engine) fillCoins(l *lane) {
	if e.options.Synthetic == nil {
		return
	}
	e.tosses++
	for i := range l.steps {
		for j := range l.plan.T {
			at := i*l.plan.T + j
			l.in.coin.host[at] = -1
			if j+1 < l.steps[i].n && e.options.Synthetic.Coin(e.tosses, i, j) {
				l.in.coin.host[at] = int32(at)
			}
		}
	}
}

// toss makes the samples of the rows whose coin says so equal to the drafts behind them. A draft that the model itself
// chooses is accepted whatever the coin says; on made-up weights that is as rare as any token.
func (e *Engine) toss(o kernels.Ops, l *lane) {
	n := l.commit.Step.Tokens - 1
	if e.options.Synthetic == nil || l.commit.Step.T < 2 {
		return
	}
	o.Scatter(kernels.Scatter{Dst: l.commit.Sampled, Index: l.in.coin.part(n), Value: l.batch.IDs.Slice(4, int64(n)*4), Count: n})
}

// openDrafts prepares the drafts of a slot: none, or those that were loaded with the rest of its state.
func (e *Engine) openDrafts(o kernels.Ops, slot int, known []int32, loaded bool) {
	if e.drafter == nil {
		return
	}
	if !loaded {
		e.tables.ForgetDrafts(o, slot)
	}
	e.drafter.Open(o, slot, known, loaded)
}

// drafts is what an image keeps of a slot besides its state: drafts, how many, and the drafter's own memory.
type drafts struct {
	tables  *sampler.Tables
	drafter spec.Drafter
}

func (d drafts) row() int64 { return int64(d.tables.Slots.DraftStride) * 4 }

// Bytes is the size of the image's part.
func (d drafts) Bytes() int64 { return d.row() + 4 + d.drafter.SlotBytes() }

func (d drafts) parts(slot int, image []byte) (list, count kernels.Buffer, listImage, countImage, rest []byte) {
	n, s := d.row(), &d.tables.Slots
	list, count = s.Drafts.Slice(int64(slot)*n, n), s.DraftCount.Slice(int64(slot)*4, 4)
	return list, count, image[:n], image[n : n+4], image[n+4:]
}

// Save copies the slot's part to an image.
func (d drafts) Save(o kernels.Ops, slot int, dst []byte) {
	list, count, listImage, countImage, rest := d.parts(slot, dst)
	o.Download(listImage, list)
	o.Download(countImage, count)
	d.drafter.Save(o, slot, rest)
}

// Load is the reverse.
func (d drafts) Load(o kernels.Ops, slot int, src []byte) {
	list, count, listImage, countImage, rest := d.parts(slot, src)
	o.Upload(list, listImage)
	o.Upload(count, countImage)
	d.drafter.Load(o, slot, rest)
}
