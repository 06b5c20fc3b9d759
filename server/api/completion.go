package api

import (
	"context"
	"strings"
	"time"

	"reprise/engine"
)

// completionJob is a request to /v1/completions.
type completionJob struct {
	job
	echo bool
}

type completionAnswer struct {
	ID             string             `json:"id"`
	Object         string             `json:"object"`
	Created        int64              `json:"created"`
	Model          string             `json:"model"`
	Choices        []completionChoice `json:"choices"`
	Usage          *usage             `json:"usage,omitempty"`
	PromptTokenIDs []int32            `json:"prompt_token_ids,omitempty"`
}

type completionChoice struct {
	Index          int                        `json:"index"`
	Text           string                     `json:"text"`
	LogProbs       *completionLogProbs        `json:"logprobs"`
	FinishReason   *string                    `json:"finish_reason"`
	StopReason     any                        `json:"stop_reason"`
	TokenIDs       []int32                    `json:"token_ids,omitempty"`
	PromptTokenIDs []int32                    `json:"prompt_token_ids,omitempty"`
	PromptLogProbs []map[string]promptLogProb `json:"prompt_logprobs,omitempty"`
}

const defaultMaxTokens = 16 // of completions

// Completion understands the body of a request to /v1/completions. Errors are *Error.
func (a *API) Completion(body []byte) (Call, error) {
	f := parseFields(body)
	j := &completionJob{job: job{api: a, arrived: time.Now(), field: "prompt"}}
	j.common = a.readCommon(f)
	j.maxTokens = f.maxTokens(defaultMaxTokens, "max_tokens")
	j.logProbs = f.integer("logprobs", -1)
	j.echo = f.boolean("echo", false)
	j.addSpecial = f.boolean("add_special_tokens", true)
	if f.has("logprobs") && j.logProbs < 0 {
		f.refuse("logprobs", "must not be negative, not %d", j.logProbs)
	}
	if f.has("prompt_logprobs") && j.promptProbs < 0 {
		f.refuse("prompt_logprobs", "must not be negative, not %d", j.promptProbs)
	}
	if j.maxTokens == 0 && !j.echo && j.promptProbs < 0 {
		f.refuse("max_tokens", "0 is only allowed with echo, to score a prompt")
	}
	a.needTokenizer(f, &j.common)
	j.prompts = a.prompts(f, &j.common)
	if f.err == nil && len(j.prompts)*j.n > maxChoices {
		f.refuse("n", "%d prompts x %d are more than %d choices", len(j.prompts), j.n, maxChoices)
	}
	if f.err != nil {
		return nil, f.err
	}
	j.scores = j.promptProbs
	if j.echo {
		j.scores = max(j.scores, j.logProbs)
	}
	return j, nil
}

// needTokenizer refuses what cannot be done without one.
func (a *API) needTokenizer(f *fields, c *common) {
	if a.config.Tokenizer == nil && len(c.stops) > 0 {
		f.fail(a.noTokenizer("stop"))
	}
}

func (j *completionJob) Streams() bool { return j.stream }

// completionState is what is remembered of a choice between steps.
type completionState struct {
	offset int  // characters before the next token
	begun  bool // the first token of an echoed prompt was shown
}

// delta is what a step adds to a choice of the answer.
func (j *completionJob) delta(c *choice, s *completionState, p *progress) completionChoice {
	out := completionChoice{Index: c.index, StopReason: p.stop}
	var text strings.Builder
	if p.first {
		if j.echo {
			text.WriteString(j.api.decode(*c.prompt))
		}
		if j.returnIDs {
			out.PromptTokenIDs = c.prompt.ids
		}
	}
	for _, part := range p.pieces {
		text.WriteString(part.text)
	}
	out.Text = text.String()
	if j.returnIDs {
		for _, t := range p.tokens {
			out.TokenIDs = append(out.TokenIDs, t.ID)
		}
	}
	if j.logProbs >= 0 {
		out.LogProbs = j.deltaLogProbs(c, s, p)
	}
	if p.reason != "" {
		out.FinishReason = &p.reason
	}
	return out
}

func (j *completionJob) deltaLogProbs(c *choice, s *completionState, p *progress) *completionLogProbs {
	l := &completionLogProbs{}
	if j.echo && !s.begun {
		l.add(c, c.prompt.ids[0], nil, &s.offset)
		s.begun = true
	}
	if j.echo {
		for _, t := range p.prompt {
			t.Top = t.Top[:min(len(t.Top), j.logProbs)]
			l.add(c, t.ID, &t, &s.offset)
		}
	}
	for i := range p.tokens {
		l.add(c, p.tokens[i].ID, &p.tokens[i], &s.offset)
	}
	return l
}

// completionTotal is a choice of a whole answer in the making.
type completionTotal struct {
	completionChoice
	state completionState
	text  strings.Builder
	score []engine.Token // of the prompt
}

func (t *completionTotal) add(d completionChoice) {
	t.text.WriteString(d.Text)
	t.TokenIDs = append(t.TokenIDs, d.TokenIDs...)
	if d.PromptTokenIDs != nil {
		t.PromptTokenIDs = d.PromptTokenIDs
	}
	if t.LogProbs == nil {
		t.LogProbs = d.LogProbs
	} else if d.LogProbs != nil {
		t.LogProbs.extend(d.LogProbs)
	}
	t.FinishReason, t.StopReason = d.FinishReason, d.StopReason
}

// Answer runs the request and returns the whole answer.
func (j *completionJob) Answer(ctx context.Context) (any, error) {
	if err := j.submit(); err != nil {
		return nil, err
	}
	totals := make([]completionTotal, len(j.choices))
	err := j.drive(ctx, func(c *choice, p *progress) error {
		t := &totals[c.index]
		t.Index = c.index
		t.add(j.delta(c, &t.state, p))
		if j.promptProbs >= 0 {
			t.score = append(t.score, p.prompt...)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	out := j.head()
	for i := range totals {
		t := &totals[i]
		t.Text = t.text.String()
		if j.promptProbs >= 0 {
			t.PromptLogProbs = j.choices[i].promptLogProbs(t.score)
		}
		out.Choices = append(out.Choices, t.completionChoice)
	}
	out.Usage = j.usage()
	if j.returnIDs && len(j.prompts) == 1 {
		out.PromptTokenIDs = j.prompts[0].ids
	}
	return out, nil
}

// head is an answer without choices.
func (j *completionJob) head() *completionAnswer {
	return &completionAnswer{
		ID: j.answerID("cmpl-"), Object: "text_completion", Created: j.arrived.Unix(), Model: j.api.name(j.model),
		Choices: []completionChoice{},
	}
}

// Stream runs the request and sends the answer in chunks.
func (j *completionJob) Stream(ctx context.Context, send func(any) error) error {
	if err := j.submit(); err != nil {
		return err
	}
	head := j.head()
	states := make([]completionState, len(j.choices))
	err := j.drive(ctx, func(c *choice, p *progress) error {
		d := j.delta(c, &states[c.index], p)
		if d.Text == "" && d.LogProbs == nil && d.TokenIDs == nil && d.PromptTokenIDs == nil && d.FinishReason == nil {
			return nil
		}
		chunk := *head
		chunk.Choices = []completionChoice{d}
		if j.usageAlways {
			chunk.Usage = j.usage()
		}
		return send(&chunk)
	})
	if err != nil || !j.usageAtEnd {
		return err
	}
	head.Usage = j.usage()
	return send(head)
}
