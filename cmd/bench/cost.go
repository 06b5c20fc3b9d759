package main

import (
	"math"
	"strings"

	"reprise/engine"
	"reprise/kernels"
	"reprise/kernels/kernelbench"
	"reprise/model"
)

// cost is what a step must move and compute.
type cost struct{ bytes, flops float64 }

func (c *cost) add(bytes, flops float64) { c.bytes, c.flops = c.bytes+bytes, c.flops+flops }

// floor is the shortest time at the machine's own rates.
func (c cost) floor(r kernelbench.Rates) float64 { return max(c.bytes/r.Read, c.flops/r.Flops) }

// coster knows a model's sizes.
type coster struct {
	spec model.Spec
	want []model.TensorSpec
	plan *engine.Plan
	act  kernels.DType
}

// weights are the matrices that tokens at once multiply: each is read once, of the experts those that are likely chosen.
func (c coster) weights(tokens int) (out cost) {
	untied := false
	for _, t := range c.want {
		untied = untied || strings.HasSuffix(t.Name, "lm_head.weight")
	}
	for _, t := range c.want {
		if strings.HasPrefix(t.Name, "mtp.") || strings.Contains(t.Name, "embed") && untied {
			continue
		}
		n := 1.0
		for _, d := range t.Shape {
			n *= float64(d)
		}
		read, used := 1.0, 1.0
		if strings.Contains(t.Name, ".experts.") {
			used = float64(c.spec.TopK) / float64(c.spec.Experts)
			read = 1 - math.Pow(1-used, float64(tokens))
		}
		out.add(n*read*float64(t.DType.Size()), 2*n*used*float64(tokens))
	}
	return out
}

// step is one decode step of rows sequences, each with so much context.
func (c coster) step(rows, context int) cost {
	out := c.weights(rows)
	n := float64(rows)
	if s := c.spec; s.Mamba2Layers > 0 {
		bytes, flops := kernelbench.Mamba2Cost(s.Mamba2, c.plan.Window, 1, c.act)
		out.add(bytes*n*float64(s.Mamba2Layers), flops*n*float64(s.Mamba2Layers))
	}
	if s := c.spec; s.DeltaLayers > 0 {
		bytes, flops := kernelbench.DeltaCost(s.Delta, c.plan.Window, 1, c.act)
		out.add(bytes*n*float64(s.DeltaLayers), flops*n*float64(s.DeltaLayers))
	}
	out.add(n*float64(context)*float64(c.kvToken()), n*c.attention(float64(context)))
	return out
}

// kvToken is the bytes of one token in the KV cache.
func (c coster) kvToken() int {
	s := c.spec
	return 2 * s.KVHeads * s.HeadDim * s.AttentionLayers * c.plan.KV.DType.Size()
}

// attention is the arithmetic of one token over a context.
func (c coster) attention(context float64) float64 {
	return 4 * context * float64(c.spec.QHeads*c.spec.HeadDim*c.spec.AttentionLayers)
}

// prefill is a prompt of n tokens, in the chunked form of the scans with chunks of 64.
func (c coster) prefill(n int) cost {
	out := c.weights(n)
	tokens := float64(n)
	out.add(tokens*float64(c.kvToken()), tokens*c.attention(tokens/2))
	if d := c.spec.Mamba2; c.spec.Mamba2Layers > 0 {
		out.add(0, tokens*float64(c.spec.Mamba2Layers)*float64(4*d.Inner()*d.State+2*64*d.Inner()))
	}
	if d := c.spec.Delta; c.spec.DeltaLayers > 0 {
		out.add(0, tokens*float64(c.spec.DeltaLayers)*float64(6*d.Values()*d.KeyDim+4*64*d.Values()))
	}
	return out
}
