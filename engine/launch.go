package engine

import (
	"fmt"
	"slices"

	"reprise/engine/sched"
	"reprise/engine/states"
	"reprise/kernels"
	"reprise/ssm"
)

// prepareLane makes a lane's programs once: steps only change what they point to.
func (e *Engine) prepareLane(l *lane) {
	l.work = e.states.NewWork()
	l.upload = kernels.ProgramFunc(func(o kernels.Ops) { o.Upload(l.in.dev, l.in.block) })
	l.forward, l.finish = e.programs(l)
	l.download = kernels.ProgramFunc(func(o kernels.Ops) { e.download(o, l) })
	l.draft = e.drafting(l)
}

// drafting is the part of a step behind its commit.
func (e *Engine) drafting(l *lane) kernels.Program {
	return kernels.ProgramFunc(func(o kernels.Ops) {
		l.step.Hidden = l.source.hidden.RowRange(0, l.batch.Tokens) // a captured step has null rows behind
		e.drafter.Draft(o, &l.step)
	})
}

// programs are the two parts of a step between its copies; they read what l is bound to when they run.
func (e *Engine) programs(l *lane) (forward, finish kernels.Program) {
	forward = kernels.ProgramFunc(func(o kernels.Ops) {
		o.Begin(l.begin)
		l.hidden = e.model.Forward(l.omit.of(o), &l.batch)
	})
	finish = kernels.ProgramFunc(func(o kernels.Ops) {
		e.tables.Run(l.omit.of(o), e.model, l.hidden, l.rows)
		e.toss(o, l)
		o.Commit(l.commit)
	})
	return forward, finish
}

// download fetches what the host wants to know of a step.
func (e *Engine) download(o kernels.Ops, l *lane) {
	out, n := &e.tables.Out, int64(l.rows.Count)
	get := func(dst []int32, src kernels.Buffer, n int64) { o.Download(bytesOf(dst[:n]), src.Slice(0, n*4)) }
	getFloat := func(dst []float32, src kernels.Buffer, n int64) { o.Download(bytesOf(dst[:n]), src.Slice(0, n*4)) }
	rows := int64(len(l.steps) + len(l.prefills))
	get(l.out.accepted.host, l.out.accepted.dev, rows)
	get(l.out.finish.host, l.out.finish.dev, rows)
	get(l.out.n, l.batch.Step.N, int64(len(l.steps)))
	if n == 0 {
		return
	}
	get(l.out.token, out.Token, n)
	if l.rows.TopN > 0 {
		top := n * int64(l.rows.TopN)
		get(l.out.rank, out.Rank, n)
		getFloat(l.out.logProb, out.LogProb, n)
		get(l.out.topID, out.TopID, top)
		getFloat(l.out.topProb, out.TopProb, top)
	}
}

// launch plans a step, makes room for it and enqueues it. It reports whether it did.
func (e *Engine) launch() bool {
	l := e.lanes[e.next]
	e.chooseDepth()
	e.sched.SetMixedPrefill(e.pace.budget())
	if !e.schedule(l) {
		return false
	}
	if !l.work.Empty() {
		e.dev.Submit(l.work)
	}
	e.admit(&l.plan)
	e.fill(l)
	e.enqueue(l)
	l.ticket, l.busy, l.queued = e.dev.Mark(), true, e.lanes[1-e.next].busy
	e.sched.Commit(&l.plan)
	e.pace.launched(len(l.plan.Steps), l.plan.PrefillTokens())
	e.verifyNext(l)
	e.next = 1 - e.next
	return true
}

// schedule plans a step that there is memory for: with one draft a row, or without some requests, if it must. It reports
// whether there is anything to do.
func (e *Engine) schedule(l *lane) bool {
	for {
		e.sched.Schedule(&l.plan)
		if l.plan.Empty() {
			return false
		}
		l.shallow = false
		err := e.prepare(l)
		if err != nil && e.depth > 1 {
			l.shallow = true
			err = e.prepare(l)
		}
		if err == nil {
			return true
		}
		e.relieve(&l.plan, err)
	}
}

// enqueue runs a filled step: what was captured for as many rows, or the same programs directly.
func (e *Engine) enqueue(l *lane) {
	g := e.graph(l)
	if g != nil {
		l.pad(g.rows)
	}
	e.dev.Submit(l.upload)
	l.source = l
	if g != nil {
		l.source = g.lane
		e.dev.Replay(g.forward)
		e.dev.Replay(g.finish)
	} else {
		e.dev.Submit(l.forward)
		e.dev.Submit(l.finish)
	}
	e.dev.Submit(l.download)
	switch {
	case !l.drafts:
	case g != nil && g.drafts[l.depth] != nil:
		e.dev.Replay(g.drafts[l.depth])
	default:
		e.dev.Submit(l.draft)
	}
}

