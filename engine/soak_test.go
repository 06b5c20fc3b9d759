package engine

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"reprise/internal/golden"
	"reprise/kernels"
	"reprise/sampler"
)

var (
	soakFor   = flag.Duration("soak", time.Second, "how long soak tests run; 8m is what a release gets")
	soakAlone = flag.Bool("soak.alone", false, "no other process uses the GPU: its free memory may not fall during a soak")
)

// TestSoak is the soak of engines on the CPU, by a few requests; internal/e2e has the longer one through HTTP.
func TestSoak(t *testing.T) {
	if testing.Short() {
		t.Skip("takes its time")
	}
	soakAll(t, *soakFor, func() kernels.Device { return device(t) }, 6, []soakModel{
		{"qwen35-dense-tied-mtp", Options{Drafts: 3, MaxTokens: 128, PageTokens: 16, KVBlocks: 40}},
		{"nemotron-moe", Options{MaxTokens: 64, PageTokens: 16, KVBlocks: 40}},
	})
}

// soakModel is a model under load; its pages are fewer than the load wants.
type soakModel struct {
	name    string
	options Options
}

// soakAll keeps several engines in one process saturated by twice as many clients as they have rows: watched requests,
// whose greedy answers must be those of a quiet run (the golden's), among random ones that sample, score, are cut short,
// read slowly or are cancelled. Books are checked all the time. Half of the time is for memory to reach its high-water
// marks; from then on neither the device's nor the host's may grow, and nothing is left when the engines close.
func soakAll(t *testing.T, d time.Duration, open func() kernels.Device, rows int, models []soakModel) {
	before := runtime.NumGoroutine()
	var all []*soaker
	for _, m := range models {
		m.options.MaxSeqs, m.options.MaxLen, m.options.SwapBytes, m.options.MaxLogProbs = rows, 512, 64<<20, 5
		g, dev := golden.Open(t, m.name), open()
		e, err := Open(dev, Source{Folder: g.Folder}, m.options)
		if err != nil {
			t.Fatal(err)
		}
		s := &soaker{name: m.name, e: e, dev: dev, golden: g}
		for _, c := range g.Cases { // the quiet run
			if err := s.watched(&c); err != nil {
				t.Fatalf("%s, quiet: %v", m.name, err)
			}
		}
		all = append(all, s)
	}
	loaded := runtime.NumGoroutine()
	soakRun(t, all, d/2, 1)
	settled := soakMemory(t, all)
	soakRun(t, all, d-d/2, 2)
	left := soakMemory(t, all)
	for _, s := range all {
		if s.requests.Load() > 100 && (s.watches.Load() == 0 || s.cancels.Load() == 0 || s.e.Stats().Preemptions == 0) {
			t.Errorf("%s: the load shows nothing", s.name)
		}
	}
	t.Logf("after the first half: %+d bytes of device memory, %+d pinned, %+d of the GPU's free memory, %+d KB of %d MB host memory",
		left.device-settled.device, left.pinned-settled.pinned, left.free-settled.free, (left.host-settled.host)>>10, settled.host>>20)
	if n := runtime.NumGoroutine(); n > loaded {
		t.Errorf("%d goroutines, %d before the load", n, loaded)
	}
	for _, s := range all {
		if err := errors.Join(s.e.Close(), s.dev.Close()); err != nil {
			t.Errorf("%s: %v", s.name, err)
		}
	}
	if n := runtime.NumGoroutine(); n > before {
		t.Errorf("%d goroutines, %d before the engines", n, before)
	}
	soakGrowth(t, d, settled, left)
}

// soakGrowth judges runs that are long enough for memory to settle: nothing more on the device, and on the host no more than
// 2 % and 4 MB, which an allocator's high-water marks need minutes to reach.
func soakGrowth(t *testing.T, d time.Duration, settled, left soakUse) {
	t.Helper()
	if d < 4*time.Minute {
		return
	}
	if left.device > settled.device || left.pinned > settled.pinned || *soakAlone && left.free < settled.free {
		t.Errorf("device memory grew: from %+v to %+v", settled, left)
	}
	if grown := left.host - settled.host; grown > settled.host/50+4<<20 {
		t.Errorf("host memory grew by %d bytes", grown)
	}
}

// soakUse is memory, bytes: what the devices took, what is free on them with all other users, and what the process has.
type soakUse struct{ device, pinned, free, host int64 }

// booked is a device that counts what it took.
type booked interface{ MemoryTaken() (device, pinned int64) }

// soakMemory is read while nothing runs.
func soakMemory(t *testing.T, all []*soaker) (u soakUse) {
	t.Helper()
	debug.FreeOSMemory()
	for _, s := range all {
		if err := s.between(func() error { u.add(s.dev); return s.e.states.Idle() }); err != nil {
			t.Errorf("%s: %v", s.name, err)
		}
	}
	text, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(text)) {
		var kB int64
		if n, _ := fmt.Sscanf(line, "RssAnon: %d kB", &kB); n == 1 {
			u.host = kB << 10
		}
	}
	return u
}

func (u *soakUse) add(dev kernels.Device) {
	if b, ok := dev.(booked); ok {
		device, pinned := b.MemoryTaken()
		u.device, u.pinned, u.free = u.device+device, u.pinned+pinned, dev.MemoryFree()
	}
}

