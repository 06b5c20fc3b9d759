package api

import (
	"context"
	"net/http"
	"slices"
	"time"

	"reprise/engine"
	"reprise/tokenizer"
)

// choice is one sequence of a request on its way to text.
type choice struct {
	job     *job
	index   int // in the answer
	prompt  *prompt
	seq     Sequence
	stream  *tokenizer.Stream // nil without a tokenizer
	stopper *stopper          // nil without stop strings
	count   int               // tokens of the output
	started bool              // something was emitted
	ended   bool
	first   time.Time // of the first token
	last    time.Time
}

// progress is what a choice has gained. The tokens are valid until the next step.
type progress struct {
	prompt []engine.Token // scores of prompt tokens 1..
	tokens []engine.Token
	pieces []piece
	first  bool   // nothing came before
	reason string // finish_reason, or "" while it runs
	stop   any    // stop_reason: the stop string, the stop token's id, or nil
}

// Reasons for the end of an answer.
const (
	finishStop   = "stop"
	finishLength = "length"
	finishTools  = "tool_calls"
)

func newChoice(j *job, prompt, k int) *choice {
	c := &choice{job: j, index: prompt*j.n + k, prompt: &j.prompts[prompt]}
	if t := j.api.config.Tokenizer; t != nil {
		c.stream = t.NewStream(false)
	}
	if len(j.stops) > 0 {
		c.stopper = newStopper(j.stops, j.includeStop)
	}
	return c
}

// run reads the sequence to its end.
func (c *choice) run(ctx context.Context, emit func(*choice, *progress) error) error {
	for {
		u, err := c.seq.Next(ctx)
		if err == nil {
			err = u.Err
		}
		if err == nil && u.Reason == engine.Aborted {
			err = &Error{Status: http.StatusServiceUnavailable, Type: TypeServer, Code: "aborted", Message: "the server ended this request: it is shutting down"}
		}
		if err != nil {
			if ctx.Err() != nil || u != nil && u.Reason == engine.Aborted {
				c.finish("abort") // the client is gone, or the server is going
			}
			c.finish("error")
			return err
		}
		p := c.take(u)
		if err := emit(c, p); err != nil {
			return err
		}
		if p.reason != "" {
			c.finish(p.reason)
			return nil
		}
	}
}

// take turns an update into progress, up to a stop string.
func (c *choice) take(u *engine.Update) *progress {
	p := &progress{prompt: u.Prompt, first: !c.started}
	c.started = true
	c.clock(len(u.Tokens))
	for i, t := range u.Tokens {
		c.count++
		p.tokens = u.Tokens[:i+1]
		final := u.Reason == engine.Stop && i == len(u.Tokens)-1
		if final && !c.job.includeStop {
			break
		}
		if stop := c.push(p, t.ID); stop != "" {
			p.reason, p.stop = finishStop, stop
			c.seq.Cancel()
			return p
		}
	}
	if u.Reason != engine.Unfinished {
		c.close(p, u)
	}
	return p
}

func (c *choice) clock(tokens int) {
	if tokens == 0 {
		return
	}
	c.last = time.Now()
	if c.count == 0 {
		c.first = c.last
	}
}

// push adds the text of a token and returns the stop string that it completes.
func (c *choice) push(p *progress, id int32) (stop string) {
	if c.stream == nil || c.hidden(id) {
		return ""
	}
	part := piece{id, c.stream.Push(id), c.job.api.config.Tokenizer.IsAdded(id)}
	var released []piece
	switch {
	case c.stopper == nil:
		released = []piece{part}
	case c.count <= c.job.minTokens:
		released = c.stopper.pass(part)
	default:
		released, stop = c.stopper.push(part)
	}
	p.pieces = append(p.pieces, released...)
	return stop
}

// hidden tells whether a token's text is left out.
func (c *choice) hidden(id int32) bool {
	if !c.job.skipSpecial || !c.job.api.config.Tokenizer.IsSpecial(id) {
		return false
	}
	return !c.job.markers || !slices.Contains(c.job.api.markerIDs, id)
}

// close adds what was held back and the reason of an end that the engine saw.
func (c *choice) close(p *progress, u *engine.Update) {
	if c.stopper != nil {
		p.pieces = append(p.pieces, c.stopper.flush()...)
	}
	if c.stream != nil {
		p.pieces = append(p.pieces, piece{id: noToken, text: c.stream.Flush()})
	}
	p.reason = string(u.Reason)
	if u.Reason == engine.Stop && slices.Contains(c.job.stopIDs, u.StopID) {
		p.stop = u.StopID
	}
}

// cancel gives up a choice that has not ended.
func (c *choice) cancel() {
	if !c.ended {
		c.seq.Cancel()
		c.finish("abort")
	}
}

// finish reports the end, once.
func (c *choice) finish(reason string) {
	if c.ended {
		return
	}
	c.ended = true
	o := Outcome{Reason: reason, Tokens: c.count, Whole: time.Since(c.job.arrived), PromptTokens: len(c.prompt.ids)}
	if c.count > 0 {
		o.FirstToken = c.first.Sub(c.job.arrived)
	}
	if c.count > 1 {
		o.PerToken = c.last.Sub(c.first) / time.Duration(c.count-1)
	}
	c.job.api.observe(o)
}