// prepare asks for the memory of every row.
func (e *Engine) prepare(l *lane) error {
	e.needs = e.needs[:0]
	for i := range l.plan.Steps {
		r := &l.plan.Steps[i]
		e.needs = append(e.needs, states.Need{ID: r.ID, Tokens: r.Upper + e.lookahead(l, r.ID)})
	}
	for i := range l.plan.Prefills {
		r := &l.plan.Prefills[i]
		kind := states.Chunk
		if r.Final {
			kind = states.LastChunk
		}
		e.needs = append(e.needs, states.Need{ID: r.ID, Tokens: r.Upper + e.lookahead(l, r.ID), Prefill: kind})
	}
	l.work.Reset()
	return e.states.Prepare(l.work, e.needs)
}

// relieve does what the scheduler says about a plan that memory cannot take.
func (e *Engine) relieve(p *sched.Plan, shortage error) {
	switch what, id := e.sched.Relieve(p); what {
	case sched.Drain:
		e.collect(e.lanes[1-e.next])
	case sched.Preempt:
		e.preempt(id)
	case sched.Hopeless:
		e.fail(e.seqs[id], fmt.Errorf("the sequence does not fit: %w", shortage))
	}
}

// preempt moves a sequence without steps in flight to host memory, or drops its state to be computed again.
func (e *Engine) preempt(id sched.ID) {
	q := e.seqs[id]
	e.stats.preemptions.Add(1)
	work := e.states.NewWork()
	c, err := e.cursor(q.slot)
	if err == nil {
		err = e.states.SwapOut(work, id, c)
	}
	if err != nil {
		e.log.Info("preempted, to be computed again", "reason", err)
		e.states.Release(id)
		e.sched.Preempt(id, false)
		return
	}
	e.dev.Submit(work)
	e.sched.Preempt(id, true)
}

// cursor reads a slot's cursor; nothing of it is in flight.
func (e *Engine) cursor(slot int) (kernels.Cursor, error) {
	e.dev.Submit(kernels.ProgramFunc(func(o kernels.Ops) { e.ssm.ReadCursor(o, slot, e.cursorHost) }))
	if err := e.dev.Wait(e.dev.Mark()); err != nil {
		return kernels.Cursor{}, err
	}
	return ssm.CursorOf(e.cursorHost), nil
}

// admit sets the slot tables of the requests that begin with this step.
func (e *Engine) admit(p *sched.Plan) {
	for _, a := range p.Admitted {
		q := e.seqs[a.ID]
		q.slot, _ = e.states.Slot(a.ID)
		if !q.running {
			q.running = true
			q.tokens = slices.Grow(q.tokens, q.limit-len(q.tokens)) // steps do not allocate
			e.queued.Add(-1)
		}
		slot, tables := q.slot, q.tables(e.sched.Upper(a.ID) >= e.sched.Prompt(a.ID))
		known, swapped := q.tokens[:min(e.sched.Upper(a.ID)+1, len(q.tokens))], a.Swapped
		if e.sched.Upper(a.ID) == 0 {
			known = nil
		}
		declared := int32(0)
		if !swapped && e.sched.Upper(a.ID) > 0 {
			declared = int32(q.request.Declared)
		}
		e.dev.Submit(kernels.ProgramFunc(func(o kernels.Ops) {
			if declared > 0 {
				o.Upload(e.ssm.Cursors().Origin.Slice(int64(slot)*4, 4), bytesOf([]int32{declared}))
			}
			e.tables.Set(o, slot, tables)
			e.openDrafts(o, slot, known, swapped)
		}))
	}
}

// fill writes a lane's inputs: which rows, whose, and what is sampled.
func (e *Engine) fill(l *lane) {
	p := &l.plan
	l.steps, l.prefills = l.steps[:0], l.prefills[:0]
	f := filler{e: e, l: l}
	for i := range p.Steps {
		f.step(&p.Steps[i], p.T)
	}
	for i := range p.Prefills {
		f.prefill(&p.Prefills[i])
	}
	e.bind(l, counts{
		steps: len(p.Steps), t: p.T, prefills: len(p.Prefills), tokens: f.tokens, longest: f.longest, samples: f.samples, top: f.top,
	})
	l.depth = max(f.depth, 0)
	e.fillCoins(l)
	if l.drafts = f.drafts; l.drafts {
		e.bindDrafts(l, len(l.steps), len(l.prefills), f.depth)
	}
}

// filler counts while rows are written.
type filler struct {
	e                             *Engine
	l                             *lane
	tokens, samples, top, longest int
	packed                        int // prefill tokens
	rows, depth                   int
	drafts                        bool // the drafter is to see the step
}

func (f *filler) step(r *sched.StepRow, t int) {
	q, in, i := f.e.seqs[r.ID], &f.l.in, len(f.l.steps)
	in.stepSlot.host[i], in.want.host[i] = int32(q.slot), int32(r.N)
	f.l.steps = append(f.l.steps, row{seq: q, n: r.N, sample: f.samples})
	for j := range t {
		f.sample(f.tokens+j, q.slot, -1, j)
	}
	f.tokens += t
	f.wantTop(q.request.LogProbs)
	f.want(q, false)
}

