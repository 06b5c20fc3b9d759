package api

import (
	"context"
	"crypto/rand"
	"runtime/debug"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"reprise/engine"
)

// job is a request that was understood and can be run.
type job struct {
	api *API
	common
	prompts []prompt
	field   string // name of the prompt in errors
	markers bool   // the tags of chats stay visible
	scores  int    // alternatives that the prompt's tokens are scored with; -1 = not scored
	arrived time.Time
	choices []*choice
}

// submit hands every choice to the engine, or none.
func (j *job) submit() error {
	base := j.seed
	for i := range j.prompts {
		if base == nil {
			seed := j.api.nextSeed()
			base = &seed
		}
		for k := range j.n {
			c := newChoice(j, i, k)
			r := j.request(&j.prompts[i])
			r.Sampling.Seed = *base + uint64(k)
			seq, err := j.api.config.Engine.Submit(r)
			if err != nil {
				j.cancel()
				return j.rename(err)
			}
			c.seq = seq
			j.choices = append(j.choices, c)
		}
		base = j.seed
	}
	return nil
}

func (j *job) request(p *prompt) engine.Request {
	limit := j.maxTokens
	if limit < 0 {
		limit = max(j.api.config.Engine.Limits().MaxLen-len(p.ids), 1)
	}
	return engine.Request{
		Prompt: p.ids, Sampling: j.sampling, MaxTokens: limit, MinTokens: j.minTokens, StopIDs: j.stopIDs,
		IgnoreEOS: j.ignoreEOS, LogProbs: j.logProbs, PromptLogProbs: j.scores,
	}
}

// rename gives an engine's error the name that the field has in this kind of request.
func (j *job) rename(err error) error {
	if err == nil {
		return nil
	}
	if e := AsError(err); e.Param == "prompt" && j.field != "prompt" {
		return invalid(j.field, "%s", e.Message[len("prompt: "):])
	}
	return err
}

func (j *job) cancel() {
	for _, c := range j.choices {
		c.cancel()
	}
}

// drive runs all choices to their end and calls emit for each step of each, one call at a time. When it returns, nothing
// runs any more.
func (j *job) drive(ctx context.Context, emit func(*choice, *progress) error) error {
	defer j.cancel()
	if len(j.choices) == 1 {
		return j.rename(j.choices[0].run(ctx, emit))
	}
	var mutex sync.Mutex
	locked := func(c *choice, p *progress) error {
		mutex.Lock()
		defer mutex.Unlock()
		return emit(c, p)
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, c := range j.choices {
		group.Go(func() (err error) {
			defer func() {
				if p := recover(); p != nil {
					err = &PanicError{p, debug.Stack()}
				}
			}()
			return c.run(ctx, locked)
		})
	}
	return j.rename(group.Wait())
}

// answerID is the request's own id or a new one.
func (j *job) answerID(prefix string) string {
	if j.id != "" {
		return prefix + j.id
	}
	return prefix + rand.Text()
}

// usage counts tokens as they were processed.
func (j *job) usage() *usage {
	u := &usage{}
	for i := range j.prompts {
		u.PromptTokens += len(j.prompts[i].ids)
	}
	for _, c := range j.choices {
		u.CompletionTokens += c.count
	}
	u.TotalTokens = u.PromptTokens + u.CompletionTokens
	return u
}

type usage struct {
	PromptTokens     int           `json:"prompt_tokens"`
	CompletionTokens int           `json:"completion_tokens"`
	TotalTokens      int           `json:"total_tokens"`
	PromptDetails    promptDetails `json:"prompt_tokens_details"`
}

type promptDetails struct {
	CachedTokens int `json:"cached_tokens"`
}
