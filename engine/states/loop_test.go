package states

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"reprise/engine/sched"
)

// loop is a small engine: scheduler, states and the toy device, with the host one step behind.
type loop struct {
	*toy
	rng      *rand.Rand
	s        *sched.Scheduler
	requests map[ID]*request
	flying   []launched
	counts   map[string]int
}

// request is what the device knows; the host learns it a step later.
type request struct {
	limit   int
	h       history  // tokens in the state
	known   []uint64 // all tokens, the one sampled last included
	stopped bool     // by the device
}

type launched struct {
	plan     *sched.Plan
	accepted []int32
	stopped  []ID
}

// TestLoop runs more requests than memory can hold to their ends: every token's state is what its history says, through
// shortages, swaps, recomputation, drafts, stops and cancellations, and in the end nothing is left.
func TestLoop(t *testing.T) {
	counts := map[string]int{}
	for seed := range uint64(10) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			l := &loop{toy: newToy(t, 6<<10), rng: rand.New(rand.NewPCG(seed, 5)), requests: map[ID]*request{}, counts: counts}
			var err error
			l.s, err = sched.New(sched.Config{MaxSeqs: toySlots - 1, MaxTokens: 6 + l.rng.IntN(20), MaxLen: toyMaxLen})
			must(t, err)
			for id := range ID(24) {
				l.submit(id + 1)
			}
			for steps := 0; len(l.requests) > 0; steps++ {
				if steps > 5000 {
					t.Fatalf("%d requests do not end", len(l.requests))
				}
				l.turn()
			}
			if l.s.Running()+l.s.Waiting()+l.s.InFlight() > 0 {
				t.Error("the scheduler is not empty")
			}
			must(t, l.st.Idle())
		})
	}
	for _, what := range []string{"ended", "stopped", "cancelled", "swapped", "recomputed", "drain", "replan"} {
		if counts[what] == 0 {
			t.Errorf("%q never happened: %v", what, counts)
		}
	}
}

func (l *loop) submit(id ID) {
	limit := 2 + l.rng.IntN(toyMaxLen-1)
	prompt := 1 + l.rng.IntN(limit)
	must(l.t, l.st.Fits(limit))
	must(l.t, l.s.Add(sched.Request{ID: id, Prompt: prompt, Limit: limit, Drafts: l.rng.IntN(l.win.T)}))
	l.requests[id] = &request{limit: limit, h: start, known: words(prompt, uint64(id))}
}

// turn launches a step, then takes the results of the one before.
func (l *loop) turn() {
	p := l.plan()
	if !p.Empty() {
		l.launch(p)
	}
	if len(l.flying) > 1 || p.Empty() && len(l.flying) > 0 {
		l.collect()
	}
	if id, ok := l.anyone(); ok && l.rng.IntN(60) == 0 {
		l.finish(id, "cancelled")
	}
	l.check()
}

func (l *loop) anyone() (ID, bool) {
	for id := ID(1); id < 25; id++ {
		if l.requests[id] != nil && l.rng.IntN(4) == 0 {
			return id, true
		}
	}
	return 0, false
}

// plan schedules until memory can take it.
func (l *loop) plan() *sched.Plan {
	p := &sched.Plan{}
	for {
		l.s.Schedule(p)
		var needs []Need
		for _, r := range p.Steps {
			needs = append(needs, Need{ID: r.ID, Tokens: r.Upper})
		}
		for _, r := range p.Prefills {
			kind := Chunk
			if r.Final {
				kind = LastChunk
			}
			needs = append(needs, Need{ID: r.ID, Tokens: r.Upper, Prefill: kind})
		}
		err := l.st.Prepare(l.work, needs)
		if err == nil {
			l.flush()
			l.s.Commit(p)
			return p
		}
		var short *Shortage
		if !errors.As(err, &short) {
			l.t.Fatal(err)
		}
		what, id := l.s.Relieve(p)
		l.counts[what.String()]++
		switch what {
		case sched.Drain:
			l.collect()
		case sched.Preempt:
			l.preempt(id)
		case sched.Hopeless:
			l.t.Fatalf("%d does not fit alone: %v", id, err)
		}
	}
}

func (l *loop) preempt(id ID) {
	r := l.requests[id]
	l.verify(id, r.h)
	err := l.st.SwapOut(l.work, id, l.cursor(id))
	if errors.Is(err, ErrHostMemory) {
		l.st.Release(id)
		r.h = start
		l.s.Preempt(id, false)
		l.counts["recomputed"]++
		return
	}
	must(l.t, err)
	l.s.Preempt(id, true)
	l.counts["swapped"]++
}

// launch does a step on the device.
func (l *loop) launch(p *sched.Plan) {
	f := launched{plan: p}
	for _, row := range p.Steps {
		r, id := l.requests[row.ID], row.ID
		n := 0
		if !r.stopped {
			n = min(row.N, r.limit-len(r.known))
		}
		if n > 0 {
			tokens := append(l.lastOf(r), words(n-1, uint64(1000+len(r.known)))...)
			a := 1 + l.rng.IntN(n)
			r.h = l.step(id, r.h, tokens, a)
			r.known = append(r.known, tokens[1:a]...)
			l.sampled(&f, id)
			f.accepted = append(f.accepted, int32(a))
			continue
		}
		f.accepted = append(f.accepted, 0)
	}
	for i, row := range p.Prefills {
		r := l.requests[row.ID]
		if r.h.tokens() != row.Start {
			l.t.Fatalf("prefill from %d, the state has %d", row.Start, r.h.tokens())
		}
		scratch, stage := l.st.Staged(len(p.Steps) + i)
		if scratch < 0 && !row.Final {
			l.t.Fatal("an unfinished prompt without a scratch block")
		}
		r.h = l.chunk(row.ID, r.h, r.known[row.Start:row.Start+row.N], scratch, stage)
		f.accepted = append(f.accepted, 0)
		if row.Final && len(r.known) != row.Start+row.N {
			l.t.Fatalf("a prompt of %d tokens ends at %d", len(r.known), row.Start+row.N)
		}
		if row.Final {
			l.sampled(&f, row.ID)
		}
	}
	l.flying = append(l.flying, f)
}

func (l *loop) lastOf(r *request) []uint64 { return []uint64{r.known[len(r.known)-1]} }

// sampled appends a token to what is known, and stops at the limit or by chance.
func (l *loop) sampled(f *launched, id ID) {
	r := l.requests[id]
	if len(r.known) < r.limit {
		r.known = append(r.known, l.rng.Uint64())
	}
	if len(r.known) >= r.limit || l.rng.IntN(30) == 0 {
		r.stopped = true
		f.stopped = append(f.stopped, id)
		if len(r.known) < r.limit {
			l.counts["stopped"]++
		}
	}
}

func (l *loop) collect() {
	f := l.flying[0]
	l.flying = l.flying[1:]
	l.s.Applied(f.plan, f.accepted)
	for _, id := range f.stopped {
		if l.requests[id] != nil {
			l.verify(id, l.requests[id].h)
			l.finish(id, "ended")
		}
	}
}

func (l *loop) finish(id ID, why string) {
	l.counts[why]++
	l.s.Remove(id)
	l.st.Release(id)
	delete(l.requests, id)
}
