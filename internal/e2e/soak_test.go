package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestSoak: mixed requests on a server with a small pool: whole answers, streams, slow readers, hang-ups, bad bodies,
// preemptions. Every answer is that of the quiet run before, memory does not grow, and the server ends clean: what the
// engine finds still owned when it closes is an error of the program.
func TestSoak(t *testing.T) {
	for _, v := range []struct {
		name  string
		flags []string
	}{
		{"plain", nil},
		{"mtp", []string{"--speculative-config", `{"method":"mtp","num_speculative_tokens":3}`}},
		{"ngram", []string{"--speculative-config", `{"method":"ngram","num_speculative_tokens":4,"adaptive":false}`}},
	} {
		t.Run(v.name, func(t *testing.T) { soak(t, v.flags, v.name == "plain") })
	}
}

// soakModel is a tiny model with text, an MTP head and made-up weights.
func soakModel(t *testing.T) []string {
	t.Helper()
	dir := golden(t, "qwen35-dense-tied-mtp").withText(t, "demo-qwen35").write(t)
	return []string{"--model", dir, "--served-model-name", "tiny", "--load-format", "dummy", "--seed", "3", "--max-model-len", "256"}
}

func soak(t *testing.T, flags []string, long bool) {
	args := append(soakModel(t), "--max-num-seqs", "12", "--num-kv-blocks", "34", "--max-num-batched-tokens", "256", "--gpu-memory-utilization", "0.2")
	t.Setenv("GOGC", "5") // garbage that waits to be collected is not what grows; and collections are many
	s := serve(t, append(args, flags...)...)
	w := &soaker{server: s, calls: soakCalls()}
	w.quiet(t)
	before := s.metric("go_goroutines")
	first, rest := 1000, 9000
	switch {
	case racing: // which is slow
		first, rest = 60, 120
	case testing.Short():
		first, rest = 150, 350
	case !long:
		first, rest = 500, 1500
	}
	w.fill(t)
	w.run(t, 0, first)
	settled := w.memory()
	w.run(t, first, rest/2)
	middle := w.memory()
	w.run(t, first+rest/2, rest-rest/2)
	end := w.memory()
	t.Logf("%s after %d requests, %s and %s after %d more each; %g preemptions", settled, first, middle, end, rest/2, s.metric("reprise:num_preemptions_total"))
	if long && !racing && !testing.Short() {
		// Runs differ by 0.7 %; 2 % are 27 bytes a request.
		grows(t, "live heap", 0.02, settled.live, middle.live, end.live)
		// The heap's free parts and tables of the runtime are resident too, and come by steps of 1 to 5 %.
		grows(t, "resident memory", 0.05, settled.resident, middle.resident, end.resident)
	}
	if s.metric("reprise:num_preemptions_total") == 0 {
		t.Error("nothing was preempted: the pool is not small")
	}
	w.idle(t, before)
	s.terminate(endWithin)
}

// soaker sends calls whose answers it knows.
type soaker struct {
	*server
	calls []call
	want  []choices
	fault atomic.Pointer[string]
}

// soakCalls are requests of many kinds.
func soakCalls() []call {
	var out []call
	add := func(path, format string, a ...any) { out = append(out, call{path, fmt.Sprintf(format, a...)}) }
	words := strings.Fields("once upon a time there was a fox who lived under an old oak tree near the river and every morning it went out to look for something good to eat")
	for i := range 8 {
		prompt := strings.Join(words[i:i+3+i], " ")
		add(completions, `{"model":"tiny","prompt":%q,"max_tokens":%d,"temperature":0,"return_token_ids":true}`, prompt, 4+i)
		add(completions, `{"prompt":%q,"max_tokens":9,"seed":%d,"temperature":1,"top_p":0.9,"ignore_eos":true,"return_token_ids":true}`, prompt, i)
		add(chats, `{"messages":[{"role":"user","content":%q}],"max_tokens":%d,"temperature":0,"return_token_ids":true}`, prompt, 5+i)
		add(completions, `{"prompt":%q,"max_tokens":%d,"temperature":0,"ignore_eos":true,"return_token_ids":true}`, strings.Repeat(prompt+" ", 40/(3+i)), 60+4*i)
	}
	add(completions, `{"prompt":"Once","n":3,"seed":5,"max_tokens":8,"temperature":0.8,"return_token_ids":true}`)
	add(completions, `{"prompt":[[1,2,3],[4,5,6,7]],"max_tokens":6,"temperature":0,"return_token_ids":true}`)
	add(completions, `{"prompt":"The river","max_tokens":7,"temperature":0,"logprobs":3,"echo":true}`)
	add(completions, `{"prompt":"The river","max_tokens":12,"seed":9,"repetition_penalty":1.3,"presence_penalty":0.5,"frequency_penalty":0.4,"logit_bias":{"100":3},"min_tokens":4,"return_token_ids":true}`)
	add(completions, `{"prompt":"A","max_tokens":1,"temperature":0,"return_token_ids":true}`)
	add(chats, `{"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"Hi"}],"max_tokens":6,"seed":1,"top_k":5,"logprobs":true,"top_logprobs":2}`)
	return out
}

