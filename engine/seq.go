package engine

import (
	"reprise/engine/sched"
	"reprise/sampler"
	"reprise/spec"
)

// seq is a request as the engine goroutine sees it.
type seq struct {
	*Sequence
	request Request
	stops   []int32
	tokens  []int32 // prompt and output
	limit   int     // the sequence ends at this many tokens
	scored  int     // prompt tokens scored or being scored, when asked for
	slot    int     // while it runs
	running bool    // it was admitted at least once
	ended   bool
	record  spec.Record // of its drafts
}

func newSeq(s *Sequence, r Request, l Limits) *seq {
	q := &seq{Sequence: s, request: r, limit: min(len(r.Prompt)+r.MaxTokens, l.MaxLen), scored: 1}
	q.stops = append(q.stops, r.StopIDs...)
	if !r.IgnoreEOS {
		q.stops = append(q.stops, l.EOS...)
	}
	q.tokens = append(q.tokens, r.Prompt...)
	return q
}

func (q *seq) output() []int32 { return q.tokens[len(q.request.Prompt):] }

// plain reports whether the sequence never drafts.
func (q *seq) plain() bool { return q.request.NoDrafts || q.request.MaxTokens == 0 }

// schedule is what the scheduler must know.
func (q *seq) schedule(drafts int) sched.Request {
	if q.plain() {
		drafts = 0
	}
	return sched.Request{ID: q.id, Prompt: len(q.request.Prompt), Limit: q.limit, Drafts: drafts, Computed: q.request.Declared}
}

// tables is what the sampler's slot tables are set from. prefilled says that the whole sequence but its last token is in
// the state, so that the slot goes on by itself.
func (q *seq) tables(prefilled bool) sampler.Slot {
	s := sampler.Slot{
		Params: &q.request.Sampling, Prompt: q.request.Prompt, Output: q.output(), Stops: q.stops,
		MinTokens: q.request.MinTokens, MaxLen: q.limit, Active: prefilled,
	}
	if prefilled {
		s.Last = q.tokens[len(q.tokens)-1]
	}
	return s
}
