package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// call is a request whose answer depends on nothing but itself.
type call struct{ path, body string }

const (
	completions = "/v1/completions"
	chats       = "/v1/chat/completions"
)

// streaming is the same call with its answer as events.
func (c call) streaming() call { return call{c.path, c.body[:len(c.body)-1] + `,"stream":true}`} }

// choices are what a call said, by index.
type choices map[int]*choice

type choice struct {
	text, reason string
	ids          []int32
}

// String is the choices on one line, for comparison.
func (c choices) String() string {
	var b strings.Builder
	for i := range len(c) {
		if c[i] != nil {
			fmt.Fprintf(&b, "%d: %q %v %s; ", i, c[i].text, c[i].ids, c[i].reason)
		}
	}
	return b.String()
}

// begins reports whether everything in c is the beginning of the same choice of whole.
func (c choices) begins(whole choices) bool {
	for i, part := range c {
		w := whole[i]
		if w == nil || !strings.HasPrefix(w.text, part.text) || len(part.ids) > len(w.ids) {
			return false
		}
		for k, id := range part.ids {
			if id != w.ids[k] {
				return false
			}
		}
	}
	return true
}

// part is an answer or an event of one.
type part struct {
	Choices []struct {
		Index        int     `json:"index"`
		Text         string  `json:"text"`
		FinishReason *string `json:"finish_reason"`
		TokenIDs     []int32 `json:"token_ids"`
		Delta        message `json:"delta"`
		Message      message `json:"message"`
	} `json:"choices"`
	Error json.RawMessage `json:"error"`
}

type message struct {
	Content   string `json:"content"`
	Reasoning string `json:"reasoning_content"`
}

// add takes over what a part says.
func (c choices) add(text string) error {
	var p part
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		return fmt.Errorf("%q: %w", text, err)
	}
	if p.Error != nil {
		return fmt.Errorf("error %s", p.Error)
	}
	for _, from := range p.Choices {
		to := c[from.Index]
		if to == nil {
			to = &choice{}
			c[from.Index] = to
		}
		to.text += from.Text + from.Delta.Reasoning + from.Delta.Content + from.Message.Reasoning + from.Message.Content
		to.ids = append(to.ids, from.TokenIDs...)
		if from.FinishReason != nil {
			to.reason = *from.FinishReason
		}
	}
	return nil
}

// whole sends a call and reads its answer.
func (s *server) whole(c call) (choices, error) {
	a, err := s.post(context.Background(), c.path, c.body)
	if err != nil {
		return nil, err
	}
	if a.status != http.StatusOK {
		return nil, fmt.Errorf("%d %s", a.status, a.body)
	}
	out := choices{}
	return out, out.add(a.body)
}

// errCut is what stream returns when it was told to stop reading.
var errCut = errors.New("cut")

// stream sends a call, reads its events with a pause before each, and hangs up after at most events of them, if that is
// not 0.
func (s *server) stream(c call, pause time.Duration, events int) (choices, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	r, err := s.open(ctx, c.path, c.streaming().body)
	if err != nil {
		return nil, err
	}
	defer r.Body.Close()
	out := choices{}
	lines := bufio.NewScanner(r.Body)
	lines.Buffer(nil, 1<<20)
	for n := 0; lines.Scan(); {
		data, isData := strings.CutPrefix(lines.Text(), "data: ")
		switch {
		case lines.Text() == "":
			continue
		case !isData:
			rest, _ := io.ReadAll(r.Body)
			return nil, fmt.Errorf("%d %s%s", r.StatusCode, lines.Text(), rest)
		case data == "[DONE]":
			return out, nil
		}
		if err := out.add(data); err != nil {
			return nil, err
		}
		if n++; n == events {
			return out, errCut
		}
		time.Sleep(pause)
	}
	return out, fmt.Errorf("the stream ends without [DONE]: %v", lines.Err())
}
