package engine

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"reprise/internal/golden"
	"reprise/sampler"
)

// pagesFor is the KV pages of the longest case, and of all cases together.
func pagesFor(g *golden.Golden, page int) (longest, all int) {
	for _, c := range g.Cases {
		n := (len(c.Prompt)+len(c.Greedy)+page)/page + 1
		longest, all = max(longest, n), all+n
	}
	return longest, all
}

// TestPreempted runs all cases in a pool too small for them, swapping to host memory and computing again.
func TestPreempted(t *testing.T) {
	forGoldens(t, func(t *testing.T, g *golden.Golden) {
		longest, all := pagesFor(g, 4)
		for _, c := range []struct {
			name string
			swap int64
		}{{"swapped", 0}, {"recomputed", 1}} {
			t.Run(c.name, func(t *testing.T) {
				e := open(t, g, Options{PageTokens: 4, KVBlocks: min(longest+2, all-1), SwapBytes: c.swap, MaxTokens: 64})
				checkGreedy(t, e, g)
				if e.Stats().Preemptions == 0 {
					t.Error("nothing was preempted: the test shows nothing")
				}
			})
		}
	})
}

// scored asks for everything that a step computes, so that equality means equality of all its bits.
func scored(c *golden.Case, n int) Request {
	r := greedy(c.Prompt, n)
	r.LogProbs, r.PromptLogProbs = 5, 5
	return r
}

func sameBits(a, b []Token) error {
	if len(a) != len(b) {
		return fmt.Errorf("%d tokens and %d", len(a), len(b))
	}
	bits := math.Float32bits
	for i := range a {
		if a[i].ID != b[i].ID || bits(a[i].LogProb) != bits(b[i].LogProb) || len(a[i].Top) != len(b[i].Top) {
			return fmt.Errorf("token %d: %+v and %+v", i, a[i], b[i])
		}
		for j := range a[i].Top {
			if a[i].Top[j].ID != b[i].Top[j].ID || bits(a[i].Top[j].LogProb) != bits(b[i].Top[j].LogProb) {
				return fmt.Errorf("token %d alternative %d: %+v and %+v", i, j, a[i].Top[j], b[i].Top[j])
			}
		}
	}
	return nil
}

func (r result) equal(o result) error {
	if err := sameBits(r.prompt, o.prompt); err != nil {
		return fmt.Errorf("prompt: %w", err)
	}
	return sameBits(r.tokens, o.tokens)
}

// alone runs every case on an otherwise idle engine.
func alone(t *testing.T, g *golden.Golden, o Options) []result {
	t.Helper()
	e := open(t, g, o)
	var out []result
	for i := range g.Cases {
		out = append(out, read(t, submit(t, e, scored(&g.Cases[i], 24))))
	}
	return out
}

// TestBatchEqualsSingleBitForBit: N requests at once give the bits of N single runs, whatever slots and pages they get,
// as long as prompts are cut at the same tokens (here: not at all).
func TestBatchEqualsSingleBitForBit(t *testing.T) {
	forGoldens(t, func(t *testing.T, g *golden.Golden) {
		want := alone(t, g, Options{MaxSeqs: 1, MaxLogProbs: 5})
		e := open(t, g, Options{PageTokens: 8, MaxLogProbs: 5})
		r := rand.New(rand.NewPCG(1, 2))
		for range 2 { // the second round finds slots and pages used, in another order
			order := r.Perm(len(g.Cases))
			running := make([]*Sequence, len(g.Cases))
			for _, i := range order {
				running[i] = submit(t, e, scored(&g.Cases[i], 24))
			}
			for i, s := range running {
				if err := read(t, s).equal(want[i]); err != nil {
					t.Errorf("case %d: %v", i, err)
				}
			}
		}
	})
}

// TestSwappedEqualsUninterruptedBitForBit: a sequence moved to host memory and back continues with the same bits.
func TestSwappedEqualsUninterruptedBitForBit(t *testing.T) {
	forGoldens(t, func(t *testing.T, g *golden.Golden) {
		want := alone(t, g, Options{MaxSeqs: 1, PageTokens: 4, MaxLogProbs: 5})
		longest, all := pagesFor(g, 4)
		e := open(t, g, Options{PageTokens: 4, KVBlocks: min(longest+2, all-1), MaxLogProbs: 5})
		var running []*Sequence
		for i := range g.Cases {
			running = append(running, submit(t, e, scored(&g.Cases[i], 24)))
		}
		for i, s := range running {
			if err := read(t, s).equal(want[i]); err != nil {
				t.Errorf("case %d: %v", i, err)
			}
		}
		if e.Stats().Preemptions == 0 {
			t.Error("nothing was preempted: the test shows nothing")
		}
	})
}

func sampled(prompt []int32, n int, seed uint64) Request {
	s := sampler.Default()
	s.Temperature, s.TopP, s.TopK, s.MinP, s.Seed = 0.9, 0.95, 40, 0.01, seed
	s.Repetition, s.Presence, s.Frequency = 1.1, 0.3, 0.2
	r := greedy(prompt, n)
	r.Sampling = s
	return r
}

// TestSeedDecidesWhateverTheNeighbours: the same seed gives the same tokens alone, in company and when preempted.
func TestSeedDecidesWhateverTheNeighbours(t *testing.T) {
	for _, name := range []string{"nemotron-moe", "qwen35-dense"} {
		g := golden.Open(t, name)
		e := open(t, g, Options{})
		longest, all := pagesFor(g, 4)
		small := open(t, g, Options{PageTokens: 4, KVBlocks: min(longest+2, all-1)})
		for _, seed := range []uint64{1, 1 << 63} {
			var want [][]int32
			for _, c := range g.Cases {
				want = append(want, read(t, submit(t, e, sampled(c.Prompt, 24, seed))).ids())
			}
			for _, engine := range []*Opened{e, small} {
				var running []*Sequence
				for _, c := range g.Cases {
					running = append(running, submit(t, engine, sampled(c.Prompt, 24, seed)))
					submit(t, engine, sampled(c.Prompt, 3, seed+1)).Cancel()
				}
				for i, s := range running {
					if got := read(t, s).ids(); !slices.Equal(got, want[i]) {
						t.Errorf("%s seed %d case %d: %v, alone %v", name, seed, i, got, want[i])
					}
				}
			}
		}
	}
}