// badCalls are requests that are refused, and how.
var badCalls = []struct {
	call
	status int
}{
	{call{completions, `{"prompt":`}, 400}, {call{completions, `[]`}, 400}, {call{completions, `{}`}, 400}, {call{chats, `{"messages":[]}`}, 400},
	{call{completions, `{"prompt":"x","max_tokens":-1}`}, 400}, {call{completions, `{"prompt":"x","temperature":99}`}, 400},
	{call{completions, `{"prompt":[1,2,99999]}`}, 400}, {call{completions, `{"prompt":"x","model":"other"}`}, 404},
	{call{completions, `{"prompt":"` + strings.Repeat("word ", 2000) + `"}`}, 400}, {call{chats, `{"messages":[{"role":"king","content":"x"}]}`}, 400},
	{call{"/v1/none", `{}`}, 404}, {call{completions, "\x00\xff"}, 400},
}

// quiet learns the answers, one call at a time.
func (w *soaker) quiet(t *testing.T) {
	t.Helper()
	for _, c := range w.calls {
		out, err := w.whole(c)
		if err != nil {
			t.Fatalf("%s: %v", c.body, err)
		}
		streamed, err := w.server.stream(c, 0, 0)
		if err != nil || streamed.String() != out.String() {
			t.Fatalf("%s\nstreamed %s (%v)\nwhole    %s", c.body, streamed, err, out)
		}
		w.want = append(w.want, out)
	}
}

const soakWorkers = 40

// run sends requests from..from+n-1 from several clients.
func (w *soaker) run(t *testing.T, from, n int) {
	t.Helper()
	var next atomic.Int64
	var group sync.WaitGroup
	for range soakWorkers {
		group.Go(func() {
			for i := next.Add(1) - 1; i < int64(n) && w.fault.Load() == nil; i = next.Add(1) - 1 {
				if err := w.one(rand.New(rand.NewPCG(7, uint64(from)+uint64(i)))); err != nil {
					text := fmt.Sprintf("request %d: %v", from+int(i), err)
					w.fault.CompareAndSwap(nil, &text)
				}
			}
		})
	}
	group.Wait()
	if f := w.fault.Load(); f != nil {
		t.Fatal(*f)
	}
}

