package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"go.uber.org/goleak"

	"reprise/chat"
	"reprise/demo"
	"reprise/engine"
	"reprise/kernels/cpu"
	"reprise/sampler"
	"reprise/server/api"
	"reprise/tokenizer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// running is a server with the demo model.
type running struct {
	*Server
	url    string
	engine *engine.Opened
	client *http.Client
}

func start(t testing.TB, c Config, o engine.Options) *running {
	t.Helper()
	folder, err := demo.Open("demo-qwen35")
	if err != nil {
		t.Skip(err)
	}
	dev, err := cpu.Open(cpu.Options{})
	check(t, err)
	if o.MaxLen == 0 {
		o.MaxLen = 2048
	}
	o.MaxLogProbs = 20
	e, err := engine.Open(dev, engine.Source{Folder: folder}, o)
	check(t, err)
	tok, err := tokenizer.Load(folder.Tokenizer, folder.TokenizerConfig)
	check(t, err)
	template, err := chat.NewTemplate(string(folder.ChatTemplate))
	check(t, err)
	c.MetricsPrefix, c.Model = "reprise:", "demo-qwen35"
	s, err := New(c)
	check(t, err)
	a := api.New(api.Config{
		Engine: api.FromEngine(e.Engine), Tokenizer: tok, Template: template, Models: []string{"demo-qwen35"},
		Defaults: sampler.Default(), Observe: s.Observe,
	})
	s.Ready(Backend{API: a, Stats: e.Stats, Err: e.Err, Abort: e.Abort})
	r := &running{Server: s, engine: e, client: &http.Client{Transport: &http.Transport{}}}
	r.listen(t)
	t.Cleanup(func() {
		r.client.CloseIdleConnections()
		e.Abort()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		check(t, s.Shutdown(ctx))
		check(t, e.Close())
		check(t, dev.Close())
	})
	return r
}

