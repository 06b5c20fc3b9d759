package main

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"reprise/cmd/internal/cli"
	"reprise/server"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// program is serve without the process.
type program struct {
	url     string
	signals chan os.Signal
	done    chan error
	later   atomic.Int64 // nanoseconds that its clock is ahead of a fixed time
}

func start(t *testing.T, args ...string) *program {
	t.Helper()
	f, err := parse(append([]string{"--port", "0", "--max-model-len", "1024", "--max-num-seqs", "4"}, args...))
	check(t, err)
	l, err := listen(f)
	check(t, err)
	s, err := server.New(server.Config{MetricsPrefix: f.prefix, Keys: f.keys})
	check(t, err)
	p := &program{url: "http://" + l.Addr().String(), signals: make(chan os.Signal, 2), done: make(chan error, 1)}
	f.now = func() time.Time { return time.Unix(0, p.later.Load()) }
	go func() { p.done <- serve(f, s, l, p.signals) }()
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	return p
}

func (p *program) ready(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		answer, err := http.Get(p.url + "/health")
		check(t, err)
		answer.Body.Close()
		if answer.StatusCode == 200 {
			return
		}
		if answer.StatusCode != 503 || time.Now().After(end) {
			t.Fatalf("health answers %d", answer.StatusCode)
		}
	}
}

func (p *program) ended(t *testing.T) error {
	t.Helper()
	select {
	case err := <-p.done:
		return err
	case <-time.After(30 * time.Second):
		t.Fatal("it does not end")
	}
	return nil
}

func TestServeAnswersAndDrains(t *testing.T) {
	p := start(t)
	p.ready(t)
	type reply struct {
		text string
		err  error
	}
	replies := make(chan reply)
	answer, err := http.Post(p.url+"/v1/completions", "application/json", strings.NewReader(`{"prompt":"Once","max_tokens":150,"ignore_eos":true,"stream":true,"stream_options":{"include_usage":true}}`))
	check(t, err)
	go func() {
		text, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		replies <- reply{string(text), err}
	}()
	p.signals <- syscall.SIGTERM
	if r := <-replies; r.err != nil || !strings.HasSuffix(r.text, "data: [DONE]\n\n") || !strings.Contains(r.text, `"completion_tokens":150`) {
		t.Errorf("a request that was running got %v %.300q", r.err, r.text)
	}
	check(t, p.ended(t))
	if _, err := http.Get(p.url + "/health"); err == nil {
		t.Error("it still answers")
	}
}

func TestServeEndsWithinItsBound(t *testing.T) {
	p := start(t, "--shutdown-timeout", "50ms")
	p.ready(t)
	go func() {
		if answer, err := http.Post(p.url+"/v1/completions", "", strings.NewReader(`{"prompt":"Once","max_tokens":1000,"ignore_eos":true,"n":4}`)); err == nil {
			answer.Body.Close()
		}
	}()
	time.Sleep(300 * time.Millisecond)
	p.signals <- os.Interrupt
	check(t, p.ended(t))
}

