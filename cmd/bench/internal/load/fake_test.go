package load

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// pipes is a network inside a synctest bubble: connections are pipes, so that time stands still while anything runs.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.once.Do(func() { close(p.done) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

func (p *pipes) dial(context.Context, string, string) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case p.conns <- far:
		return near, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

// asked is what a client sent.
type asked struct {
	MaxTokens int   `json:"max_tokens"`
	Prompt    []int `json:"prompt"`
}

// withServer runs f in a bubble with a client of a server that answers the nth request (from 0) with handle.
func withServer(t *testing.T, timeout time.Duration, handle func(n int, q asked, w http.ResponseWriter), f func(c *Client)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
		var count atomic.Int64
		s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			var q asked
			if r.Method == http.MethodPost {
				if err := json.Unmarshal(body, &q); err != nil {
					t.Errorf("%s: %v", body, err)
				}
			}
			handle(int(count.Add(1))-1, q, w)
		})}
		var serving sync.WaitGroup
		serving.Go(func() { _ = s.Serve(p) })
		transport := &http.Transport{DialContext: p.dial, MaxIdleConnsPerHost: 1000}
		c := NewClient("http://fake", "", timeout, transport)
		f(c)
		c.Close()
		if err := s.Shutdown(context.Background()); err != nil { // handlers come to their end
			t.Error(err)
		}
		serving.Wait()
	})
}

// script writes chunks: first after one time, the others after another each.
func script(w http.ResponseWriter, first, gap time.Duration, tokens int) {
	w.Header().Set("Content-Type", "text/event-stream")
	flush := http.NewResponseController(w).Flush
	w.WriteHeader(http.StatusOK)
	_ = flush()
	for i := range tokens {
		time.Sleep(map[bool]time.Duration{true: first, false: gap}[i == 0])
		finish := "null"
		if i == tokens-1 {
			finish = `"length"`
		}
		fmt.Fprintf(w, `data: {"choices":[{"index":0,"text":"a","finish_reason":%s,"token_ids":[%d]}]}`+"\n\n", finish, i)
		_ = flush()
	}
	fmt.Fprintf(w, `data: {"choices":[],"usage":{"prompt_tokens":11,"completion_tokens":%d}}`+"\n\ndata: [DONE]\n\n", tokens)
}

// fixedSource asks for prompts of 3 ids and n tokens.
func fixedSource(n int) Source {
	return func() (Job, bool) { return Job{Prompt{IDs: []int32{1, 2, 3}}, n}, true }
}
