//go:build cuda

package engine

import (
	"math"
	"slices"
	"testing"

	"reprise/internal/golden"
	"reprise/kernels"
	"reprise/kernels/cuda"
	"reprise/spec"
)

// gpu opens the first GPU. A binary built with CUDA is for a machine that has one: its absence is a failure.
func gpu(t *testing.T, act kernels.DType) kernels.Device {
	t.Helper()
	dev, err := cuda.Open(cuda.Options{Activations: act})
	if err != nil {
		t.Fatal(err)
	}
	return dev
}

// TestCUDAFloat32 gives the goldens in the mode that runs the shipped kernels with float32 activations: at once, in
// chunks, preempted, captured with and without drafts.
func TestCUDAFloat32(t *testing.T) {
	forGoldens(t, func(t *testing.T, g *golden.Golden) {
		longest, all := pagesFor(g, 4)
		for name, o := range map[string]Options{
			"at once":   {},
			"chunks":    {MaxTokens: 16, Window: 4},
			"preempted": {PageTokens: 4, KVBlocks: min(longest+2, all-1), MaxTokens: 64},
			"drafts":    {Drafts: 3, FixedDepth: true, MaxSeqs: 16},
			"few":       {Drafts: 2, FixedDepth: true, MaxSeqs: 16, DraftVocab: 65},
		} {
			if o.Drafts > 0 && len(g.Cases[0].Drafts) == 0 {
				continue // no MTP head
			}
			t.Run(name, func(t *testing.T) {
				checkGreedy(t, openOn(t, gpu(t, kernels.F32), g, o), g)
			})
		}
	})
}

// TestCUDALogProbs compares log probabilities of prompts: in float32 mode as on the CPU, in bfloat16 within twice the error
// of a plain bfloat16 run of another implementation. Where that error is above 0.05 an expert's routing flipped there,
// and the case says nothing; nor does one beyond the tolerance where routing flips here, by rounding alone.
func TestCUDALogProbs(t *testing.T) {
	for _, act := range []kernels.DType{kernels.F32, kernels.BF16} {
		t.Run(act.String(), func(t *testing.T) {
			forGoldens(t, func(t *testing.T, g *golden.Golden) {
				e := openOn(t, gpu(t, act), g, Options{MaxLogProbs: -1})
				for i, c := range g.Cases {
					tolerance := golden.LogitTolerance
					if act == kernels.BF16 {
						tolerance = 2 * c.BF16
					}
					if tolerance > 0.1 {
						continue
					}
					checkPrompt(t, g, e, i, tolerance, act == kernels.BF16 && e.Spec().Experts > 0)
				}
			})
		})
	}
}

// TestCUDAMixedSteps: in bfloat16 mode prompts in chunks beside steps of others, with drafts too, are answered in full, and
// without experts a first token is one that rounding may choose. Few steps of few rows, and no library: for compute-sanitizer.
func TestCUDAMixedSteps(t *testing.T) {
	drafts := Options{Window: 4, Drafts: 2, FixedDepth: true}
	for model, all := range map[string]map[string]Options{
		"nemotron-moe":          {"chunks": {Window: 2}},
		"qwen35-dense-tied-mtp": {"chunks": {Window: 2}, "drafts": drafts},
	} {
		t.Run(model, func(t *testing.T) {
			for name, o := range all {
				t.Run(name, func(t *testing.T) {
					dev, err := cuda.Open(cuda.Options{Activations: kernels.BF16, OwnProducts: true})
					if err != nil {
						t.Fatal(err)
					}
					mixedSteps(t, dev, golden.Open(t, model), o)
				})
			}
		})
	}
}

