package load

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"reprise/internal/plainjson"
)

// ReadPrompts reads prompts: a JSON array of objects, JSON lines, or else one prompt a line. An object has one of
//
//	prompt         text or an array of token ids
//	text           text
//	messages       of a chat
//	turns          the first one counts (MT-Bench)
//	conversations  [{"from","value"}], the first value counts (ShareGPT)
//	body           a request as batch files have it, with prompt or messages
//
// and may have max_tokens or max_completion_tokens. Errors name the line or the entry.
func ReadPrompts(r io.Reader) ([]Job, error) {
	b := bufio.NewReaderSize(r, 1<<16)
	first, err := b.Peek(sampleBytes)
	if err != nil && err != io.EOF {
		return nil, err
	}
	if !isText(first) {
		return nil, errors.New("this is no text; prompts are text, one a line, or JSON, not compressed")
	}
	var jobs []Job
	err = nil
	switch {
	case len(first) == 0:
	case first[0] == '[':
		jobs, err = promptArray(b)
	default:
		asJSON := first[0] == '{'
		err = lines(b, func(_ int, line []byte) error {
			if !asJSON {
				jobs = append(jobs, Job{Prompt: Prompt{Text: string(line)}})
				return nil
			}
			j, err := promptObject(line)
			jobs = append(jobs, j)
			return err
		})
	}
	if err == nil && len(jobs) == 0 {
		err = errors.New("no prompts")
	}
	return jobs, err
}

func promptArray(r io.Reader) ([]Job, error) {
	var entries []json.RawMessage
	if err := json.NewDecoder(r).Decode(&entries); err != nil {
		return nil, plainjson.Explain(err)
	}
	var jobs []Job
	for i, e := range entries {
		j, err := promptObject(e)
		if err != nil {
			return nil, fmt.Errorf("entry %d: %w", i+1, err)
		}
		jobs = append(jobs, j)
	}
	return jobs, nil
}

type promptFields struct {
	Prompt        json.RawMessage          `json:"prompt"`
	Text          string                   `json:"text"`
	Messages      json.RawMessage          `json:"messages"`
	Turns         []string                 `json:"turns"`
	Conversations []struct{ Value string } `json:"conversations"`
	Body          *promptFields            `json:"body"`
	MaxTokens     int                      `json:"max_tokens"`
	MaxCompletion int                      `json:"max_completion_tokens"`
}

func promptObject(line []byte) (Job, error) {
	var in promptFields
	if err := plainjson.Decode(line, &in, false); err != nil {
		return Job{}, err
	}
	f := &in
	if f.Body != nil {
		f = f.Body
	}
	j := Job{Output: max(f.MaxTokens, f.MaxCompletion, 0)}
	err := j.Prompt.read(f)
	if j.Output > MaxLength {
		err = fmt.Errorf("max_tokens %d is more than %d", j.Output, MaxLength)
	}
	return j, err
}

func (p *Prompt) read(f *promptFields) error {
	switch {
	case len(f.Messages) > 0 && f.Messages[0] == '[':
		p.Messages = f.Messages
	case len(f.Prompt) > 0 && f.Prompt[0] == '[':
		if err := plainjson.Decode(f.Prompt, &p.IDs, false); err != nil {
			return fmt.Errorf("prompt: %w", err)
		}
	case len(f.Prompt) > 0:
		if err := plainjson.Decode(f.Prompt, &p.Text, false); err != nil {
			return fmt.Errorf("prompt: %w", err)
		}
	case len(f.Turns) > 0:
		p.Text = f.Turns[0]
	case len(f.Conversations) > 0:
		p.Text = f.Conversations[0].Value
	default:
		p.Text = f.Text
	}
	if p.Messages == nil && len(p.IDs) == 0 && strings.TrimSpace(p.Text) == "" {
		return errors.New("no prompt: neither prompt, text, messages, turns, conversations nor body")
	}
	return nil
}
