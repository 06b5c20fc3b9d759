package engine

import "sync/atomic"

// stats are written by the loop and read by anyone.
type stats struct {
	promptTokens, generatedTokens, preemptions atomic.Int64
	stepRows, stepTokens                       atomic.Int64
	stopped, cut, cancelled, failed            atomic.Int64
	running, waiting, pages, totalPages        atomic.Int64
}

// Stats is a snapshot of the engine's counters and gauges.
type Stats struct {
	Running, Waiting              int
	KVUsage                       float64 // share of the KV pages in use
	PromptTokens, GeneratedTokens int64
	Preemptions                   int64
	StepRows, StepTokens          int64 // decode and verify rows that counted, and the tokens they gave
	Stopped, Cut, Aborted, Failed int64 // ended sequences by reason
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
	if total := s.totalPages.Load(); total > 0 {
		out.KVUsage = float64(s.pages.Load()) / float64(total)
	}
	return out
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
