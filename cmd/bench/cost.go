package main

import (
	"math"
	"slices"
	"strings"

	"reprise/engine"
	"reprise/kernels"
	"reprise/kernels/kernelbench"
	"reprise/model"
)

// cost is what the operations of a step must move and compute. Activations between them are not counted: they may stay in
// a cache.
type cost []work

type work struct{ bytes, flops float64 }

func (c *cost) add(bytes, flops float64) { *c = append(*c, work{bytes, flops}) }

// floor is the shortest time at the machine's own rates, of one operation after another.
func (c cost) floor(r kernelbench.Rates) (seconds float64) {
	for _, w := range c {
		seconds += max(w.bytes/r.Read, w.flops/r.Flops)
	}
	return seconds
}

// coster knows a model's sizes.
type coster struct {
	spec model.Spec
	want []model.TensorSpec
	plan *engine.Plan
	act  kernels.DType
}

// weights are the matrices that tokens at once multiply, logits of them the vocabulary: each is read once, of the experts
// those that are likely chosen.
func (c coster) weights(tokens, logits int) (out cost) {
	untied := slices.ContainsFunc(c.want, func(t model.TensorSpec) bool { return strings.HasSuffix(t.Name, "lm_head.weight") })
	for _, t := range c.want {
		embeds := strings.Contains(t.Name, "embed")
		switch {
		case engine.OfHead(t.Name) || embeds && untied:
		case embeds || strings.HasSuffix(t.Name, "lm_head.weight"):
			c.matrix(&out, t, logits)
		default:
			c.matrix(&out, t, tokens)
		}
	}
	return out
}

// matrix adds a matrix that so many tokens multiply.
func (c coster) matrix(out *cost, t model.TensorSpec, tokens int) {
	n := 1.0
	for _, d := range t.Shape {
		n *= float64(d)
	}
	read, used := c.share(t.Name, tokens)
	out.add(n*read*float64(t.DType.Size()), 2*n*used*float64(tokens))
}

// draft is what proposing k drafts for each of rows sequences takes behind a step of T tokens each: the head over the
// step's tokens, of which only the last of each sequence needs more than keys and values, then once for each further draft,
// with logits for each of the tokens that drafts are among.
func (c coster) draft(rows, t, k, context int) (out cost) {
	for i := range k {
		for _, w := range c.want {
			if !engine.OfHead(w.Name) {
				continue
			}
			tokens := rows
			if i == 0 && ofEveryToken(w.Name) {
				tokens = rows * t
			}
			c.matrix(&out, w, tokens)
		}
		if m := c.spec.MTP; m != nil {
			line := 2 * c.spec.KVHeads * c.spec.HeadDim * m.AttentionLayers * c.plan.KV.DType.Size()
			out.add(float64(rows*context*line), 4*float64(rows*context*c.spec.QHeads*c.spec.HeadDim*m.AttentionLayers))
		}
		head := float64(c.plan.DraftVocab * c.spec.Hidden)
		out.add(2*head, 2*head*float64(rows))
	}
	return out
}

// ofEveryToken reports whether a matrix of the drafting head leads to keys and values.
func ofEveryToken(name string) bool {
	for _, part := range []string{".fc.", ".eh_proj.", ".k_proj.", ".v_proj."} {
		if strings.Contains(name, part) {
			return true
		}
	}
	return false
}

// share is how much of a matrix tokens at once read, and how much of it each uses: of experts those that are chosen.
func (c coster) share(name string, tokens int) (read, used float64) {
	if !strings.Contains(name, ".experts.") {
		return 1, 1
	}
	used = float64(c.spec.TopK) / float64(c.spec.Experts)
	return 1 - math.Pow(1-used, float64(tokens)), used
}

// step is one step of rows sequences, each of t tokens behind so much context.
func (c coster) step(rows, t, context int) cost {
	out := c.weights(rows*t, rows*t)
	n := float64(rows)
	if s := c.spec; s.Mamba2Layers > 0 {
		bytes, flops := kernelbench.Mamba2Cost(s.Mamba2, c.plan.Window, t, c.act, c.plan.SSM.State)
		out.add(bytes*n*float64(s.Mamba2Layers), flops*n*float64(s.Mamba2Layers))
	}
	if s := c.spec; s.DeltaLayers > 0 {
		bytes, flops := kernelbench.DeltaCost(s.Delta, c.plan.Window, t, c.act, c.plan.SSM.State)
		out.add(bytes*n*float64(s.DeltaLayers), flops*n*float64(s.DeltaLayers))
	}
	out.add(n*float64(context)*float64(c.kvToken()), n*float64(t)*c.attention(float64(context)))
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

// prefill is some prompts of n tokens, in the chunked form of the scans with chunks of 64.
func (c coster) prefill(prompts, n int) cost {
	out := c.weights(prompts*n, prompts)
	tokens := float64(prompts * n)
	out.add(tokens*float64(c.kvToken()), tokens*c.attention(float64(n)/2))
	if d := c.spec.Mamba2; c.spec.Mamba2Layers > 0 {
		out.add(0, tokens*float64(c.spec.Mamba2Layers)*float64(4*d.Inner()*d.State+2*64*d.Inner()))
	}
	if d := c.spec.Delta; c.spec.DeltaLayers > 0 {
		out.add(0, tokens*float64(c.spec.DeltaLayers)*float64(6*d.Values()*d.KeyDim+4*64*d.Values()))
	}
	return out
}
