package engine

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"

	"reprise/internal/golden"
	"reprise/sampler"
	"reprise/spec"
)

// samplings are requests with every sampling parameter in play.
func samplings(prompt []int32, vocab int, seed uint64) []Request {
	plain := sampled(prompt, 24, seed)
	hot := sampled(prompt, 24, seed)
	hot.Sampling.Temperature, hot.Sampling.TopP, hot.Sampling.TopK, hot.Sampling.Repetition = 1.4, 0.8, 0, 1.3
	fenced := sampled(prompt, 24, seed)
	for id := range vocab / 3 {
		fenced.Sampling.Allowed = append(fenced.Sampling.Allowed, int32(3*id))
	}
	fenced.Sampling.Bias, fenced.Sampling.Bad = map[int32]float32{6: 4, 9: -3}, []int32{12}
	fenced.StopIDs, fenced.MinTokens = fenced.Sampling.Allowed[:vocab/12], 5
	free := sampled(prompt, 24, seed)
	free.Sampling = sampler.Default()
	free.Sampling.Seed = seed
	list := []Request{plain, hot, fenced, free}
	for i := range list {
		list[i].LogProbs = 3
	}
	return list
}

// TestSeededSpeculativeEqualsPlain: with the same seeds the tokens are the same, and log probabilities are those of the
// model, whatever is drafted, by whom, and how much of it is wrong.
func TestSeededSpeculativeEqualsPlain(t *testing.T) {
	forDrafting(t, false, func(t *testing.T, g *golden.Golden) {
		var requests []Request
		for i, c := range g.Cases[:4] {
			requests = append(requests, samplings(c.Prompt, 192, uint64(i)<<40|7)...)
		}
		plain := open(t, g, Options{MaxLogProbs: 5})
		want, known := runAll(t, plain, requests), [][]int32{}
		for i, r := range requests {
			known = append(known, slices.Concat(r.Prompt, want[i].ids()))
		}
		for i, o := range []Options{
			{Drafts: 1}, {Drafts: 3, MaxTokens: 40}, {Drafts: 7, Window: 8}, {Drafts: 4, DraftMethod: spec.NGram},
		} {
			o.FixedDepth, o.MaxLogProbs = true, 5
			e := openPrompted(t, device(t), g, o, &prompter{texts: known, wrong: some})
			for j, got := range runAll(t, e, requests) {
				if err := alike(got, want[j]); err != nil {
					t.Errorf("%+v, request %d: %v", o, j, err)
				}
			}
			if a := e.Stats().Drafts; a.Accepted == 0 || a.Accepted == a.Drafted {
				t.Errorf("run %d: %+v: the test shows nothing", i, a)
			}
		}
	})
}

func runAll(t *testing.T, e generator, requests []Request) []result {
	t.Helper()
	var running []*Sequence
	for _, r := range requests {
		running = append(running, submit(t, e, r))
	}
	var out []result
	for _, s := range running {
		out = append(out, read(t, s))
	}
	return out
}

// alike requires the same tokens and end, and log probabilities that differ by rounding only.
func alike(a, b result) error {
	if !slices.Equal(a.ids(), b.ids()) || a.reason != b.reason || a.stop != b.stop {
		return fmt.Errorf("got %v (%s), want %v (%s)", a.ids(), a.reason, b.ids(), b.reason)
	}
	for i := range a.tokens {
		for j := range a.tokens[i].Top {
			if d := a.tokens[i].Top[j].LogProb - b.tokens[i].Top[j].LogProb; math.Abs(float64(d)) > 1e-3 {
				return fmt.Errorf("token %d: alternatives %v, want %v", i, a.tokens[i].Top, b.tokens[i].Top)
			}
		}
	}
	return nil
}

// TestDraftsSwappedEqualUninterruptedBitForBit: a sequence moved to host memory between any two steps goes on with the
// same drafts, the same steps and the same bits.
func TestDraftsSwappedEqualUninterruptedBitForBit(t *testing.T) {
	forDrafting(t, false, func(t *testing.T, g *golden.Golden) {
		for _, method := range []spec.Method{spec.MTPHead, spec.NGram} {
			o := Options{Drafts: 3, FixedDepth: true, DraftMethod: method, MaxLogProbs: 5, PageTokens: 4, Window: 8}
			for _, i := range []int{1, 3} {
				c := &g.Cases[i]
				want, steps := driven(t, g, o, c, nil)
				got, again := driven(t, g, o, c, func(turn int) bool { return turn%3 != 0 })
				if err := got.equal(want); err != nil {
					t.Errorf("%s, case %d: %v", method, i, err)
				}
				if fmt.Sprint(steps) != fmt.Sprint(again) || steps.Accepted == 0 {
					t.Errorf("%s, case %d: %+v swapped, %+v uninterrupted", method, i, again, steps)
				}
			}
		}
	})
}

// driven runs a case on an engine whose loop the test turns, and swaps the sequence out before the turns that are chosen.
func driven(t *testing.T, g *golden.Golden, o Options, c *golden.Case, swap func(turn int) bool) (result, spec.Acceptance) {
	t.Helper()
	e := openStill(t, device(t), g, o)
	p := &prompter{Drafter: e.drafter, texts: texts(g), wrong: some, known: map[int]map[int32]int32{}}
	e.drafter = p
	s := submit(t, e, scored(c, 30))
	swaps := swapped(t, e, s, swap)
	if swap != nil && swaps < 4 {
		t.Errorf("swapped %d times: the test shows nothing", swaps)
	}
	if p.tries < 3 {
		t.Errorf("%d steps were prompted: the test shows nothing", p.tries)
	}
	go e.loop()
	return read(t, s), e.Stats().Drafts
}