func (r *running) listen(t testing.TB) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	r.url = "http://" + l.Addr().String()
	go r.Serve(l)
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// call sends a request and returns status, headers and body.
func (r *running) call(t testing.TB, method, path, body string, header ...string) (int, http.Header, []byte) {
	t.Helper()
	q, err := http.NewRequest(method, r.url+path, strings.NewReader(body))
	check(t, err)
	for i := 0; i+1 < len(header); i += 2 {
		q.Header.Set(header[i], header[i+1])
	}
	answer, err := r.client.Do(q)
	check(t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	check(t, err)
	return answer.StatusCode, answer.Header, text
}

type errorReply struct {
	Error struct {
		Message, Type string
		Param, Code   *string
	}
}

func errorOf(t testing.TB, text []byte) (message, param string) {
	t.Helper()
	var e errorReply
	if err := json.Unmarshal(text, &e); err != nil || e.Error.Message == "" || e.Error.Type == "" {
		t.Errorf("%s is no error object: %v", text, err)
	}
	if e.Error.Param != nil {
		param = *e.Error.Param
	}
	return e.Error.Message, param
}

func TestLargeBodies(t *testing.T) {
	r := start(t, Config{MaxBody: 1 << 20}, engine.Options{})
	for _, length := range []int64{50 << 20, -1} {
		q, err := http.NewRequest("POST", r.url+completions, io.LimitReader(zeros{}, 50<<20))
		check(t, err)
		q.ContentLength = length
		answer, err := r.client.Do(q)
		check(t, err)
		text, _ := io.ReadAll(answer.Body)
		answer.Body.Close()
		if errorOf(t, text); answer.StatusCode != 413 {
			t.Errorf("length %d: %d", length, answer.StatusCode)
		}
	}
	if status, _, _ := r.call(t, "POST", completions, `{"prompt":"x","max_tokens":1}`); status != 200 {
		t.Errorf("the next good request gets %d", status)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = '0'
	}
	return len(p), nil
}

func TestRoutes(t *testing.T) {
	r := start(t, Config{Version: "v1"}, engine.Options{})
	for _, c := range []struct {
		method, path string
		status       int
		words        string
	}{
		{"GET", "/health", 200, ""}, {"GET", "/ping", 200, ""}, {"GET", "/version", 200, "v1"}, {"GET", "/", 200, "<html"},
		{"GET", "/v1/models", 200, `"max_model_len":2048`}, {"GET", "/v1/models/demo-qwen35", 200, `"id":"demo-qwen35"`},
		{"GET", "/v1/models/a/b", 404, "a/b"}, {"GET", "/nope", 404, "/nope"}, {"DELETE", "/v1/models", 405, "DELETE"},
		{"GET", completions, 405, "GET"}, {"GET", "/metrics", 200, `reprise:num_requests_running{model_name="demo-qwen35"} 0`},
		{"GET", "/metrics", 200, `reprise:spec_decode_depth{model_name="demo-qwen35"} 0`},
	} {
		status, _, text := r.call(t, c.method, c.path, "")
		if status != c.status || !bytes.Contains(text, []byte(c.words)) {
			t.Errorf("%s %s: %d %.200s", c.method, c.path, status, text)
		}
		if status >= 400 {
			errorOf(t, text)
		}
	}
}

func TestTokenize(t *testing.T) {
	r := start(t, Config{}, engine.Options{})
	_, _, text := r.call(t, "POST", "/tokenize", `{"prompt":"Once upon a time","return_token_strs":true}`)
	var out struct {
		Count  int
		Tokens []int32
		Texts  []string `json:"token_strs"`
	}
	check(t, json.Unmarshal(text, &out))
	if out.Count == 0 || out.Count != len(out.Tokens) || len(out.Texts) != out.Count {
		t.Errorf("%s", text)
	}
	ids, err := json.Marshal(out.Tokens)
	check(t, err)
	if _, _, text = r.call(t, "POST", "/detokenize", `{"tokens":`+string(ids)+`}`); !bytes.Contains(text, []byte(`"Once upon a time"`)) {
		t.Errorf("%s", text)
	}
	if _, _, text = r.call(t, "POST", "/tokenize", `{`+user+`}`); !bytes.Contains(text, []byte(`"count":`)) {
		t.Errorf("%s", text)
	}
}

func TestKeys(t *testing.T) {
	r := start(t, Config{Keys: []string{"one", "two"}}, engine.Options{})
	for key, want := range map[string]int{"": 401, "Bearer three": 401, "Basic one": 401, "Bearer one": 200, "bearer two": 200} {
		status, header, text := r.call(t, "GET", "/v1/models", "", "Authorization", key)
		if status != want {
			t.Errorf("%q: %d, want %d", key, status, want)
		}
		if status == 401 {
			if errorOf(t, text); header.Get("WWW-Authenticate") == "" {
				t.Error("no WWW-Authenticate")
			}
		}
	}
	if status, _, _ := r.call(t, "GET", "/health", ""); status != 200 {
		t.Errorf("health needs a key: %d", status)
	}
}

func TestOrigins(t *testing.T) {
	r := start(t, Config{AllowedOrigins: []string{"http://good"}}, engine.Options{})
	body := `{"prompt":"x","max_tokens":1}`
	if status, _, _ := r.call(t, "POST", completions, body, "Origin", "http://evil"); status != 403 {
		t.Errorf("another origin gets %d", status)
	}
	if status, h, _ := r.call(t, "POST", completions, body, "Origin", "http://good"); status != 200 || h.Get("Access-Control-Allow-Origin") != "http://good" {
		t.Errorf("an allowed origin gets %d %v", status, h)
	}
	if status, _, _ := r.call(t, "OPTIONS", completions, "", "Origin", "http://good"); status != 204 {
		t.Errorf("preflight gets %d", status)
	}
	if status, _, _ := r.call(t, "POST", completions, body, "Origin", r.url); status != 200 {
		t.Errorf("the own page gets %d", status)
	}
}

func TestNotReady(t *testing.T) {
	s, err := New(Config{MetricsPrefix: "x_"})
	check(t, err)
	r := &running{Server: s, client: &http.Client{Transport: &http.Transport{}}}
	r.listen(t)
	defer s.Shutdown(context.Background())
	defer r.client.CloseIdleConnections()
	for _, path := range []string{"/health", "/v1/models"} {
		if status, _, text := r.call(t, "GET", path, ""); status != 503 {
			t.Errorf("%s: %d %s", path, status, text)
		}
	}
	if status, h, _ := r.call(t, "POST", completions, `{"prompt":"x"}`); status != 503 || h.Get("Retry-After") == "" {
		t.Errorf("%d %v", status, h)
	}
	s.Ready(Backend{Stats: func() engine.Stats { return engine.Stats{} }, Err: func() error { return fmt.Errorf("the device failed") }})
	if status, _, text := r.call(t, "GET", "/health", ""); status != 503 || !bytes.Contains(text, []byte("the device failed")) {
		t.Errorf("with a fault: %d %s", status, text)
	}
	if _, err := New(Config{MetricsPrefix: "a b"}); err == nil {
		t.Error("a bad metrics prefix was accepted")
	}
}

func TestPanicIsOneRequest(t *testing.T) {
	s, err := New(Config{})
	check(t, err)
	s.handler.GET("/panic", func(*gin.Context) { panic("broken") })
	r := &running{Server: s, client: &http.Client{Transport: &http.Transport{}}}
	r.listen(t)
	defer s.Shutdown(context.Background())
	defer r.client.CloseIdleConnections()
	status, _, text := r.call(t, "GET", "/panic", "")
	if errorOf(t, text); status != 500 {
		t.Errorf("%d", status)
	}
}

func TestQueueFull(t *testing.T) {
	r := start(t, Config{}, engine.Options{MaxSeqs: 1, MaxQueue: 2})
	status, header, text := r.call(t, "POST", completions, `{"prompt":["a","b","c","d","e","f","g","h"],"n":4,"max_tokens":200}`)
	if errorOf(t, text); status != 429 || header.Get("Retry-After") == "" {
		t.Errorf("%d %s", status, text)
	}
	idle(t, r.engine)
}

// until waits for a state of the engine that is sure to come and to stay.
func until(t *testing.T, e *engine.Opened, reached func(engine.Stats) bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !reached(e.Stats()); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not reached: %+v", e.Stats())
		}
	}
}

