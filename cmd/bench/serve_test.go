package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"image/png"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"go.uber.org/goleak"

	"reprise/cmd/bench/internal/load"
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

// bench runs bench serve and returns what it prints.
func bench(t *testing.T, args ...string) (string, error) {
	t.Helper()
	return benchUntil(t, context.Background(), args...)
}

func benchUntil(t *testing.T, ctx context.Context, args ...string) (string, error) {
	t.Helper()
	f := serveFlags{}
	fs := cli.NewFlags("bench serve", serveUsage)
	f.register(fs)
	_, err := cli.Parse(fs, args)
	check(t, err)
	if err := f.check(); err != nil {
		return "", err
	}
	var out bytes.Buffer
	err = f.run(ctx, &out)
	return out.String(), err
}

// words leaves one blank between words.
func words(text string) string { return strings.Join(strings.Fields(text), " ") }

func rows(t *testing.T, text string) (out []load.Row) {
	t.Helper()
	for line := range strings.Lines(text) {
		var r load.Row
		d := json.NewDecoder(strings.NewReader(line))
		d.DisallowUnknownFields()
		check(t, d.Decode(&r))
		out = append(out, r)
	}
	return out
}

// demoServer serves a built-in model.
func demoServer(t *testing.T) (url string) {
	t.Helper()
	var m cli.Model
	fs := cli.NewFlags("test", "")
	m.Register(fs)
	_, err := cli.Parse(fs, []string{"--model", "demo-nemotron", "--max-model-len", "512", "--max-num-seqs", "4"})
	check(t, err)
	loaded, err := m.Load(nil)
	check(t, err)
	s, err := server.New(server.Config{Model: "demo", Keys: []string{"secret"}, MetricsPrefix: "reprise:"})
	check(t, err)
	s.Ready(server.Backend{API: loaded.API(s.Observe), Stats: loaded.Engine.Stats, Err: loaded.Engine.Err})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := errors.Join(s.Shutdown(ctx), <-served, loaded.Close()); err != nil && !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return "http://" + l.Addr().String()
}

func TestOwnServer(t *testing.T) {
	url, dir := demoServer(t), t.TempDir()
	file, picture := filepath.Join(dir, "rows.jsonl"), filepath.Join(dir, "picture.png")
	out, err := bench(t, "--base-url", url+"/v1/", "--api-key", "secret", "--rates", "50,100", "--requests", "6", "--input-len", "3-40", "--output-len", "8",
		"--prefix-len", "5", "--json", "--output-file", file, "--plot", picture, "--slo", "e2e=10m")
	check(t, err)
	got := rows(t, out)
	if len(got) == 0 || len(got) > 2 { // a slow machine may be saturated by the first
		t.Fatalf("%d rows", len(got))
	}
	for _, r := range got {
		if r.Completed != 6 || r.Failed != 0 || r.Short != 0 || r.GoodShare != 1 || r.OutputRate <= 0 || r.InputRate <= r.OutputRate/8*8/10 || r.ChunkTokens < 1 {
			t.Errorf("%+v", r)
		}
		if r.TTFT.P50 <= 0 || r.E2E.P50 < r.TTFT.P50 || r.E2E.Max < r.E2E.P99 {
			t.Errorf("%+v", r)
		}
	}
	written, err := os.ReadFile(file)
	check(t, err)
	if string(written) != out {
		t.Errorf("the file has %s", written)
	}
	f, err := os.Open(picture)
	check(t, err)
	defer f.Close()
	if _, err := png.Decode(f); err != nil {
		t.Error(err)
	}
	out, err = bench(t, "--base-url", url, "--api-key", "secret", "--trace", "internal/load/testdata/azure.csv", "--max-input-len", "30", "--max-output-len", "5", "--speed", "100")
	check(t, err)
	for _, words := range []string{"trace x 100: 5 requests", "5 completed, 0 failed", "between tokens", "sent late"} {
		if !strings.Contains(out, words) {
			t.Errorf("no %q in\n%s", words, out)
		}
	}
	if _, err = bench(t, "--base-url", url, "--api-key", "wrong", "--model", "demo"); err == nil || !strings.Contains(err.Error(), "http 401") {
		t.Errorf("a wrong key: %v", err)
	}
	if _, err = bench(t, "--base-url", url, "--api-key", "secret", "--vocab-size", "1000000000", "--requests", "1"); err == nil || !strings.Contains(err.Error(), "vocabulary") {
		t.Errorf("ids that the model does not know: %v", err)
	}
}

