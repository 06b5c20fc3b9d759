package sched

import (
	"errors"
	"fmt"
)

// ID names a request; it is never used twice.
type ID = int64

// ErrRequest is wrapped by what is wrong with a Request.
var ErrRequest = errors.New("bad request")

// Config holds the limits of a step.
type Config struct {
	MaxSeqs   int // requests that run at the same time
	MaxTokens int // tokens of a step, padding of step rows included; may be smaller than MaxSeqs
	MaxLen    int // tokens of a sequence, prompt and output

	MaxChunk     int // tokens of one prefill row; 0 = MaxTokens
	MixedPrefill int // prompt tokens of a step in which running requests have step rows; 0 = no such limit
}

// Validate reports limits that make no sense.
func (c Config) Validate() error {
	switch {
	case c.MaxSeqs < 1:
		return fmt.Errorf("sched: MaxSeqs is %d, must be at least 1", c.MaxSeqs)
	case c.MaxTokens < 1:
		return fmt.Errorf("sched: MaxTokens is %d, must be at least 1", c.MaxTokens)
	case c.MaxLen < 1:
		return fmt.Errorf("sched: MaxLen is %d, must be at least 1", c.MaxLen)
	case c.MaxChunk < 0 || c.MixedPrefill < 0:
		return fmt.Errorf("sched: MaxChunk %d and MixedPrefill %d must not be negative", c.MaxChunk, c.MixedPrefill)
	}
	return nil
}

// Request is what a scheduler must know of a request.
type Request struct {
	ID       ID
	Prompt   int // tokens known when it is added, at least 1
	Limit    int // tokens at which the sequence ends, prompt included; 0 = MaxLen. Prompt = only the prompt is computed
	Drafts   int // drafts a step at most
	Computed int // tokens already in the state that it starts from; >= Prompt starts with step rows
}

func (r Request) check(c Config) error {
	switch {
	case r.Prompt < 1:
		return fmt.Errorf("%w: the prompt has %d tokens, needs at least 1", ErrRequest, r.Prompt)
	case r.Limit > c.MaxLen:
		return fmt.Errorf("%w: a limit of %d tokens exceeds the maximum length of %d", ErrRequest, r.Limit, c.MaxLen)
	case r.Prompt > r.Limit:
		return fmt.Errorf("%w: a prompt of %d tokens exceeds the limit of %d", ErrRequest, r.Prompt, r.Limit)
	case r.Drafts < 0:
		return fmt.Errorf("%w: %d drafts", ErrRequest, r.Drafts)
	case r.Computed < 0 || r.Computed > 0 && r.Computed+1 >= r.Limit && r.Computed >= r.Prompt:
		return fmt.Errorf("%w: %d of %d tokens computed leave nothing to do", ErrRequest, r.Computed, r.Limit)
	}
	return nil
}

// StepRow is a decode or verify row: the token sampled last and N-1 drafts.
type StepRow struct {
	ID    ID
	N     int // tokens, 1..T; the device makes it 0 when the request has stopped meanwhile
	Upper int // tokens in the state after this step if everything in flight is accepted: what memory must cover
}

// PrefillRow is a chunk of a prompt.
type PrefillRow struct {
	ID    ID
	Start int // index of the chunk's first token
	N     int
	Final bool // the prompt ends here: its last token gives the first token of the output
	Upper int  // tokens that memory must cover: the whole prompt
}

// Admission is a request that begins to run with this plan.
type Admission struct {
	ID      ID
	Swapped bool // its state is in host memory; otherwise it starts from nothing, or from what the caller gave it
}

// Plan is one step. Its memory is reused by Schedule; the caller keeps one Plan for each step in flight and one more.
type Plan struct {
	T        int // tokens that a step row is padded to; 1 without step rows
	Steps    []StepRow
	Prefills []PrefillRow
	Admitted []Admission // in order; each has a row above

	next int64 // seq of the first running row that was left out; 0 = none
}

// Empty reports whether there is nothing to launch.
func (p *Plan) Empty() bool { return len(p.Steps)+len(p.Prefills) == 0 }

// Tokens is what the plan takes of the budget.
func (p *Plan) Tokens() int { return len(p.Steps)*p.T + p.PrefillTokens() }

// PrefillTokens is the sum of the prefill rows.
func (p *Plan) PrefillTokens() int {
	n := 0
	for i := range p.Prefills {
		n += p.Prefills[i].N
	}
	return n
}

func (p *Plan) reset() {
	*p = Plan{T: 1, Steps: p.Steps[:0], Prefills: p.Prefills[:0], Admitted: p.Admitted[:0]}
}

// Relief is what to do about a plan that memory cannot take.
type Relief uint8

// Measures, in the order in which they are tried.
const (
	Replan   Relief = iota // an admission or drafts are given up for now: schedule again
	Drain                  // apply the results of everything in flight, then schedule again
	Preempt                // move the request out (Scheduler.Preempt), then schedule again
	Hopeless               // the request does not fit although nothing else runs: fail it (Remove)
)

func (r Relief) String() string { return [...]string{"replan", "drain", "preempt", "hopeless"}[r] }