// TestServeTakesSignalsTogetherAsOne and ends at once for a second one that comes later.
func TestServeTakesSignalsTogetherAsOne(t *testing.T) {
	p := start(t)
	p.ready(t)
	answer, err := http.Post(p.url+"/v1/completions", "application/json", strings.NewReader(`{"prompt":"Once","max_tokens":1000,"ignore_eos":true,"stream":true,"n":8}`))
	check(t, err)
	defer answer.Body.Close()
	p.signals <- syscall.SIGTERM
	p.signals <- syscall.SIGTERM
	select {
	case err := <-p.done:
		t.Fatalf("two signals at once ended it: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	for len(p.signals) > 0 { // the second one came at the time of the first, however busy the machine is
		time.Sleep(time.Millisecond)
	}
	p.later.Store(int64(2 * together))
	p.signals <- syscall.SIGTERM
	if err := p.ended(t); err == nil || !strings.Contains(err.Error(), "second signal") {
		t.Errorf("%v", err)
	}
}

func TestServeTokensOnly(t *testing.T) {
	p := start(t, "demo-nemotron", "--skip-tokenizer-init", "--load-format", "dummy", "--served-model-name", "x")
	p.ready(t)
	answer, err := http.Post(p.url+"/v1/completions", "", strings.NewReader(`{"model":"x","prompt":[1,2,3],"max_tokens":4,"ignore_eos":true}`))
	check(t, err)
	defer answer.Body.Close()
	var out struct {
		Choices []struct {
			IDs []int32 `json:"token_ids"`
		}
	}
	check(t, json.NewDecoder(answer.Body).Decode(&out))
	if len(out.Choices) != 1 || len(out.Choices[0].IDs) != 4 {
		t.Errorf("%+v", out)
	}
	p.signals <- os.Interrupt
	check(t, p.ended(t))
}

// TestServeSmallStates answers with two copies of the state, and says in /metrics what a sequence takes.
func TestServeSmallStates(t *testing.T) {
	for flags, want := range map[string]string{ // 5 layers of 65536 numbers
		"--ssm-rounding nearest": "1.31072e+06",
		"--mamba-ssm-cache-dtype fp8 --ssm-rounding stochastic --ssm-read-dtype nvfp4": "523520", // 1 + 4/128 and 1/2 + 1/16 bytes each, and head scales
	} {
		p := start(t, append([]string{"demo-nemotron"}, strings.Fields(flags)...)...)
		p.ready(t)
		answer, err := http.Post(p.url+"/v1/completions", "", strings.NewReader(`{"prompt":"Once upon a time","max_tokens":40,"ignore_eos":true}`))
		check(t, err)
		text, err := io.ReadAll(answer.Body)
		check(t, err)
		check(t, answer.Body.Close())
		if answer.StatusCode != 200 || !strings.Contains(string(text), `"completion_tokens":40`) {
			t.Errorf("%s: %d %s", flags, answer.StatusCode, text)
		}
		answer, err = http.Get(p.url + "/metrics")
		check(t, err)
		text, err = io.ReadAll(answer.Body)
		check(t, err)
		check(t, answer.Body.Close())
		if line := `reprise:state_bytes_per_sequence{model_name=""} ` + want + "\n"; !strings.Contains(string(text), line) {
			t.Errorf("%s: no %q in the metrics", flags, line)
		}
		p.signals <- os.Interrupt
		check(t, p.ended(t))
	}
}

func TestUsedPort(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	check(t, err)
	if err := run([]string{"--port", port}); err == nil || !strings.Contains(err.Error(), "in use") || !strings.Contains(err.Error(), port) {
		t.Errorf("%v", err)
	}
}

func TestBadStarts(t *testing.T) {
	if err := run([]string{"/no/such", "--port", "0"}); err == nil || !strings.Contains(err.Error(), "/no/such") {
		t.Errorf("%v", err)
	}
	for _, line := range []string{"--port 70000", "--port x", "--api-key=", "--max-body-bytes 0", "--shutdown-timeout -1s", "--bogus", "a b"} {
		var usage *cli.UsageError
		if err := run(strings.Fields(line)); !errors.As(err, &usage) {
			t.Errorf("%s: %v", line, err)
		}
	}
	if err := run([]string{"--port", "0", "--metrics-prefix", "a b"}); err == nil {
		t.Error("a bad metrics prefix was accepted")
	}
}

func TestShownAddress(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	defer l.Close()
	port := strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	for host, want := range map[string]string{"0.0.0.0": "localhost:" + port, "": "localhost:" + port, "127.0.0.1": "127.0.0.1:" + port, "::": "localhost:" + port} {
		if got := shown(host, l.Addr()); got != want {
			t.Errorf("%q: %q, want %q", host, got, want)
		}
	}
}
