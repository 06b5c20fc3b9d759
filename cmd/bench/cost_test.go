package main

import (
	"math"
	"os"
	"testing"

	"reprise/engine"
	"reprise/kernels"
	"reprise/kernels/kernelbench"
	"reprise/model"
	"reprise/model/nemotron"
	"reprise/model/qwen35"
)

// An operation that waits for memory and one that waits for arithmetic take the time of both.
func TestFloorSumsOperations(t *testing.T) {
	c := cost{{bytes: 30, flops: 4}, {bytes: 3, flops: 40}}
	if got := c.floor(kernelbench.Rates{Read: 3, Flops: 4}); got != 20 {
		t.Errorf("%g, want 10 + 10", got)
	}
}

// costerOf is that of a configuration at T = 1 and L = 16, without its drafting head.
func costerOf(t *testing.T, path string) coster {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var c model.Config
	if c, err = qwen35.Parse(text, nil); err != nil {
		c, err = nemotron.Parse(text, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	out := coster{spec: c.Spec(), plan: &engine.Plan{Window: kernels.Window{L: 16, T: 1}}, act: kernels.BF16}
	out.plan.KV.DType = kernels.BF16
	for _, w := range c.Want() {
		if !engine.OfHead(w.Name) {
			out.want = append(out.want, w)
		}
	}
	return out
}

// The released shapes read their 4.2 and 3.6 billion weights for one token, and logits cost as many tokens as want them, whether
// the vocabulary is tied to the embedding (Qwen3.5-4B) or not.
func TestCosts(t *testing.T) {
	for path, gigabytes := range map[string]float64{"testdata/qwen3.5-4b/config.json": 8.41, "testdata/nano-4b-mtp/config.json": 7.13} {
		c := costerOf(t, path)
		total := func(list cost) (w work) {
			for _, each := range list {
				w.bytes, w.flops = w.bytes+each.bytes, w.flops+each.flops
			}
			return w
		}
		one, many, last := total(c.weights(1, 1)), total(c.weights(100, 100)), total(c.weights(100, 1))
		if math.Abs(one.bytes/1e9-gigabytes) > 0.01 || many.bytes != one.bytes {
			t.Errorf("%s: %.3f GB for one token, %.3f for 100, want %g", path, one.bytes/1e9, many.bytes/1e9, gigabytes)
		}
		if head := 2 * float64(c.spec.Vocab*c.spec.Hidden); math.Abs(many.flops-last.flops-99*head) > 1e-6*many.flops || math.Abs(many.flops-100*one.flops) > 1e-6*many.flops {
			t.Errorf("%s: %g flops, of all logits %g, of one token %g", path, last.flops, many.flops, one.flops)
		}
	}
}
