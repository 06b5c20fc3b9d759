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
	soakAlone = flag.Bool("soak.alone", false, "no other process uses the GPU: its free memory may not keep falling during a soak")
)

// TestSoak is the soak of engines on the CPU, by a few requests; internal/e2e has the longer one through HTTP.
func TestSoak(t *testing.T) {
	if testing.Short() {
		t.Skip("loads engines until the second half of -soak is over; make test does")
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
// marks; from then on it may not keep growing (soakGrowth), and nothing is left when the engines close.
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
	var uses [3]soakUse
	for i, share := range []time.Duration{2, 4, 4} {
		soakRun(t, all, d/share, uint64(i))
		uses[i] = soakMemory(t, all)
		t.Log(uses[i])
	}
	for _, s := range all {
		if s.requests.Load() > 100 && (s.watches.Load() == 0 || s.cancels.Load() == 0 || s.e.Stats().Preemptions == 0) {
			t.Errorf("%s: the load shows nothing", s.name)
		}
	}
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
	if d >= 4*time.Minute { // shorter ones do not settle
		if err := soakGrowth(uses, *soakAlone); err != nil {
			t.Error(err)
		}
	}
}

// soakUse is memory, bytes: what the devices took, what is free on them with all other users, what the process can reach, and
// what it has.
type soakUse struct{ device, pinned, free, heap, host int64 }

func (u soakUse) String() string {
	return fmt.Sprintf("%d bytes of device memory, %d pinned, %d MB free on the device, %d KB of heap, %d KB of host memory", u.device, u.pinned, u.free>>20, u.heap>>10, u.host>>10)
}

// soakGrowth reports what became more in both of two spans: what leaks does. What was never as much at once as now does so in
// one: the host memory of the largest crowd that was swapped out, tables for the longest list of changes, a kernel that the
// driver loads when it is first used. Allocators move by steps, which the slack of an amount leaves out.
func soakGrowth(uses [3]soakUse, alone bool) error {
	var list []error
	check := func(what string, slack int64, of func(u soakUse) int64) {
		early, late := of(uses[1])-of(uses[0]), of(uses[2])-of(uses[1])
		if min(early, late) > slack {
			list = append(list, fmt.Errorf("%s grows: by %d and by %d bytes, allowed %d", what, early, late, slack))
		}
	}
	check("device memory", 0, func(u soakUse) int64 { return u.device })
	check("pinned memory", 64<<10, func(u soakUse) int64 { return u.pinned })
	check("the live heap", uses[0].heap/100+256<<10, func(u soakUse) int64 { return u.heap })
	check("host memory", uses[0].host/50+4<<20, func(u soakUse) int64 { return u.host })
	if alone {
		check("what the GPU has given away", 1<<20, func(u soakUse) int64 { return -u.free })
	}
	return errors.Join(list...)
}

func TestSoakGrowth(t *testing.T) {
	base := soakUse{device: 8e9, pinned: 3e8, free: 1e11, heap: 200e6, host: 900e6}
	with := func(u soakUse, change func(u *soakUse, n int64)) (uses [3]soakUse, once [3]soakUse) {
		for i := range uses {
			uses[i], once[i] = u, u
			change(&uses[i], int64(i))
			change(&once[i], int64(i/2))
		}
		return uses, once
	}
	for what, change := range map[string]func(u *soakUse, n int64){
		"device memory": func(u *soakUse, n int64) { u.device += n },
		"pinned memory": func(u *soakUse, n int64) { u.pinned += n << 20 },
		"the live heap": func(u *soakUse, n int64) { u.heap += n * 3e6 },
		"host memory":   func(u *soakUse, n int64) { u.host += n * 3e7 },
		"what the GPU":  func(u *soakUse, n int64) { u.free -= n << 21 },
	} {
		leak, step := with(base, change)
		if err := soakGrowth(leak, true); err == nil || !strings.HasPrefix(err.Error(), what) {
			t.Errorf("a leak of %s: %v", what, err)
		}
		if err := soakGrowth(step, true); err != nil {
			t.Errorf("a step of %s: %v", what, err)
		}
	}
}

// booked is a device that counts what it took.
type booked interface{ MemoryTaken() (device, pinned int64) }

// soakMemory is read while nothing runs.
func soakMemory(t *testing.T, all []*soaker) (u soakUse) {
	t.Helper()
	debug.FreeOSMemory() // collects what the first collection finalised
	debug.FreeOSMemory()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	u.heap = int64(stats.HeapAlloc)
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