func (f *filler) prefill(r *sched.PrefillRow) {
	q, in, i := f.e.seqs[r.ID], &f.l.in, len(f.l.prefills)
	in.prefSlot.host[i], in.prefN.host[i], in.prefStart.host[i] = int32(q.slot), int32(r.N), int32(f.tokens)
	in.prefScratch.host[i], in.prefStage.host[i] = f.e.states.Staged(len(f.l.steps) + i)
	copy(in.prefIDs.host[f.packed:], q.tokens[r.Start:r.Start+r.N])
	w := row{seq: q, start: r.Start, n: r.N, sample: f.samples, final: r.Final}
	w.scored = f.score(q, r)
	in.final.host[i], in.following.host[i] = -1, -1
	if !r.Final {
		in.following.host[i] = q.tokens[r.Start+r.N]
	}
	if r.Final && q.request.MaxTokens > 0 {
		in.final.host[i] = int32(f.samples)
		f.sample(f.tokens+r.N-1, q.slot, -1, 0)
		f.wantTop(q.request.LogProbs)
	}
	f.l.prefills = append(f.l.prefills, w)
	f.want(q, true)
	f.tokens, f.packed, f.longest = f.tokens+r.N, f.packed+r.N, max(f.longest, r.N)
}

// score adds rows that score the prompt tokens which a chunk predicts, if the request asked for it and they were not
// scored before a preemption.
func (f *filler) score(q *seq, r *sched.PrefillRow) int {
	if q.request.PromptLogProbs < 0 {
		return 0
	}
	first := max(q.scored, r.Start+1)
	last := min(r.Start+r.N, len(q.request.Prompt)-1) // token of index last is predicted by the chunk's last
	for t := first; t <= last; t++ {
		f.sample(f.tokens+t-1-r.Start, q.slot, q.tokens[t], 0)
	}
	f.wantTop(q.request.PromptLogProbs)
	q.scored = max(q.scored, last+1)
	return max(last-first+1, 0)
}

func (f *filler) sample(token, slot int, target int32, depth int) {
	in, i := &f.l.in, f.samples
	in.rowToken.host[i], in.rowSlot.host[i] = int32(token), int32(slot)
	in.rowTarget.host[i], in.rowDepth.host[i] = target, int32(depth)
	f.samples++
}

// wantTop makes the step report enough alternatives; even a request for none needs the token's own log probability.
func (f *filler) wantTop(n int) {
	if n >= 0 {
		f.top = max(f.top, n, 1)
	}
}

// counts are the sizes of a step.
type counts struct {
	steps, t                  int // step rows and their tokens
	prefills, tokens, longest int // tokens of all rows; longest of the prefill rows
	samples, top              int
}

// bind points a step's operations at the first parts of the inputs.
func (e *Engine) bind(l *lane, c counts) {
	in, sh, tokens, samples := &l.in, e.shared, c.tokens, c.samples
	step := kernels.Rows{
		Count: c.steps, Tokens: c.steps * c.t, T: c.t, MaxLen: c.t,
		Slot: in.stepSlot.part(c.steps), N: sh.stepN.Slice(0, int64(c.steps)*4),
	}
	prefill := kernels.Rows{
		Count: c.prefills, First: step.Tokens, Tokens: tokens - step.Tokens, MaxLen: c.longest,
		Slot: in.prefSlot.part(c.prefills), N: in.prefN.part(c.prefills), Start: in.prefStart.part(c.prefills),
	}
	if e.plan.SSM.Scratch > 0 {
		prefill.Scratch, prefill.Stage = in.prefScratch.part(c.prefills), in.prefStage.part(c.prefills)
	}
	ids, pos, cursors := sh.ids.Slice(0, int64(tokens)*4), sh.pos.Slice(0, int64(tokens)*4), e.ssm.Cursors()
	l.batch.Tokens, l.batch.Step, l.batch.Prefill, l.batch.IDs, l.batch.Pos = tokens, step, prefill, ids, pos
	l.batch.Cursors, l.batch.SSM, l.batch.KV, l.batch.MTPKV = cursors, e.ssm.Layers(), e.kv.Layers(), e.kv.MTPLayers()
	l.begin = kernels.Begin{
		Step: step, Prefill: prefill, Want: in.want.part(c.steps), PrefillIDs: in.prefIDs.part(prefill.Tokens),
		Cursors: cursors, Slots: e.tables.Slots, IDs: ids, Pos: pos,
	}
	l.rows.Count, l.rows.TopN = samples, c.top
	l.rows.Token, l.rows.Slot = in.rowToken.part(samples), in.rowSlot.part(samples)
	l.rows.Target, l.rows.Depth = in.rowTarget.part(samples), in.rowDepth.part(samples)
	l.rows.IDs, l.rows.Pos = ids, pos
	rows := step.Count + prefill.Count
	l.commit = kernels.Commit{
		Step: step, Prefill: prefill, Cursors: cursors, Slots: e.tables.Slots, Tables: e.tables.Large, Window: e.plan.Window,
		Pos: pos, Sampled: e.tables.Out.Token.Slice(0, int64(samples)*4), Final: in.final.part(prefill.Count),
		Accepted: l.out.accepted.dev.Slice(0, int64(rows)*4), Finish: l.out.finish.dev.Slice(0, int64(rows)*4),
	}
}