// swapped turns an engine's loop to the end of a sequence and swaps that out before the turns that are chosen. It returns how
// often it was.
func swapped(t *testing.T, e *Engine, s *Sequence, swap func(turn int) bool) (swaps int) {
	t.Helper()
	for turn := 0; ; turn++ {
		e.turn()
		q := e.seqs[s.id]
		if q == nil {
			return swaps
		}
		if swap == nil || !swap(turn) || !q.running {
			continue
		}
		for _, l := range [...]*lane{e.lanes[e.next], e.lanes[1-e.next]} {
			if l.busy {
				e.collect(l)
			}
		}
		if e.seqs[s.id] != nil && e.sched.Running() > 0 {
			e.preempt(s.id)
			swaps++
			if !e.states.Swapped(s.id) {
				t.Fatal("not swapped")
			}
		}
	}
}

// TestSpeculativeChiSquare draws tokens for many seeds with drafts that are right now and then, and compares how often each
// pair of first tokens occurs with what the model's probabilities, biases, penalties and top-p imply.
func TestSpeculativeChiSquare(t *testing.T) {
	if testing.Short() {
		t.Skip("thousands of tokens")
	}
	const seeds = 600
	g := golden.Open(t, "demo-qwen35") // random weights are too sure of themselves
	prompt := g.Cases[1].Prompt
	e := open(t, g, Options{MaxLogProbs: -1, MaxTokens: 64})
	s := evened(t, e, prompt)
	known, want := [][]int32{}, map[[2]int32]float64{}
	for a, p := range chances(t, e, prompt, nil, s) {
		next := chances(t, e, prompt, []int32{a}, s)
		for b, q := range next {
			want[[2]int32{a, b}] = p * q
		}
		guess := mostLikely(next)[0]
		known = append(known, slices.Concat(prompt, []int32{a, guess, guess, guess}))
	}
	drafting := openPrompted(t, device(t), g, Options{Drafts: 3, FixedDepth: true}, &prompter{texts: known})
	var requests []Request
	for seed := range seeds {
		r := greedy(prompt, 4)
		r.Sampling = s
		r.Sampling.Seed = uint64(seed) * 0x9e3779b97f4a7c15
		requests = append(requests, r)
	}
	count := map[[2]int32]int{}
	for _, r := range runAll(t, drafting, requests) {
		count[[2]int32(r.ids()[:2])]++
	}
	checkChiSquare(t, count, want, seeds)
	if a := drafting.Stats().Drafts; a.Accepted < seeds/10 || a.Accepted > a.Drafted*9/10 {
		t.Errorf("%+v: the test shows nothing", a)
	}
}

func checkChiSquare(t *testing.T, count map[[2]int32]int, want map[[2]int32]float64, n float64) {
	t.Helper()
	square, cells := 0.0, 0
	for pair := range count {
		if want[pair] == 0 {
			t.Errorf("%v was drawn %d times, which top-p excludes", pair, count[pair])
		}
	}
	for pair, p := range want {
		if p*n > 2 {
			d := float64(count[pair]) - n*p
			square += d * d / (n * p)
			cells++
		}
	}
	t.Logf("chi-square %.1f, %d cells", square, cells)
	if df := float64(cells - 1); square > df+4*math.Sqrt(2*df) || cells < 9 {
		t.Errorf("chi-square %.1f with %d cells", square, cells)
	}
}

// evened are parameters under which six tokens are about equally likely to follow the prompt.
func evened(t *testing.T, e *Opened, prompt []int32) sampler.Params {
	s := sampler.Default()
	first := chances(t, e, prompt, nil, s)
	s.Temperature, s.TopP, s.Presence, s.Frequency = 1.5, 0.9, 0.7, 0.4
	s.Allowed, s.Bias = mostLikely(first)[:6], map[int32]float32{}
	for i, id := range s.Allowed {
		s.Bias[id] = float32(-math.Log(first[id]) - 0.3*float64(i))
	}
	return s
}

// chances are the probabilities of the token behind prompt and output, after biases, penalties and top-p.
func chances(t *testing.T, e *Opened, prompt, output []int32, s sampler.Params) map[int32]float64 {
	t.Helper()
	r := greedy(slices.Concat(prompt, output), 1)
	r.LogProbs = e.Limits().Vocab
	weight, total := map[int32]float64{}, 0.0
	for _, a := range read(t, submit(t, e, r)).tokens[0].Top {
		if s.Allowed != nil && !slices.Contains(s.Allowed, a.ID) {
			continue
		}
		l := float64(a.LogProb) + float64(s.Bias[a.ID])
		if slices.Contains(output, a.ID) {
			l -= float64(s.Presence + s.Frequency)
		}
		weight[a.ID] = math.Exp(l / float64(s.Temperature))
		total += weight[a.ID]
	}
	sum, kept := 0.0, 0.0
	for _, id := range mostLikely(weight) {
		if s.TopP < 1 && sum >= float64(s.TopP)*total {
			weight[id] = 0
		}
		sum += weight[id]
		kept += weight[id]
	}
	for id := range weight {
		weight[id] /= kept
	}
	return weight
}

// mostLikely is the tokens in order of probability.
func mostLikely(p map[int32]float64) []int32 {
	return slices.SortedFunc(maps.Keys(p), func(a, b int32) int { return cmp.Or(cmp.Compare(p[b], p[a]), cmp.Compare(a, b)) })
}