// idle waits until nothing runs.
func idle(t *testing.T, e *engine.Opened) {
	t.Helper()
	until(t, e, func(s engine.Stats) bool { return s.Running == 0 && s.Waiting == 0 })
}

func TestClientGone(t *testing.T) {
	var warnings bytes.Buffer
	r := start(t, Config{Log: slog.New(slog.NewTextHandler(&warnings, &slog.HandlerOptions{Level: slog.LevelWarn}))}, engine.Options{})
	for _, stream := range []string{"true", "false"} {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		body := `{"prompt":"Once","max_tokens":2000,"ignore_eos":true,"n":2,"stream":` + stream + `}`
		q, err := http.NewRequestWithContext(ctx, "POST", r.url+completions, strings.NewReader(body))
		check(t, err)
		go func() {
			for r.engine.Stats().Running < 2 && ctx.Err() == nil {
				time.Sleep(time.Millisecond)
			}
			cancel()
		}()
		if answer, err := r.client.Do(q); err == nil {
			_, _ = io.Copy(io.Discard, answer.Body)
			answer.Body.Close()
		}
		idle(t, r.engine)
	}
	if s := r.engine.Stats(); s.Aborted != 4 || s.Cut != 0 {
		t.Errorf("%+v", s)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	check(t, r.Shutdown(ctx)) // waits for the handlers, and so for what they log
	if warnings.Len() > 0 {
		t.Errorf("that clients left was logged as a warning: %s", warnings.String())
	}
}

// TestEventFraming reads a stream byte by byte as the format says.
func TestEventFraming(t *testing.T) {
	r := start(t, Config{}, engine.Options{})
	_, header, text := r.call(t, "POST", chats, `{`+user+`,"max_tokens":8,"stream":true,"seed":1}`)
	if !strings.HasPrefix(header.Get("Content-Type"), "text/event-stream") {
		t.Errorf("content type %q", header.Get("Content-Type"))
	}
	events := strings.Split(string(text), "\n\n")
	if n := len(events); n < 4 || events[n-1] != "" || events[n-2] != "data: [DONE]" {
		t.Fatalf("%q", events)
	}
	for _, e := range events[:len(events)-2] {
		data, ok := strings.CutPrefix(e, "data: ")
		if !ok || strings.Contains(data, "\n") || !json.Valid([]byte(data)) {
			t.Errorf("event %q", e)
		}
	}
}

// smallBuffers accepts connections that hold little of what nobody reads.
type smallBuffers struct{ net.Listener }

func (s smallBuffers) Accept() (net.Conn, error) {
	conn, err := s.Listener.Accept()
	if err == nil {
		err = conn.(*net.TCPConn).SetWriteBuffer(4096)
	}
	return conn, err
}

// stall posts body through small buffers and reads no further than the beginning of the answer.
func (r *running) stall(t *testing.T, path, body string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	go r.Serve(smallBuffers{l})
	conn, err := net.Dial("tcp", l.Addr().String())
	check(t, err)
	t.Cleanup(func() { conn.Close() })
	check(t, conn.(*net.TCPConn).SetReadBuffer(4096))
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", path, len(body), body)
	_, err = bufio.NewReaderSize(conn, 16).Peek(10)
	check(t, err)
}

// TestSlowReader lets one client stop reading while others go on.
func TestSlowReader(t *testing.T) {
	r := start(t, Config{WriteTimeout: time.Second}, engine.Options{})
	body := `{"prompt":[5],"max_tokens":1900,"ignore_eos":true,"stream":true,"logprobs":20,"n":8}`
	r.stall(t, completions, body)
	if status, _, text := r.call(t, "POST", completions, `{"prompt":"x","max_tokens":5}`); status != 200 {
		t.Errorf("%d %s", status, text)
	}
	idle(t, r.engine)
	if s := r.engine.Stats(); s.Aborted != 8 {
		t.Errorf("%+v, want 8 aborted sequences", s)
	}
}

// TestSlowReaderOfAWholeAnswer has a client that never reads: its connection is given up, and the server can end.
func TestSlowReaderOfAWholeAnswer(t *testing.T) {
	r := start(t, Config{WriteTimeout: 300 * time.Millisecond}, engine.Options{})
	body := `{"return_token_strs":true,"prompt":"` + strings.Repeat("Once upon a time ", 50_000) + `"}`
	r.stall(t, "/tokenize", body)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	check(t, r.Shutdown(ctx))
}

// TestDrain shuts the server down while four streams are being read: each gets all of its events.
func TestDrain(t *testing.T) {
	r := start(t, Config{}, engine.Options{})
	var begun, ended sync.WaitGroup
	begun.Add(4)
	for range 4 {
		ended.Go(func() {
			body := `{"prompt":"Once","max_tokens":200,"ignore_eos":true,"stream":true}`
			answer, err := r.client.Post(r.url+completions, "application/json", strings.NewReader(body))
			begun.Done()
			if err != nil {
				t.Error(err)
				return
			}
			defer answer.Body.Close()
			text, err := io.ReadAll(answer.Body)
			if err != nil || answer.StatusCode != 200 || !bytes.HasSuffix(text, []byte("data: [DONE]\n\n")) {
				t.Errorf("%v, %d %s", err, answer.StatusCode, text)
			}
		})
	}
	begun.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	check(t, r.Shutdown(ctx))
	ended.Wait()
	if _, e := r.available(); e == nil || e.Status != 503 {
		t.Errorf("%v", e)
	}
}

// TestDrainIsBounded: requests that do not end in time get an error, not a broken connection.
func TestDrainIsBounded(t *testing.T) {
	r := start(t, Config{}, engine.Options{})
	var wait sync.WaitGroup
	for stream, want := range map[string]string{"false": "503", "true": ""} { // a stream that has begun has its status
		wait.Go(func() {
			body := `{"prompt":"Once","max_tokens":2000,"ignore_eos":true,"stream":` + stream + `}`
			answer, err := r.client.Post(r.url+completions, "application/json", strings.NewReader(body))
			if err != nil {
				t.Error(err)
				return
			}
			defer answer.Body.Close()
			text, err := io.ReadAll(answer.Body)
			if err != nil || !strings.HasPrefix(answer.Status, want) || !bytes.Contains(text, []byte("it is shutting down")) {
				t.Errorf("stream %s: %s, %v: %s", stream, answer.Status, err, text)
			}
		})
	}
	until(t, r.engine, func(s engine.Stats) bool { return s.Running == 2 })
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if err := r.Shutdown(ctx); err == nil {
		t.Error("requests that run on were not reported")
	}
	wait.Wait()
	idle(t, r.engine)
}

// TestLargeBodiesTakeTurns: while as many as may be are understood, a small body is, a large one waits, and one whose client
// leaves gives up its turn.
func TestLargeBodiesTakeTurns(t *testing.T) {
	s, err := New(Config{Model: "m"})
	check(t, err)
	hold, inside := make(chan struct{}), make(chan struct{}, largeAtOnce+1)
	parse := func(_ *api.API, body []byte) (int, error) {
		if len(body) >= largeBody {
			inside <- struct{}{}
			<-hold
		}
		return len(body), nil
	}
	ask := func(ctx context.Context, size int) (int, error) {
		return understand(s, &gin.Context{Request: (&http.Request{}).WithContext(ctx)}, nil, make([]byte, size), parse)
	}
	var group sync.WaitGroup
	for range largeAtOnce + 1 {
		group.Go(func() {
			if n, err := ask(context.Background(), largeBody); n != largeBody || err != nil {
				t.Errorf("%d bytes, %v", n, err)
			}
		})
	}
	for range largeAtOnce {
		<-inside
	}
	if n, err := ask(context.Background(), largeBody-1); n != largeBody-1 || err != nil {
		t.Errorf("a small one: %d bytes, %v", n, err)
	}
	gone, leave := context.WithCancel(context.Background())
	leave()
	if _, err := ask(gone, largeBody); api.AsError(err).Status != api.StatusClientGone {
		t.Errorf("a client that left: %v", err)
	}
	if len(inside) != 0 {
		t.Errorf("%d more than %d at once", len(inside), largeAtOnce)
	}
	close(hold)
	group.Wait()
}