// fill takes all pools to their high-water marks, so that what grows later is not a rarer crowd: the longest calls at
// once, which swap each other out.
func (w *soaker) fill(t *testing.T) {
	t.Helper()
	var group sync.WaitGroup
	for i := range 2 * soakWorkers {
		group.Go(func() {
			if _, err := w.whole(w.calls[3+4*(i%8)]); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
}

// one sends a random request in a random way.
func (w *soaker) one(random *rand.Rand) error {
	if random.IntN(10) == 0 {
		return w.bad(random.IntN(len(badCalls)))
	}
	i := random.IntN(len(w.calls))
	c, want := w.calls[i], w.want[i]
	var got choices
	var err error
	switch random.IntN(9) {
	case 0, 1, 2:
		got, err = w.whole(c)
	case 3, 4:
		got, err = w.server.stream(c, 0, 0)
	case 5:
		got, err = w.server.stream(c, 5*time.Millisecond, 0)
	case 6, 7:
		if got, err = w.server.stream(c, 0, 1+random.IntN(6)); errors.Is(err, errCut) && got.begins(want) {
			return nil
		}
	default:
		return w.hangUp(c, time.Duration(random.IntN(30))*time.Millisecond)
	}
	if err != nil || got.String() != want.String() {
		return fmt.Errorf("%s\n     got %s (%v)\nquietly %s", c.body, got, err, want)
	}
	return nil
}

func (w *soaker) bad(i int) error {
	b := badCalls[i]
	a, err := w.post(context.Background(), b.path, b.body)
	if err != nil || a.status != b.status || !strings.Contains(a.body, `"error"`) {
		return fmt.Errorf("%.100s: %d %s %v, want %d", b.body, a.status, a.body, err, b.status)
	}
	return nil
}

// hangUp gives up before the answer is there, or just as it comes.
func (w *soaker) hangUp(c call, after time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), after)
	defer cancel()
	a, err := w.post(ctx, c.path, c.body)
	if err == nil && a.status != http.StatusOK || err != nil && ctx.Err() == nil {
		return fmt.Errorf("%s: %d %s %v", c.body, a.status, a.body, err)
	}
	return nil
}

// footprint is the memory of a server at rest, in bytes.
type footprint struct{ live, resident float64 }

func (f footprint) String() string {
	return fmt.Sprintf("%.2f MB live and %.1f MB resident", f.live/1e6, f.resident/1e6)
}

// memory is the least over some dozens of collections, which the answers to this test's own questions bring about: each
// leaves only what is reachable, and what came while it ran.
func (w *soaker) memory() footprint {
	w.client.CloseIdleConnections() // the server has buffers for each
	low := footprint{math.Inf(1), math.Inf(1)}
	for range 60 {
		time.Sleep(20 * time.Millisecond)
		low.live = min(low.live, w.metric("go_gc_heap_live_bytes"))
		low.resident = min(low.resident, float64(w.residentBytes()-w.swappedBytes()))
	}
	return low
}

// grows fails where a quantity became larger by share in both halves: what leaks does, what was never as large at once as
// now does so in one of them.
func grows(t *testing.T, what string, share, first, middle, end float64) {
	t.Helper()
	if early, late := middle/first-1, end/middle-1; min(early, late) >= share {
		t.Errorf("%s grows: by %.2f %% and by %.2f %%", what, 100*early, 100*late)
	}
}

// swappedBytes is what sequences in host memory have ever touched: chunks of 64 MiB within --swap-space, which stay. How
// many are there at once is a matter of crowds, and the largest crowd may come late.
func (w *soaker) swappedBytes() (bytes int64) {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/smaps", w.command.Process.Pid))
	chunk := false
	for line := range strings.Lines(string(text)) {
		var kB int64
		if n, _ := fmt.Sscanf(line, "Size: %d kB", &kB); n == 1 {
			chunk = kB == 64<<10
		}
		if n, _ := fmt.Sscanf(line, "Rss: %d kB", &kB); n == 1 && chunk {
			bytes += kB << 10
		}
	}
	return bytes
}

// idle waits until nothing runs and the goroutines are those of before.
func (w *soaker) idle(t *testing.T, goroutines float64) {
	t.Helper()
	w.client.CloseIdleConnections()
	var running, waiting, usage, now float64
	for range 100 {
		running, waiting, usage = w.metric("reprise:num_requests_running"), w.metric("reprise:num_requests_waiting"), w.metric("reprise:kv_cache_usage_perc")
		if now = w.metric("go_goroutines"); running+waiting+usage == 0 && now <= goroutines {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Errorf("not idle: %g running, %g waiting, %g of the pages used, %g goroutines, %g before", running, waiting, usage, now, goroutines)
}

// metric is the value of a metric, summed over its labels.
func (s *server) metric(name string) float64 {
	s.t.Helper()
	_, text := s.get("/metrics")
	sum, found := 0.0, false
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, name); ok && (rest[0] == ' ' || rest[0] == '{') {
			v, err := strconv.ParseFloat(strings.TrimSpace(rest[strings.LastIndexByte(rest, ' '):]), 64)
			if err != nil {
				s.t.Fatal(line)
			}
			sum, found = sum+v, true
		}
	}
	if !found {
		s.t.Fatalf("no metric %s", name)
	}
	return sum
}

// TestFullQueue: what does not fit the queue is 429 with Retry-After, and the rest is answered.
func TestFullQueue(t *testing.T) {
	s := serve(t, append(soakModel(t), "--max-num-seqs", "2", "--max-num-batched-tokens", "64")...)
	body := `{"prompt":[` + strings.TrimSuffix(strings.Repeat(`[1,2,3],`, 8), ",") + `],"n":128,"max_tokens":100,"ignore_eos":true}`
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	refused := make(chan answer, 8)
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			if a, err := s.post(ctx, completions, body); err == nil {
				refused <- a
				cancel()
			}
		})
	}
	group.Wait()
	select {
	case a := <-refused:
		var e struct{ Error struct{ Code, Type string } }
		if err := json.Unmarshal([]byte(a.body), &e); err != nil || a.status != http.StatusTooManyRequests || a.header.Get("Retry-After") == "" || e.Error.Code != "queue_full" {
			t.Errorf("%d %v %s", a.status, a.header, a.body)
		}
	default:
		t.Error("no request was refused")
	}
	for range 100 { // until the engine has seen that the others hung up
		if a, err := s.post(context.Background(), completions, `{"prompt":[1,2,3],"max_tokens":3}`); err != nil || a.status != http.StatusTooManyRequests {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	s.must(completions, `{"prompt":[1,2,3],"max_tokens":3}`)
	s.terminate(endWithin)
}
