package api

import (
	"context"
	"strings"

	"reprise/chat"
	"reprise/engine"
)

type chatAnswer struct {
	ID             string                     `json:"id"`
	Object         string                     `json:"object"`
	Created        int64                      `json:"created"`
	Model          string                     `json:"model"`
	Choices        []chatChoice               `json:"choices"`
	Usage          *usage                     `json:"usage,omitempty"`
	PromptLogProbs []map[string]promptLogProb `json:"prompt_logprobs,omitempty"`
	PromptTokenIDs []int32                    `json:"prompt_token_ids,omitempty"`
}

type chatChoice struct {
	Index        int           `json:"index"`
	Message      *chatMessage  `json:"message,omitempty"`
	Delta        *chatDelta    `json:"delta,omitempty"`
	LogProbs     *chatLogProbs `json:"logprobs"`
	FinishReason *string       `json:"finish_reason"`
	StopReason   any           `json:"stop_reason"`
	TokenIDs     []int32       `json:"token_ids,omitempty"`
}

type chatMessage struct {
	Role             string     `json:"role"`
	Content          *string    `json:"content"`
	ReasoningContent *string    `json:"reasoning_content"`
	Reasoning        *string    `json:"reasoning"`
	ToolCalls        []toolCall `json:"tool_calls,omitempty"`
	Refusal          *string    `json:"refusal"`
}

type chatDelta struct {
	Role             string     `json:"role,omitempty"`
	Content          *string    `json:"content,omitempty"`
	ReasoningContent string     `json:"reasoning_content,omitempty"`
	Reasoning        string     `json:"reasoning,omitempty"`
	ToolCalls        []toolCall `json:"tool_calls,omitempty"`
}

func (d *chatDelta) empty() bool {
	return d.Role == "" && d.Content == nil && d.Reasoning == "" && d.ToolCalls == nil
}

type toolCall struct {
	Index    *int         `json:"index,omitempty"` // of chunks only
	ID       string       `json:"id"`
	Type     string       `json:"type"`
	Function toolFunction `json:"function"`
}

type toolFunction struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

// chatState is what is remembered of a choice between steps.
type chatState struct {
	parser *chat.Parser
	calls  int
}

// chatStep is what a step adds to a choice.
type chatStep struct {
	content, reasoning string
	calls              []chat.ToolCall
	ids                []int32
	logProbs           *chatLogProbs
	finish             *string
	stop               any
}

func (j *chatJob) newState() chatState {
	return chatState{parser: chat.NewParser(chat.ParserOptions{
		Prompt: j.rendered, Markers: j.api.markers, Tools: j.tools, ParseCalls: j.parseCalls,
	})}
}

func (j *chatJob) step(c *choice, s *chatState, p *progress) chatStep {
	out := chatStep{stop: p.stop}
	for _, part := range p.pieces {
		j.events(&out, s, s.parser.Push(part.id, part.text))
	}
	if p.reason != "" {
		j.events(&out, s, s.parser.Finish())
		reason := p.reason
		if s.calls > 0 && reason == finishStop {
			reason = finishTools
		}
		out.finish = &reason
	}
	if j.logProbs >= 0 && len(p.tokens) > 0 {
		out.logProbs = c.chatLogProbs(p.tokens)
	}
	if j.returnIDs {
		for _, t := range p.tokens {
			out.ids = append(out.ids, t.ID)
		}
	}
	return out
}

func (j *chatJob) events(out *chatStep, s *chatState, events []chat.Event) {
	for _, e := range events {
		switch e.Kind {
		case chat.ContentDelta:
			out.content += e.Text
		case chat.ReasoningDelta:
			if j.reasoning {
				out.reasoning += e.Text
			}
		case chat.ToolCallEvent:
			if s.calls == 0 || !j.oneCall {
				out.calls = append(out.calls, e.Call)
			}
			s.calls++
		}
	}
}

func (j *chatJob) Streams() bool { return j.stream }

func (j *chatJob) head(object string) *chatAnswer {
	return &chatAnswer{
		ID: j.answerID("chatcmpl-"), Object: object, Created: j.arrived.Unix(), Model: j.api.name(j.model),
		Choices: []chatChoice{},
	}
}

// chatTotal is a choice of a whole answer in the making.
type chatTotal struct {
	chatChoice
	state              chatState
	content, reasoning strings.Builder
	calls              []toolCall
	score              []engine.Token // of the prompt
}

