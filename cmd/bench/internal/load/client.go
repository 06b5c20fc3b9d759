package load

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Client talks to one server. Safe for concurrent use.
type Client struct {
	base    string // ends with /v1
	key     string
	body    Body
	timeout time.Duration
	http    *http.Client
	readers sync.Pool // of *events
}

// NewClient makes a client for a server at baseURL, with or without /v1. A request may take timeout in all. transport nil
// means an own one without a limit of connections.
func NewClient(baseURL, key string, timeout time.Duration, transport http.RoundTripper) *Client {
	if transport == nil {
		transport = &http.Transport{
			Proxy: http.ProxyFromEnvironment, MaxIdleConnsPerHost: 1 << 16, DisableCompression: true, IdleConnTimeout: time.Minute,
			DialContext: (&net.Dialer{Timeout: 30 * time.Second}).DialContext,
		}
	}
	base := strings.TrimSuffix(strings.TrimSuffix(baseURL, "/"), "/v1") + "/v1"
	c := &Client{base: base, key: key, timeout: timeout, http: &http.Client{Transport: transport}}
	c.readers.New = func() any { return &events{now: time.Now} }
	return c
}

// With sets what every request carries; before the first request.
func (c *Client) With(b Body) { c.body = b }

// Close lets go of idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Model is what a server says of a model.
type Model struct {
	ID     string `json:"id"`
	MaxLen int    `json:"max_model_len"` // 0 = it does not say
	Vocab  int    `json:"vocab_size"`    // 0 = it does not say
}

// maxAnswer bounds answers that are read as a whole.
const maxAnswer = 1 << 20

// Models asks which models are served.
func (c *Client) Models(ctx context.Context) ([]Model, error) {
	ctx, cancel := context.WithTimeout(ctx, min(c.timeout, 30*time.Second))
	defer cancel()
	answer, err := c.send(ctx, http.MethodGet, "/models", nil)
	if err != nil {
		return nil, fmt.Errorf("cannot ask %s: %w", c.base, err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
	if err != nil {
		return nil, err
	}
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s/models answers %s: %s", c.base, answer.Status, problemOf(text))
	}
	var list struct{ Data []Model }
	if err := json.Unmarshal(text, &list); err != nil || len(list.Data) == 0 {
		return nil, fmt.Errorf("%s/models does not list models as OpenAI's API does: %.100q", c.base, text)
	}
	return list.Data, nil
}

func (c *Client) send(ctx context.Context, method, path string, body []byte) (*http.Response, error) {
	q, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if c.key != "" {
		q.Header.Set("Authorization", "Bearer "+c.key)
	}
	if body != nil {
		q.Header.Set("Content-Type", "application/json")
		q.Header.Set("Accept", "text/event-stream")
	}
	return c.http.Do(q)
}

// Kinds of errors, beside "http 429" and the like.
const (
	KindConnect    = "connect"    // no connection, or lost before an answer
	KindTimeout    = "timeout"    // longer than a request may take
	KindDisconnect = "disconnect" // the stream broke off
	KindMalformed  = "malformed"  // not what the protocol says
	KindInStream   = "in stream"  // the server reported an error after it had begun to answer
	KindEmpty      = "empty"      // an answer without a token
)

// Failure is a request without a full answer.
type Failure struct{ Kind, Detail string }

// post sends a request and fills in what comes back. clock gives the time since the begin of the run.
func (c *Client) post(ctx context.Context, path string, body []byte, o *Outcome, begin time.Time) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	o.Sent = time.Since(begin)
	answer, err := c.send(ctx, http.MethodPost, path, body)
	if err != nil {
		o.fail(failure(err, KindConnect))
	} else {
		o.fail(c.read(answer, o, begin))
		answer.Body.Close()
	}
	o.End = time.Since(begin)
}

// failure sorts an error that a connection gave; kind is for those that say nothing of themselves.
func failure(err error, kind string) *Failure {
	var bad *badStream
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		kind = KindTimeout
	case errors.As(err, &bad):
		kind = KindMalformed
	}
	text := err.Error()
	return &Failure{kind, text[:min(len(text), 300)]}
}

func problemOf(text []byte) string {
	var e struct{ Error json.RawMessage }
	if json.Unmarshal(text, &e) == nil && e.Error != nil {
		return message(e.Error)
	}
	return string(text[:min(len(text), 200)])
}

// read reads a streamed answer to its end.
func (c *Client) read(answer *http.Response, o *Outcome, begin time.Time) *Failure {
	if answer.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(answer.Body, maxAnswer)) // what is there of it
		return &Failure{fmt.Sprintf("http %d", answer.StatusCode), problemOf(text)}
	}
	if kind := answer.Header.Get("Content-Type"); !strings.HasPrefix(kind, "text/event-stream") {
		return &Failure{KindMalformed, fmt.Sprintf("the answer is no stream of events but %.100q", kind)}
	}
	e := c.readers.Get().(*events)
	defer c.readers.Put(e)
	e.reset(answer.Body)
	t := tally{o: o, running: -1}
	for {
		data, err := e.next()
		switch {
		case err == io.EOF && t.finished: // some servers leave out the end mark
			return t.close()
		case err == io.EOF:
			return &Failure{KindDisconnect, fmt.Sprintf("the stream ended after %d tokens without a finish_reason", o.Output)}
		case err != nil:
			return failure(err, KindDisconnect)
		case string(data) == "[DONE]":
			_, _ = io.Copy(io.Discard, io.LimitReader(answer.Body, maxAnswer)) // so that the connection can be used again
			return t.close()
		}
		if f := t.add(data, e.at.Sub(begin)); f != nil {
			return f
		}
	}
}

// tally counts the tokens of one stream.
type tally struct {
	o        *Outcome
	running  int // completion_tokens of the last usage; -1 = none yet
	finished bool
}

func (t *tally) add(data []byte, at time.Duration) *Failure {
	c, err := parseChunk(data)
	switch {
	case err != nil:
		return failure(err, KindMalformed)
	case c.problem != nil:
		return &Failure{KindInStream, message(c.problem)}
	}
	t.finished = t.finished || c.finished
	if c.prompt >= 0 {
		t.o.Input = c.prompt
	}
	if n := t.tokens(c); n > 0 {
		t.o.arrived(n, at)
	}
	return nil
}

// tokens is how many tokens a chunk brings.
func (t *tally) tokens(c chunk) int {
	before := max(t.running, 0)
	if c.completion >= 0 {
		t.running = c.completion
	}
	switch {
	case c.ids >= 0:
		return c.ids
	case c.completion >= 0 && (c.text || c.finished):
		return t.running - max(before, t.o.Output)
	case c.text:
		return 1
	}
	return 0
}

// close corrects the count by the usage.
func (t *tally) close() *Failure {
	if t.o.Chunks == 0 {
		return &Failure{KindEmpty, "the answer has no tokens"}
	}
	if t.running > 0 {
		t.o.Output = t.running
	}
	return nil
}
