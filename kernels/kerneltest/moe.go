package kerneltest

import (
	"fmt"

	"reprise/kernels"
)

func moeCases() []testcase {
	list := []testcase{
		{"route softmax", routeCase(kernels.Route{Score: kernels.Softmax, TopK: 2, Normalize: true, Scale: 1}, 8, nil)},
		{"route softmax all", routeCase(kernels.Route{Score: kernels.Softmax, TopK: 7, Scale: 1}, 7, nil)},
		{"route one expert", routeCase(kernels.Route{Score: kernels.Softmax, TopK: 1, Normalize: true, Scale: 1}, 1, nil)},
		{"route sigmoid", routeCase(kernels.Route{Score: kernels.Sigmoid, TopK: 6, Normalize: true, Scale: 2.5}, 128, []float32{0.1, -0.2, 0, 0.05, 0.3})},
		{"route not normalised", routeCase(kernels.Route{Score: kernels.Sigmoid, TopK: 3, Scale: 5}, 33, []float32{0.3, 0, -0.3})},
		{"route groups", routeCase(kernels.Route{Score: kernels.Sigmoid, TopK: 5, Groups: 4, TopGroups: 2, Normalize: true, Scale: 2.5}, 32, []float32{0.1, -0.2, 0.4})},
		{"route one group kept", routeCase(kernels.Route{Score: kernels.Softmax, TopK: 4, Groups: 8, TopGroups: 1, Scale: 1}, 32, nil)},
		{"route groups of one", routeCase(kernels.Route{Score: kernels.Sigmoid, TopK: 3, Groups: 6, TopGroups: 3, Scale: 1}, 6, nil)},
		{"route 512", routeCase(kernels.Route{Score: kernels.Sigmoid, TopK: 22, Normalize: true, Scale: 5}, 512, []float32{0.01, 0.02})},
	}
	for _, t := range weightTypes {
		for _, act := range []kernels.Activation{kernels.SiLUMul, kernels.ReLU2} {
			for _, stacked := range []bool{true, false} {
				name := fmt.Sprintf("experts %s act %d stacked %t", t, act, stacked)
				list = append(list, testcase{name, func(b *bench) { expertsCase(b, t, act, stacked, 6, 33, 35, 2) }})
			}
		}
	}
	return append(list,
		testcase{"experts latent wide", func(b *bench) { b.wide = true; expertsCase(b, kernels.BF16, kernels.ReLU2, true, 9, 16, 130, 5) }},
		testcase{"experts no tokens", func(b *bench) { expertsTokens(b, kernels.BF16, kernels.SiLUMul, true, 4, 8, 8, 2, 0) }},
		testcase{"experts aligned silu", func(b *bench) { expertsTokens(b, kernels.BF16, kernels.SiLUMul, true, 6, 64, 72, 2, 40) }},
		testcase{"experts aligned relu2", func(b *bench) { expertsTokens(b, kernels.BF16, kernels.ReLU2, false, 6, 72, 90, 3, 12) }},
		testcase{"experts crowded", func(b *bench) { expertsTokens(b, kernels.BF16, kernels.SiLUMul, true, 3, 40, 24, 2, 150) }},
		testcase{"experts of many columns", func(b *bench) { expertsTokens(b, kernels.BF16, kernels.ReLU2, true, 4, 1096, 40, 2, 5) }},
		testcase{"experts many tokens", func(b *bench) { expertsTokens(b, kernels.F32, kernels.SiLUMul, true, 4, 17, 9, 2, 70) }})
}

// routeCase routes rows of distinct logits and rows full of ties.
func routeCase(p kernels.Route, experts int, bias []float32) func(b *bench) {
	return func(b *bench) {
		const tokens = 19
		v := b.normal(tokens*experts, 0, 1.5)
		for t := tokens / 2; t < tokens; t++ {
			for e := range experts { // sums of two scores stay apart: see sigmoid at 0, 1, 2
				v[t*experts+e] = float32(b.IntN(3))
			}
		}
		if len(bias) > 0 && p.Groups > 1 {
			v = v[:tokens/2*experts]
		}
		all := make([]float32, experts)
		for e := range all {
			if len(bias) > 0 {
				all[e] = bias[e%len(bias)]
			}
		}
		rows := len(v) / experts
		logits, correction := b.array("logits", encode(kernels.F32, v)), b.floats("bias", all)
		ids, weights := b.outInts("ids", rows*p.TopK), b.array("weights", encode(kernels.F32, nans(rows*p.TopK)))
		weights.allow(0, rows*p.TopK*4)
		b.run(func(o kernels.Ops, s side) {
			p := p
			p.Logits, p.IDs, p.Weights = kernels.NewMat(logits.buf[s], kernels.F32, rows, experts), ids.buf[s], weights.buf[s]
			if len(bias) > 0 {
				p.Bias = correction.buf[s]
			}
			o.Route(p)
		})
		b.same(ids)
		b.close("weights", fewRoundings, weights.whole32())
	}
}

// whole32 is all of an f32 array.
func (a *array) whole32() []piece { return []piece{{a, span{0, len(a.before)}, kernels.F32}} }

func expertsCase(b *bench, t kernels.DType, act kernels.Activation, stacked bool, experts, cols, inner, topK int) {
	expertsTokens(b, t, act, stacked, experts, cols, inner, topK, 7)
}

// expertParts is the rows of all experts as one tensor, or one an expert; gate and up are parts of their own.
func (b *bench) expertParts(t kernels.DType, stacked bool, experts, parts, rows, cols int) []kernels.HostTensor {
	var list []kernels.HostTensor
	for range parts {
		if stacked {
			list = append(list, b.tensor(t, experts, rows, cols))
			continue
		}
		for range experts {
			list = append(list, b.tensor(t, rows, cols))
		}
	}
	return list
}

// expertsTokens also runs the tokens one by one: the bits must be the same.
func expertsTokens(b *bench, t kernels.DType, act kernels.Activation, stacked bool, experts, cols, inner, topK, tokens int) {
	up := b.pack(kernels.WeightSpec{Name: "up", Experts: experts, Parts: b.expertParts(t, stacked, experts, act.InWidth(inner)/inner, inner, cols)})
	down := b.pack(kernels.WeightSpec{Name: "down", Experts: experts, Parts: b.expertParts(t, stacked, experts, 1, cols, inner)})
	b.checkWeight(up, t, experts, act.InWidth(inner), cols)
	var ids []int
	for i := range tokens {
		if i%3 == 2 { // two neighbours choose the same
			ids = append(ids, ids[len(ids)-topK:]...)
			continue
		}
		ids = append(ids, b.Perm(experts)[:topK]...)
	}
	chosen, weights := b.ints("ids", ids...), b.floats("weights", b.normal(len(ids), 0.5, 0.3))
	x, out, single := b.input("x", tokens, cols), b.output("out", tokens, cols, 0, tokens), b.output("single", tokens, cols, 0, tokens)
	b.run(func(o kernels.Ops, s side) {
		p := kernels.Experts{X: x.on(s), Out: out.on(s), Up: up[s], Down: down[s], Act: act, IDs: chosen.buf[s], Weights: weights.buf[s], TopK: topK}
		o.Experts(p)
		for i := range tokens {
			q, from, n := p, int64(4*i*topK), int64(4*topK)
			q.X, q.Out, q.IDs, q.Weights = p.X.RowRange(i, 1), single.on(s).RowRange(i, 1), chosen.buf[s].Slice(from, n), weights.buf[s].Slice(from, n)
			o.Experts(q)
		}
	})
	b.close("out", fewRoundings, out.all())
	b.twins("batch and singles", out.all(), single.all())
}