// mixedSteps has two prompts, of 17 and 65 tokens, in steps of at most 40: the second is in chunks, beside steps of the first.
func mixedSteps(t *testing.T, dev kernels.Device, g *golden.Golden, o Options) {
	t.Helper()
	const answer = 4
	o.MaxSeqs, o.MaxTokens, o.MaxLen, o.KVBlocks = 2, 40, 128, 32
	e, cases, all := openOn(t, dev, g, o), []int{2, 4}, []*Sequence{}
	for _, i := range cases {
		all = append(all, submit(t, e, greedy(g.Cases[i].Prompt, answer)))
	}
	for i, s := range all {
		c, r := &g.Cases[cases[i]], read(t, s)
		if r.err != nil || r.reason != Length || len(r.tokens) != answer {
			t.Fatalf("case %d: %d tokens, %q, %v", cases[i], len(r.tokens), r.reason, r.err)
		}
		// Twice the error of a plain bfloat16 run, in both of the logits that are compared.
		row, first, allowed := c.Logits[len(c.Logits)-1], r.tokens[0].ID, 2*2*c.BF16*c.Scale()
		if behind := float64(slices.Max(row) - row[first]); behind > allowed && e.Spec().Experts == 0 {
			t.Errorf("case %d: begins with %d, whose logit is %.3g below the largest, allowed %.3g", cases[i], first, behind, allowed)
		}
	}
}

func checkPrompt(t *testing.T, g *golden.Golden, e *Opened, i int, tolerance float64, mayFlip bool) {
	t.Helper()
	c := &g.Cases[i]
	r := greedy(c.Prompt, 1)
	r.LogProbs, r.PromptLogProbs = e.Limits().Vocab, e.Limits().Vocab
	out := read(t, submit(t, e, r))
	if out.err != nil {
		t.Fatal(out.err)
	}
	scored, worst := append(out.prompt, out.tokens...), 0.0
	for j, row := range c.Logits {
		want := golden.LogProbs(row)
		for _, a := range scored[len(c.Prompt)-len(c.Logits)+j].Top {
			if d := math.Abs(float64(a.LogProb)-want[a.ID]) / c.Scale(); !(d <= worst) {
				worst = d
			}
		}
	}
	t.Logf("case %d: %.2g of the largest logit, allowed %.2g", i, worst, 2*tolerance)
	if !(worst <= 2*tolerance) && !(mayFlip && flipped(t, g, c.Prompt) > 0) {
		t.Errorf("case %d: log probabilities differ by %.3g of the largest logit, allowed %.3g", i, worst, 2*tolerance)
	}
}

// TestCUDAFormats: in every format, float32 mode reads texts as the CPU does in the same format, and goes on with the same bits
// after a swap.
func TestCUDAFormats(t *testing.T) {
	dev := gpu(t, kernels.F32)
	r := newFormatReader(lent{dev})
	forFormats(t, formatModels(), func(t *testing.T, g *golden.Golden, f format) {
		if err := r.compare(t, g, f).fault(); err != nil {
			t.Error(err)
		}
		o := f.options(Options{Window: 8, MaxTokens: 24, MaxSeqs: 1, PageTokens: 4, MaxLogProbs: 5})
		want, _ := turned(t, lent{dev}, g, o, &g.Cases[3], nil)
		got, _ := turned(t, lent{dev}, g, o, &g.Cases[3], func(turn int) bool { return turn%3 != 1 })
		if err := got.equal(want); err != nil {
			t.Errorf("swapped: %v", err)
		}
	})
	if err := dev.Close(); err != nil {
		t.Error(err)
	}
}

// TestCUDACancel: the slot of a cancelled request is free within two steps, replayed ones too.
func TestCUDACancel(t *testing.T) {
	for _, drafts := range []int{0, 3} {
		cancelInTurn(t, gpu(t, kernels.F32), golden.Open(t, "qwen35-dense-tied-mtp"), drafts)
	}
}

// TestCUDASoak keeps four engines on one GPU saturated, 128 rows each, in the mode whose answers are exact.
//
//	engine.test -test.v -test.run TestCUDASoak -soak 8m
func TestCUDASoak(t *testing.T) {
	soakAll(t, *soakFor, func() kernels.Device { return gpu(t, kernels.F32) }, 128, []soakModel{
		{"demo-qwen35", Options{Drafts: 3, MaxTokens: 1024, PageTokens: 16, KVBlocks: 1000}},
		{"nemotron-moe", Options{MaxTokens: 256, PageTokens: 16, KVBlocks: 1000}},
		{"qwen35-moe-mtp", Options{Drafts: 4, DraftMethod: spec.NGram, FixedDepth: true, MaxTokens: 1024, PageTokens: 16, KVBlocks: 1000}},
		{"nemotron-latent-mtp", Options{Drafts: 2, FixedDepth: true, MaxTokens: 512, PageTokens: 16, KVBlocks: 1000}},
	})
}
