package engine

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"reprise/sampler"
)

// Request is one sequence to generate.
type Request struct {
	Prompt    []int32
	Sampling  sampler.Params
	MaxTokens int // tokens to generate at most; 0 only scores the prompt
	MinTokens int
	StopIDs   []int32 // end the sequence and are part of the output
	IgnoreEOS bool    // the model's end-of-sequence ids do not end it
	// LogProbs and PromptLogProbs are how many alternatives to report with each token; -1 = no log probabilities.
	LogProbs       int
	PromptLogProbs int
	// Declared is how many of the first prompt tokens are taken to be computed already, to whatever the memory holds: with
	// Options.Declared only, to measure long contexts on made-up weights.
	Declared int
	NoDrafts bool // never decode it speculatively; the output is the same
}

// Alternative is a candidate token and its log probability under the model's raw logits.
type Alternative struct {
	ID      int32
	LogProb float32
}

// Token is a token of the output, or of a scored prompt.
type Token struct {
	ID      int32
	LogProb float32       // when log probabilities were asked for
	Rank    int32         // 1 = most likely
	Top     []Alternative // most likely first, ties by id
}

// Reason says why a sequence ended.
type Reason string

// Reasons, named as in the OpenAI API.
const (
	Unfinished Reason = ""
	Stop       Reason = "stop"
	Length     Reason = "length"
	Aborted    Reason = "abort"
)

// Update is what happened to a sequence since the last one.
type Update struct {
	Prompt []Token // scores of prompt tokens 1.. , when asked for
	Tokens []Token
	Reason Reason
	StopID int32 // the stop id that ended it, when Reason is Stop
	Err    error // the sequence failed; no more updates follow
}

// Done reports whether no update follows.
func (u *Update) Done() bool { return u.Reason != Unfinished || u.Err != nil }

// Errors of Submit.
var (
	ErrClosed    = errors.New("the engine is shutting down")
	ErrQueueFull = errors.New("the waiting queue is full")
	ErrFault     = errors.New("the step of this request failed")
)

// FieldError says which field of a request is wrong.
type FieldError struct{ Field, Problem string }

func (e *FieldError) Error() string { return e.Field + ": " + e.Problem }

// Sequence is a submitted request, read by one goroutine. The engine hands updates over without a lock and without ever
// waiting for the reader: what the reader has not taken yet is appended to.
type Sequence struct {
	id        int64
	engine    *Engine
	cancelled atomic.Bool
	pending   atomic.Pointer[Update] // written by the engine, taken by either side
	spare     atomic.Pointer[Update] // handed back by the reader for reuse
	taken     *Update                // what Next returned last
	ready     chan struct{}          // signals that pending may be set
}

// Next waits for an update and returns everything since the last one; it is valid until the next call. After an update
// that is Done it must not be called again. If ctx ends first the sequence is cancelled.
func (s *Sequence) Next(ctx context.Context) (*Update, error) {
	if s.taken != nil {
		s.spare.Store(s.taken)
		s.taken = nil
	}
	for {
		if u := s.pending.Swap(nil); u != nil {
			s.taken = u
			return u, nil
		}
		select {
		case <-s.ready:
		case <-ctx.Done():
			s.Cancel()
			return nil, ctx.Err()
		}
	}
}

// Cancel ends the sequence; what it held comes back. It may be called at any time, more than once.
func (s *Sequence) Cancel() {
	if !s.cancelled.Swap(true) {
		s.engine.cancelled.Store(true)
		s.engine.wakeUp()
	}
}

// update takes the pending update out of the reader's reach to be added to; publish gives it back.
func (s *Sequence) update() *Update {
	u := s.pending.Swap(nil)
	if u == nil {
		u = s.spare.Swap(nil)
		if u == nil {
			return &Update{}
		}
		*u = Update{Prompt: u.Prompt[:0], Tokens: u.Tokens[:0]}
	}
	return u
}

func (s *Sequence) publish(u *Update) {
	s.pending.Store(u)
	select {
	case s.ready <- struct{}{}:
	default:
	}
}

// validate checks a request against what the engine can do.
func (r *Request) validate(l Limits) error {
	if len(r.Prompt) == 0 {
		return &FieldError{"prompt", "must have at least one token"}
	}
	for i, id := range r.Prompt {
		if id < 0 || int(id) >= l.Vocab {
			return &FieldError{"prompt", fmt.Sprintf("token %d has id %d, outside of the vocabulary of %d", i, id, l.Vocab)}
		}
	}
	scored := r.MaxTokens == 0
	if n := len(r.Prompt); n > l.MaxLen || n == l.MaxLen && !scored {
		return &FieldError{"prompt", fmt.Sprintf("%d tokens do not fit the context of %d tokens with room for an answer", n, l.MaxLen)}
	}
	switch {
	case r.Declared < 0 || r.Declared >= len(r.Prompt) || r.Declared > 0 && !l.Declared:
		return &FieldError{"prompt", fmt.Sprintf("%d tokens cannot be declared to be computed", r.Declared)}
	case r.MaxTokens < 0:
		return &FieldError{"max_tokens", "must not be negative"}
	case r.MinTokens < 0 || r.MinTokens > r.MaxTokens:
		return &FieldError{"min_tokens", fmt.Sprintf("%d is outside of [0, max_tokens = %d]", r.MinTokens, r.MaxTokens)}
	case r.LogProbs < -1 || r.LogProbs > l.MaxLogProbs:
		return &FieldError{"logprobs", fmt.Sprintf("%d is outside of [0, %d] (--max-logprobs)", r.LogProbs, l.MaxLogProbs)}
	case r.PromptLogProbs < -1 || r.PromptLogProbs > l.MaxLogProbs:
		return &FieldError{"prompt_logprobs", fmt.Sprintf("%d is outside of [0, %d] (--max-logprobs)", r.PromptLogProbs, l.MaxLogProbs)}
	case len(r.StopIDs) > sampler.MaxStops-len(l.EOS):
		return &FieldError{"stop_token_ids", fmt.Sprintf("%d ids, at most %d are supported", len(r.StopIDs), sampler.MaxStops-len(l.EOS))}
	}
	for _, id := range r.StopIDs {
		if id < 0 || int(id) >= l.Vocab {
			return &FieldError{"stop_token_ids", fmt.Sprintf("id %d is outside of the vocabulary of %d", id, l.Vocab)}
		}
	}
	if err := r.Sampling.Validate(l.Vocab); err != nil {
		var p *sampler.ParamError
		if errors.As(err, &p) {
			return &FieldError{p.Field, p.Problem}
		}
		return err
	}
	return nil
}

// Limits are what clients may ask for.
type Limits struct {
	Vocab       int
	MaxLen      int // prompt + output
	MaxLogProbs int
	EOS         []int32
	Declared    bool // tokens may be declared to be computed
}
