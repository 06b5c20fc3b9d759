package engine

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"reprise/internal/golden"
	"reprise/kernels"
	"reprise/sampler"
)

func TestStops(t *testing.T) {
	g := golden.Open(t, "qwen35-dense")
	e := open(t, g, Options{})
	c := g.Cases[2]
	stop := c.Greedy[5]
	first := slices.Index(c.Greedy, stop)
	t.Run("a stop id ends the sequence and is part of it", func(t *testing.T) {
		r := greedy(c.Prompt, 32)
		r.StopIDs = []int32{stop}
		out := read(t, submit(t, e, r))
		if got := out.ids(); !slices.Equal(got, c.Greedy[:first+1]) || out.reason != Stop || out.stop != stop {
			t.Errorf("got %v, reason %q, stop %d", got, out.reason, out.stop)
		}
	})
	t.Run("not before min_tokens", func(t *testing.T) {
		r := greedy(c.Prompt, 32)
		r.StopIDs, r.MinTokens = []int32{stop}, first+3
		out := read(t, submit(t, e, r))
		if len(out.tokens) < first+3 || slices.Contains(out.ids()[:first+3], stop) {
			t.Errorf("got %v: token %d among the first %d", out.ids(), stop, first+3)
		}
	})
	t.Run("length", func(t *testing.T) {
		out := read(t, submit(t, e, greedy(c.Prompt, 3)))
		if got := out.ids(); !slices.Equal(got, c.Greedy[:3]) || out.reason != Length {
			t.Errorf("got %v, reason %q", got, out.reason)
		}
	})
	t.Run("context limit", func(t *testing.T) {
		small := open(t, g, Options{MaxLen: len(c.Prompt) + 4})
		out := read(t, submit(t, small, greedy(c.Prompt, 32)))
		if got := out.ids(); !slices.Equal(got, c.Greedy[:4]) || out.reason != Length {
			t.Errorf("got %v, reason %q", got, out.reason)
		}
	})
	t.Run("scoring only", func(t *testing.T) {
		r := greedy(c.Prompt, 0)
		r.PromptLogProbs = 0
		out := read(t, submit(t, e, r))
		if len(out.tokens) != 0 || len(out.prompt) != len(c.Prompt)-1 || out.reason != Length {
			t.Errorf("%d tokens, %d scores, reason %q", len(out.tokens), len(out.prompt), out.reason)
		}
	})
}

func TestSubmitRefusals(t *testing.T) {
	g := golden.Open(t, "qwen35-dense")
	e := open(t, g, Options{MaxLen: 64})
	for _, c := range []struct {
		field  string
		change func(*Request)
	}{
		{"prompt", func(r *Request) { r.Prompt = nil }},
		{"prompt", func(r *Request) { r.Prompt = []int32{0, 192} }},
		{"prompt", func(r *Request) { r.Prompt = []int32{-1} }},
		{"prompt", func(r *Request) { r.Prompt = make([]int32, 64) }},
		{"max_tokens", func(r *Request) { r.MaxTokens = -1 }},
		{"min_tokens", func(r *Request) { r.MinTokens = 9 }},
		{"logprobs", func(r *Request) { r.LogProbs = 1 }},
		{"prompt_logprobs", func(r *Request) { r.PromptLogProbs = 1 }},
		{"stop_token_ids", func(r *Request) { r.StopIDs = []int32{192} }},
		{"stop_token_ids", func(r *Request) { r.StopIDs = make([]int32, 65) }},
		{"temperature", func(r *Request) { r.Sampling.Temperature = 2.1 }},
		{"top_p", func(r *Request) { r.Sampling.TopP = 0 }},
		{"top_k", func(r *Request) { r.Sampling.TopK = -1 }},
		{"logit_bias", func(r *Request) { r.Sampling.Bias = map[int32]float32{192: 1} }},
		{"allowed_token_ids", func(r *Request) { r.Sampling.Allowed = []int32{} }},
	} {
		r := greedy([]int32{1, 2, 3}, 8)
		c.change(&r)
		_, err := e.Submit(r)
		var f *FieldError
		if !errors.As(err, &f) || f.Field != c.field {
			t.Errorf("%s: got %v", c.field, err)
		}
	}
}

// TestCancelAnyTime cancels at random moments; open checks that everything came back.
func TestCancelAnyTime(t *testing.T) {
	g := golden.Open(t, "nemotron-moe")
	longest, _ := pagesFor(g, 4)
	e := open(t, g, Options{PageTokens: 4, KVBlocks: longest + 2, MaxSeqs: 4, MaxTokens: 24})
	var group sync.WaitGroup
	for i := range 24 {
		c := g.Cases[i%len(g.Cases)]
		s, n := submit(t, e, greedy(c.Prompt, 32)), i%7
		group.Go(func() {
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			for range n {
				u, err := s.Next(ctx)
				if err != nil || u.Done() {
					return
				}
			}
			if rand.IntN(2) == 0 {
				s.Cancel()
				return
			}
			cancel()
			if _, err := s.Next(ctx); err == nil {
				return // an update was there already
			}
		})
	}
	group.Wait()
	checkGreedy(t, e, g) // and the engine is as good as new
}