// fake answers the nth completion with handle.
func fake(t *testing.T, handle func(n int64, w http.ResponseWriter)) string {
	t.Helper()
	var n atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/models") {
			fmt.Fprint(w, `{"data":[{"id":"other"},{"id":"m"}]}`)
			return
		}
		handle(n.Add(1)-1, w)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

func token(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/event-stream")
	fmt.Fprint(w, `data: {"choices":[{"text":"a","finish_reason":"length"}]}`+"\n\ndata: [DONE]\n\n")
}

func TestASweepEndsAtSaturation(t *testing.T) {
	url := fake(t, func(n int64, w http.ResponseWriter) {
		if n%2 == 0 {
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		token(w)
	})
	out, err := bench(t, "--base-url", url, "--warmup", "0", "--rates", "1000,2000,4000", "--requests", "20", "--output-len", "1", "--json")
	check(t, err)
	if got := rows(t, out); len(got) != 1 || !got[0].Saturated || got[0].Errors["http 429"] != 10 || got[0].Completed != 10 {
		t.Errorf("%+v", got)
	}
	out, err = bench(t, "--base-url", url, "--warmup", "0", "--concurrency", "1,3", "--requests", "20", "--output-len", "1", "--prompts", "internal/load/testdata/batch.jsonl")
	check(t, err)
	if !strings.Contains(out, "10 x http 429") || !strings.Contains(out, "concurrency 1: 20") || !strings.Contains(out, "concurrency 3: 20") || !strings.Contains(out, "goodput  TTFT") {
		t.Errorf("%s", out)
	}
}

// twoRequests is a trace of two requests, 10 ms apart.
func twoRequests(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "two.jsonl")
	check(t, os.WriteFile(path, []byte(`{"timestamp":0,"input_length":5,"output_length":1}`+"\n"+`{"timestamp":10,"input_length":7,"output_length":1}`+"\n"), 0o666))
	return path
}

