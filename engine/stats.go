package engine

import (
	"sync/atomic"

	"reprise/spec"
)

// stats are written by the loop and read by anyone.
type stats struct {
	promptTokens, generatedTokens, preemptions atomic.Int64
	stepRows, stepTokens                       atomic.Int64
	stopped, cut, cancelled, failed            atomic.Int64
	running, waiting, pages, totalPages        atomic.Int64
	steps, prefillTokens, depth                atomic.Int64
	drafts, draftTokens, acceptedDrafts        atomic.Int64
	position                                   [spec.MaxDepth]struct{ drafted, accepted atomic.Int64 }
}

// Stats is a snapshot of the engine's counters and gauges.
type Stats struct {
	Running, Waiting              int
	KVUsage                       float64 // share of the KV pages in use
	PromptTokens, GeneratedTokens int64
	Preemptions                   int64
	StepRows, StepTokens          int64 // decode and verify rows that counted, and the tokens they gave
	Stopped, Cut, Aborted, Failed int64 // ended sequences by reason

	Steps         int64 // launches of the model
	PrefillTokens int64 // prompt tokens computed, those of preempted sequences again

	Footprint Footprint

	Depth  int             // drafts proposed in the last step
	Drafts spec.Acceptance // what became of drafts; counted when they are verified
}

// Stats reports what the engine has done and is doing.
func (e *Engine) Stats() Stats {
	s := &e.stats
	out := Stats{
		Running: int(s.running.Load()), Waiting: int(s.waiting.Load()),
		PromptTokens: s.promptTokens.Load(), GeneratedTokens: s.generatedTokens.Load(), Preemptions: s.preemptions.Load(),
		StepRows: s.stepRows.Load(), StepTokens: s.stepTokens.Load(),
		Stopped: s.stopped.Load(), Cut: s.cut.Load(), Aborted: s.cancelled.Load(), Failed: s.failed.Load(),
	}
	out.Steps, out.PrefillTokens = s.steps.Load(), s.prefillTokens.Load()
	out.Footprint = e.plan.Footprint()
	out.Depth, out.Drafts = int(s.depth.Load()), s.acceptance()
	if total := s.totalPages.Load(); total > 0 {
		out.KVUsage = float64(s.pages.Load()) / float64(total)
	}
	return out
}

// acceptance is what became of drafts.
func (s *stats) acceptance() spec.Acceptance {
	a := spec.Acceptance{Steps: s.drafts.Load(), Drafted: s.draftTokens.Load(), Accepted: s.acceptedDrafts.Load()}
	for i := range a.Position {
		a.Position[i] = spec.Position{Drafted: s.position[i].drafted.Load(), Accepted: s.position[i].accepted.Load()}
	}
	return a
}

// drafted counts the verified drafts of a row.
func (s *stats) drafted(n, accepted int) {
	var a spec.Acceptance
	a.Add(n, accepted)
	s.drafts.Add(a.Steps)
	s.draftTokens.Add(a.Drafted)
	s.acceptedDrafts.Add(a.Accepted)
	for i := range n {
		s.position[i].drafted.Add(a.Position[i].Drafted)
		s.position[i].accepted.Add(a.Position[i].Accepted)
	}
}

// stepped counts a finished step.
func (s *stats) stepped(l *lane) {
	s.steps.Add(1)
	s.prefillTokens.Add(int64(l.plan.PrefillTokens()))
}

func (s *stats) finished(u *Update) {
	switch {
	case u.Err != nil:
		s.failed.Add(1)
	case u.Reason == Stop:
		s.stopped.Add(1)
	case u.Reason == Length:
		s.cut.Add(1)
	default:
		s.cancelled.Add(1)
	}
}

func (e *Engine) publishStats() {
	s, u := &e.stats, e.states.Usage()
	s.running.Store(int64(e.sched.Running()))
	s.waiting.Store(int64(e.sched.Waiting()))
	s.pages.Store(int64(u.Pages))
	s.totalPages.Store(int64(u.TotalPages))
}
