package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"
)

// longCall takes much longer than any test waits.
var longCall = call{completions, `{"prompt":[1,2,3],"max_tokens":100000,"ignore_eos":true,"return_token_ids":true}`}

// running waits until the server works on something.
func (s *server) running(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); s.metric("reprise:generation_tokens_total") == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("nothing runs")
		}
	}
}

// TestTerminateDrains: SIGTERM lets running requests finish, refuses new ones, and ends with 0.
func TestTerminateDrains(t *testing.T) {
	s := serve(t, append(soakModel(t), "--max-num-seqs", "2")...)
	c := call{completions, `{"prompt":[1,2,3],"max_tokens":200,"ignore_eos":true,"return_token_ids":true,"temperature":0}`}
	want, err := s.whole(c)
	if err != nil {
		t.Fatal(err)
	}
	tokens := s.metric("reprise:generation_tokens_total")
	type result struct {
		choices
		error
	}
	streamed := make(chan result, 1)
	go func() {
		out, err := s.stream(c, 0, 0)
		streamed <- result{out, err}
	}()
	for s.metric("reprise:generation_tokens_total") == tokens {
		time.Sleep(time.Millisecond)
	}
	if err := s.command.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if r := <-streamed; r.error != nil || r.String() != want.String() {
		t.Errorf("while draining: %s (%v), want %s", r.choices, r.error, want)
	}
	if code := s.end(endWithin); code != 0 {
		t.Errorf("exit code %d: %s", code, s.stderr.String())
	}
	if _, err := s.post(context.Background(), c.path, c.body); err == nil {
		t.Error("the ended server answers")
	}
}

// TestTerminateIsBounded: what does not finish within --shutdown-timeout is cut, and the exit code is still 0.
func TestTerminateIsBounded(t *testing.T) {
	s := serve(t, append(soakModel(t)[:8], "--max-model-len", "200000", "--max-num-seqs", "2", "--shutdown-timeout", "300ms")...)
	go s.stream(longCall, 0, 0)
	s.running(t)
	begin := time.Now()
	s.terminate(endWithin)
	if d := time.Since(begin); d < 300*time.Millisecond { // terminate bounds it from above
		t.Errorf("ended after %s, before the 300 ms that running requests have", d)
	}
}

// TestSecondSignalEndsAtOnce does not wait for anything. Signals close together count as one, so more follow until one is
// later.
func TestSecondSignalEndsAtOnce(t *testing.T) {
	s := serve(t, append(soakModel(t)[:8], "--max-model-len", "200000", "--max-num-seqs", "2", "--shutdown-timeout", "10m")...)
	go s.stream(longCall, 0, 0)
	s.running(t)
	signal := syscall.SIGTERM
	for tries := 0; tries < 30 && s.command.Process.Signal(signal) == nil; tries++ {
		time.Sleep(300 * time.Millisecond)
		signal = syscall.SIGINT
	}
	if code := s.end(endWithin); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
}

// TestTerminateWhileIdle ends at once with 0.
func TestTerminateWhileIdle(t *testing.T) {
	s := serve(t, soakModel(t)...)
	s.terminate(endWithin)
}

// TestStartFailures are one line and an exit code above 0.
func TestStartFailures(t *testing.T) {
	s := serve(t, soakModel(t)...)
	port := s.url[strings.LastIndexByte(s.url, ':')+1:]
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{append(soakModel(t), "--port", port), 1, "already in use"},
		{[]string{"--portt", "1"}, 2, "did you mean --port"},
		{[]string{"--model", "/nonexistent"}, 1, "/nonexistent"},
		{[]string{"--tensor-parallel-size", "2"}, 2, "only 1"},
		{[]string{"--speculative-config", "{"}, 2, "--speculative-config"},
		{append(soakModel(t), "--num-kv-blocks", "1", "--replayssm-buffer-len", "1", "--speculative-config", `{"method":"mtp","num_speculative_tokens":3}`), 1, ""},
	} {
		p := start(t, "serve", append([]string{"--port", "0"}, c.args...)...)
		code, text := p.end(endWithin), p.stderr.String()
		if code != c.code || strings.Count(text, "\n") != 1 || !strings.Contains(text, c.want) {
			t.Errorf("%v: exit code %d, %q; want %d and %q", c.args, code, text, c.code, c.want)
		}
	}
	if status, body := s.get("/health"); status != http.StatusOK {
		t.Error(fmt.Sprint(status, body))
	}
}