func TestQueueLimit(t *testing.T) {
	g := golden.Open(t, "qwen35-dense")
	e := open(t, g, Options{MaxSeqs: 1, MaxQueue: 2})
	var all []*Sequence
	full := false
	for range 8 {
		s, err := e.Submit(greedy([]int32{5}, 64))
		if errors.Is(err, ErrQueueFull) {
			full = true
			continue
		}
		all = append(all, s)
	}
	if !full {
		t.Error("the queue never filled")
	}
	for _, s := range all {
		if r := read(t, s); len(r.tokens) != 64 {
			t.Errorf("%d tokens, reason %q, error %v", len(r.tokens), r.reason, r.err)
		}
	}
}

// faulty panics in the embedding lookup of chosen steps.
type faulty struct {
	kernels.Device
	left *int // steps until the fault
}

func (f faulty) Submit(p kernels.Program) {
	f.Device.Submit(kernels.ProgramFunc(func(o kernels.Ops) { p.Run(faultyOps{o, f.left}) }))
}

type faultyOps struct {
	kernels.Ops
	left *int
}

func (f faultyOps) Embed(p kernels.Embed) {
	*f.left--
	if *f.left == 0 {
		panic("planted fault")
	}
	f.Ops.Embed(p)
}

// TestFaultFailsItsStepOnly: the requests of a broken step fail, later ones get right answers from the same slots.
func TestFaultFailsItsStepOnly(t *testing.T) {
	g := golden.Open(t, "qwen35-dense")
	left := 5
	e := openOn(t, faulty{device(t), &left}, g, Options{})
	r := read(t, submit(t, e, greedy(g.Cases[0].Prompt, 32)))
	if !errors.Is(r.err, ErrFault) || !strings.Contains(r.err.Error(), "planted") {
		t.Fatalf("got error %v, want the planted fault", r.err)
	}
	checkGreedy(t, e, g)
}

func TestClosedEngineRefuses(t *testing.T) {
	g := golden.Open(t, "qwen35-dense")
	e := open(t, g, Options{})
	s := submit(t, e, greedy(g.Cases[0].Prompt, 8))
	done := make(chan result)
	go func() { done <- read(t, s) }()
	if err := e.Engine.Close(); err != nil {
		t.Fatal(err)
	}
	if r := <-done; !slices.Equal(r.ids(), g.Cases[0].Greedy[:8]) {
		t.Errorf("a request of before Close got %v, reason %q", r.ids(), r.reason)
	}
	if _, err := e.Submit(greedy([]int32{1}, 1)); !errors.Is(err, ErrClosed) {
		t.Errorf("Submit after Close: %v", err)
	}
}

// TestSamplerTablesDoNotLeak: a slot's bias, mask and penalties end with its request.
func TestSamplerTablesDoNotLeak(t *testing.T) {
	g := golden.Open(t, "qwen35-dense")
	e := open(t, g, Options{MaxSeqs: 1})
	c := g.Cases[1]
	r := greedy(c.Prompt, 8)
	r.Sampling.Allowed, r.Sampling.Bad = []int32{7, 8, 9}, []int32{8}
	r.Sampling.Bias = map[int32]float32{9: 100}
	for _, id := range read(t, submit(t, e, r)).ids() {
		if id != 9 {
			t.Errorf("token %d, only 9 is left by mask and bias", id)
		}
	}
	r = greedy(c.Prompt, 8)
	r.Sampling = sampler.Default()
	r.Sampling.Temperature, r.Sampling.Presence = 0, 2
	read(t, submit(t, e, r))
	if got := read(t, submit(t, e, greedy(c.Prompt, 32))).ids(); !slices.Equal(got, c.Greedy) {
		t.Errorf("after a restricted request: %v, want %v", got, c.Greedy)
	}
}

// hanging is a device that does not finish steps while it is held.
type hanging struct {
	kernels.Device
	held *sync.RWMutex
}

func (h hanging) Wait(t kernels.Ticket) error {
	h.held.RLock()
	defer h.held.RUnlock()
	return h.Device.Wait(t)
}

// TestHang: a step that does not end is an error for whoever watches, and no longer when it has ended after all.
func TestHang(t *testing.T) {
	var held sync.RWMutex
	g := golden.Open(t, "qwen35-dense")
	e := openOn(t, hanging{device(t), &held}, g, Options{StepTimeout: 200 * time.Millisecond})
	until := func(hangs bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); (e.Err() != nil) != hangs; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%v", e.Err())
			}
		}
	}
	c := g.Cases[0]
	held.Lock()
	s := submit(t, e, greedy(c.Prompt, 4))
	until(true)
	if err := e.Err(); !strings.Contains(err.Error(), "the device hangs") {
		t.Error(err)
	}
	held.Unlock()
	if got := read(t, s).ids(); !slices.Equal(got, c.Greedy[:4]) {
		t.Errorf("%v, want %v", got, c.Greedy[:4])
	}
	until(false)
	time.Sleep(300 * time.Millisecond) // at rest for longer than a step may take
	if err := e.Err(); err != nil {
		t.Error(err)
	}
}