// A warm-up takes nothing of a trace, and more requests than it has go through it again; a replayed one ends.
func TestEveryRequestOfATraceIsMeasured(t *testing.T) {
	var sent atomic.Int64
	url := fake(t, func(n int64, w http.ResponseWriter) { sent.Store(n + 1); token(w) })
	before := int64(0)
	for _, c := range []struct {
		flags          string
		measured, sent int
	}{{"--concurrency 1", 2, 4}, {"--rates 1000", 2, 4}, {"--concurrency 2 --requests 10", 10, 12}, {"--requests 10", 2, 2}, {"--requests 1", 1, 1}} {
		out, err := bench(t, append(strings.Fields(c.flags), "--base-url", url, "--trace", twoRequests(t), "--json")...)
		check(t, err)
		if got := rows(t, out); len(got) != 1 || got[0].Completed != c.measured || sent.Load()-before != int64(c.sent) || strings.Contains(out, "itl_ms") {
			t.Errorf("%s: %d sent, %s", c.flags, sent.Load()-before, out)
		}
		before = sent.Load()
	}
	out, err := bench(t, "--base-url", url, "--trace", twoRequests(t), "--ramp", "1m")
	if err == nil || !strings.Contains(err.Error(), "no request was measured") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestAServerThatDies: lost connections are no saturation, and the run fails.
func TestAServerThatDies(t *testing.T) {
	url := fake(t, func(n int64, w http.ResponseWriter) {
		if n == 0 {
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		if n > 5 {
			panic(http.ErrAbortHandler)
		}
		token(w)
	})
	out, err := bench(t, "--base-url", url, "--warmup", "0", "--rates", "500,1000", "--requests", "20", "--output-len", "1")
	if err == nil || !strings.Contains(err.Error(), "14 of 20 requests failed") || !strings.Contains(err.Error(), "connect: ") {
		t.Errorf("%v", err)
	}
	if strings.Contains(out, "the server does not keep up") || !strings.Contains(out, "another reason than load") || !strings.Contains(words(out), "between tokens - -") || strings.Contains(out, "1000/s") {
		t.Errorf("%s", out)
	}
}

// TestInterruptedRunsAreReported: the signal comes while the server works on the sixth request of the first row.
func TestInterruptedRunsAreReported(t *testing.T) {
	ctx, interrupt := context.WithCancel(context.Background())
	defer interrupt()
	url := fake(t, func(n int64, w http.ResponseWriter) {
		if n == 5 {
			interrupt()
			<-ctx.Done()
			return
		}
		token(w)
	})
	out, err := benchUntil(t, ctx, "--base-url", url, "--warmup", "0", "--concurrency", "1,2", "--requests", "100", "--output-len", "1", "--json")
	check(t, err)
	if got := rows(t, out); len(got) != 1 || !got[0].Interrupted || got[0].Completed != 5 || got[0].Cut+got[0].Failed != 1 {
		t.Errorf("%+v", got)
	}
}

func TestNothingAnswers(t *testing.T) {
	url := fake(t, func(n int64, w http.ResponseWriter) { w.WriteHeader(http.StatusServiceUnavailable) })
	for _, args := range [][]string{{"--warmup", "0"}, {"--warmup", "1"}} {
		out, err := bench(t, append(args, "--base-url", url, "--rates", "inf", "--requests", "3")...)
		if err == nil || !strings.Contains(err.Error(), "503") {
			t.Errorf("%v\n%s", err, out)
		}
		if args[1] == "0" && !strings.Contains(words(out), "first token - - - - - - between tokens -") {
			t.Errorf("%s", out)
		}
	}
	if _, err := bench(t, "--base-url", "http://127.0.0.1:1"); err == nil || !strings.Contains(err.Error(), "is it running?") {
		t.Errorf("%v", err)
	}
}

func TestWrongServeFlags(t *testing.T) {
	for line, words := range map[string]string{
		"--rates 1 --concurrency 2": "exclude", "--rates 0": "above 0", "--rates x": "above 0", "--rates nan": "above 0", "--concurrency 0": "from 1",
		"--arrival uniform": "poisson or fixed", "--speed 0": "--speed", "--requests -1": "negative", "--timeout 0s": "--timeout", "--extra-body 5": "object",
		"--trace a --prompts b": "exclude", "--prefix-groups 0": "--prefix-groups", "--trace /no/such": "no such file", "--temperature NaN": "--temperature",
		"--prompts ../bench": "is a directory", "--output-file /no/such/file --model m --vocab-size 9": "--output-file: open", "--plot /no/such/file --model m --vocab-size 9": "--plot: open",
		"--plot a --output-file ./a": "same file", "--trace main.go --output-file ../bench/main.go": "same file",
		"--base-url 127.0.0.1:9103": "http://", "--base-url localhost:9103": "http://", "--rates 1x": "above 0", "--rates=": "no rate", "--speed 2": "--speed is for", "--rates 1 --trace a --speed 2": "--speed is for",
		"--arrival fixed --concurrency 1": "--arrival is for", "--arrival fixed --trace a": "--arrival is for", "--chat": "--prompts", `--extra-body {"n":2}`: "n must be 1",
		"--trace a --input-len 9": "--input-len is for random prompts", "--trace a --output-len 9": "--output-len is for", "--trace a --prefix-len 9": "--prefix-len is for",
		"--prompts a --input-len 9": "--input-len is for", "--prompts a --prefix-groups 2": "--prefix-groups is for",
	} {
		if _, err := bench(t, strings.Fields(line)...); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v, want %q", line, err, words)
		}
	}
	for line, words := range map[string]string{"--input-len x": "normal:MEAN", "--slo ttft": "objective", "--slo ttft=1s,ttft=2s": "second time", "--rate 1": "--rates"} {
		fs := cli.NewFlags("bench serve", "")
		new(serveFlags).register(fs)
		if _, err := cli.Parse(fs, strings.Fields(line)); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v, want %q", line, err, words)
		}
	}
}

func TestTheObjectiveIsDrawnWhereThereIsOne(t *testing.T) {
	for _, objective := range []bool{false, true} {
		panels := sweep([]load.Row{{Rate: 1}, {Rate: 2}}, objective)
		if got := len(panels[2].Series) > 1; got != objective {
			t.Errorf("with an objective %v: %v", objective, got)
		}
	}
}

func TestServeHelp(t *testing.T) {
	t.Setenv("OPENAI_API_KEY", "secret")
	fs := cli.NewFlags("bench serve", "")
	new(serveFlags).register(fs)
	if text := fs.FlagUsages(); strings.Contains(text, "secret") {
		t.Error("the help shows the key")
	}
	fs.VisitAll(func(f *pflag.Flag) {
		if !strings.Contains(f.Usage, "default") && slices.Contains([]string{"", "[]"}, f.DefValue) {
			t.Errorf("--%s does not say its default", f.Name)
		}
	})
}