// soakRun loads all engines until time is up and everything under way has ended.
func soakRun(t *testing.T, all []*soaker, d time.Duration, seed uint64) {
	t.Helper()
	end := time.Now().Add(d)
	var group sync.WaitGroup
	for _, s := range all {
		for i := range 2 * s.e.Plan().MaxSeqs {
			group.Go(func() { s.client(end, rand.New(rand.NewPCG(seed, uint64(i)))) })
		}
		group.Go(func() { s.inspect(end) })
	}
	group.Wait()
	for _, s := range all {
		if err := s.failed.Load(); err != nil {
			t.Fatalf("%s: %v", s.name, *err)
		}
		t.Log(s.report())
	}
}

// soaker is one engine and its clients.
type soaker struct {
	name   string
	e      *Opened
	dev    kernels.Device
	golden *golden.Golden
	failed atomic.Pointer[error]

	requests, watches, cancels, checks, rows atomic.Int64
}

func (s *soaker) fail(err error) {
	if err != nil {
		s.failed.CompareAndSwap(nil, &err)
	}
}

// between runs f between two steps, where books and device may be looked at.
func (s *soaker) between(f func() error) error {
	done := make(chan error, 1)
	select {
	case s.e.tasks <- func() { done <- f() }:
	case <-s.e.done:
		return s.e.Err()
	}
	s.e.wakeUp()
	select {
	case err := <-done:
		return err
	case <-s.e.done:
		return s.e.Err()
	}
}

// inspect recounts the books all the time, and how many rows are busy.
func (s *soaker) inspect(end time.Time) {
	for time.Now().Before(end) && s.failed.Load() == nil {
		s.fail(s.between(s.e.states.Check))
		s.checks.Add(1)
		s.rows.Add(int64(s.e.Stats().Running))
		time.Sleep(20 * time.Millisecond)
	}
}

func (s *soaker) client(end time.Time, random *rand.Rand) {
	for time.Now().Before(end) && s.failed.Load() == nil {
		s.requests.Add(1)
		if random.IntN(3) == 0 {
			s.fail(s.watched(&s.golden.Cases[random.IntN(len(s.golden.Cases))]))
			s.watches.Add(1)
		} else {
			s.fail(s.random(random))
		}
	}
}

// watched is a greedy request whose answer is known.
func (s *soaker) watched(c *golden.Case) error {
	q, err := s.e.Submit(greedy(c.Prompt, len(c.Greedy)))
	if err != nil {
		return err
	}
	got, err := follow(q, func(int) bool { return true })
	if err == nil && !slices.Equal(got, c.Greedy) {
		err = fmt.Errorf("prompt of %d tokens: got %v, quietly %v", len(c.Prompt), got, c.Greedy)
	}
	return err
}

// random is a request of any kind, read in any way.
func (s *soaker) random(random *rand.Rand) error {
	r := greedy(nil, 1+random.IntN(200))
	r.Prompt = make([]int32, 1+random.IntN(1+random.IntN(250)))
	for i := range r.Prompt {
		r.Prompt[i] = int32(random.IntN(s.e.Limits().Vocab))
	}
	r.Sampling = soakSampling(random)
	switch random.IntN(8) {
	case 0:
		r.LogProbs = random.IntN(6)
	case 1:
		r.PromptLogProbs = random.IntN(6)
	case 2:
		r.IgnoreEOS, r.StopIDs = false, []int32{int32(random.IntN(s.e.Limits().Vocab))}
	case 3:
		r.NoDrafts = true
	}
	q, err := s.e.Submit(r)
	if err != nil {
		return err
	}
	most, slow := 1<<30, random.IntN(10) == 0
	if random.IntN(4) == 0 {
		most = random.IntN(r.MaxTokens + 1)
		s.cancels.Add(1)
	}
	_, err = follow(q, func(tokens int) bool {
		if slow {
			time.Sleep(5 * time.Millisecond)
		}
		return tokens < most
	})
	return err
}

func soakSampling(random *rand.Rand) sampler.Params {
	p := sampler.Default()
	p.Seed, p.Temperature = random.Uint64(), float32(random.IntN(3))/2
	switch random.IntN(4) {
	case 0:
		p.TopK, p.TopP = 1+random.IntN(40), 0.5+random.Float32()/2
	case 1:
		p.Repetition, p.Presence, p.Frequency = 1.2, 0.5, -0.5
	case 2:
		p.MinP, p.Bias = 0.1, map[int32]float32{int32(random.IntN(100)): 5}
	}
	return p
}

// follow reads a sequence to its end, or cancels it where more says so and reads on. An end that is never told is an error.
func follow(q *Sequence, more func(tokens int) bool) ([]int32, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	var ids []int32
	for {
		u, err := q.Next(ctx)
		if err != nil {
			return ids, err
		}
		for _, token := range u.Tokens {
			ids = append(ids, token.ID)
		}
		if u.Done() {
			return ids, u.Err
		}
		if !more(len(ids)) {
			q.Cancel()
		}
	}
}

func (s *soaker) report() string {
	n := s.e.Stats()
	return fmt.Sprintf("%s: %d requests, %d of them watched, %d cancelled; %d steps, %d tokens, %d preemptions, %d of %d drafts accepted; %d checks, %.0f of %d rows busy",
		s.name, s.requests.Load(), s.watches.Load(), s.cancels.Load(), n.Steps, n.GeneratedTokens, n.Preemptions, n.Drafts.Accepted, n.Drafts.Drafted,
		s.checks.Load(), float64(s.rows.Load())/float64(max(1, s.checks.Load())), s.e.Plan().MaxSeqs)
}