func (t *chatTotal) add(s chatStep) {
	t.content.WriteString(s.content)
	t.reasoning.WriteString(s.reasoning)
	for _, call := range s.calls {
		t.calls = append(t.calls, wireCall(call, false))
	}
	t.TokenIDs = append(t.TokenIDs, s.ids...)
	if t.LogProbs == nil {
		t.LogProbs = s.logProbs
	} else if s.logProbs != nil {
		t.LogProbs.Content = append(t.LogProbs.Content, s.logProbs.Content...)
	}
	t.FinishReason, t.StopReason = s.finish, s.stop
}

func wireCall(c chat.ToolCall, chunk bool) toolCall {
	out := toolCall{ID: c.ID, Type: "function", Function: toolFunction{c.Name, c.Arguments}}
	if chunk {
		out.Index = &c.Index
	}
	return out
}

// choice is the finished choice. Content is null only where tool calls take its place.
func (t *chatTotal) choice() chatChoice {
	m := &chatMessage{Role: "assistant", ToolCalls: t.calls}
	if content := t.content.String(); content != "" || len(t.calls) == 0 {
		m.Content = &content
	}
	if reasoning := t.reasoning.String(); reasoning != "" {
		m.Reasoning, m.ReasoningContent = &reasoning, &reasoning
	}
	t.Message = m
	return t.chatChoice
}

// Answer runs the request and returns the whole answer.
func (j *chatJob) Answer(ctx context.Context) (any, error) {
	if err := j.submit(); err != nil {
		return nil, err
	}
	totals := make([]chatTotal, len(j.choices))
	for i := range totals {
		totals[i].state, totals[i].Index = j.newState(), i
	}
	err := j.drive(ctx, func(c *choice, p *progress) error {
		t := &totals[c.index]
		t.add(j.step(c, &t.state, p))
		if j.promptProbs >= 0 {
			t.score = append(t.score, p.prompt...)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	out := j.head("chat.completion")
	for i := range totals {
		out.Choices = append(out.Choices, totals[i].choice())
	}
	if j.promptProbs >= 0 {
		out.PromptLogProbs = j.choices[0].promptLogProbs(totals[0].score)
	}
	if j.returnIDs {
		out.PromptTokenIDs = j.prompts[0].ids
	}
	out.Usage = j.usage()
	return out, nil
}

// Stream runs the request and sends the answer in chunks; the first of each choice has the role.
func (j *chatJob) Stream(ctx context.Context, send func(any) error) error {
	if err := j.submit(); err != nil {
		return err
	}
	head := j.head("chat.completion.chunk")
	states := make([]chatState, len(j.choices))
	for i := range states {
		states[i] = j.newState()
	}
	emit := func(choice chatChoice, ids []int32) error {
		chunk := *head
		chunk.Choices, chunk.PromptTokenIDs = []chatChoice{choice}, ids
		if j.usageAlways {
			chunk.Usage = j.usage()
		}
		return send(&chunk)
	}
	err := j.drive(ctx, func(c *choice, p *progress) error {
		if p.first {
			if err := emit(j.roleChunk(c), j.shownPrompt()); err != nil {
				return err
			}
		}
		choice := chunkChoice(c.index, j.step(c, &states[c.index], p))
		if choice.Delta.empty() && choice.LogProbs == nil && choice.TokenIDs == nil && choice.FinishReason == nil {
			return nil
		}
		return emit(choice, nil)
	})
	if err != nil || !j.usageAtEnd {
		return err
	}
	head.Usage = j.usage()
	return send(head)
}

func (j *chatJob) shownPrompt() []int32 {
	if !j.returnIDs {
		return nil
	}
	return j.prompts[0].ids
}

func (j *chatJob) roleChunk(c *choice) chatChoice {
	empty := ""
	return chatChoice{Index: c.index, Delta: &chatDelta{Role: "assistant", Content: &empty}}
}

func chunkChoice(index int, s chatStep) chatChoice {
	d := &chatDelta{Reasoning: s.reasoning, ReasoningContent: s.reasoning}
	if s.content != "" {
		d.Content = &s.content
	}
	for _, call := range s.calls {
		d.ToolCalls = append(d.ToolCalls, wireCall(call, true))
	}
	return chatChoice{Index: index, Delta: d, LogProbs: s.logProbs, FinishReason: s.finish, StopReason: s.stop, TokenIDs: s.ids}
}
