//go:build cuda

package engine

import (
	"math"
	"testing"

	"reprise/internal/golden"
	"reprise/kernels"
	"reprise/kernels/cuda"
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
		} {
			t.Run(name, func(t *testing.T) {
				if o.Drafts > 0 && len(g.Cases[0].Drafts) == 0 {
					t.Skip("no MTP head")
				}
				checkGreedy(t, openOn(t, gpu(t, kernels.F32), g, o), g)
			})
		}
	})
}

// TestCUDALogProbs compares log probabilities of prompts: in float32 mode as on the CPU, in bfloat16 within twice the error
// of a plain bfloat16 run of another implementation. Where that error is above 0.05 an expert's routing flipped there,
// and the case says nothing.
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
					checkPrompt(t, e, i, &c, tolerance)
				}
			})
		})
	}
}

func checkPrompt(t *testing.T, e *Opened, i int, c *golden.Case, tolerance float64) {
	t.Helper()
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
	if !(worst <= 2*tolerance) {
		t.Errorf("case %d: log probabilities differ by %.3g of the largest logit, allowed %.3g", i, worst, 2*tolerance)
	}
}
