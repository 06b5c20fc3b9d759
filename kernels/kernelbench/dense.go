package kernelbench

import (
	"fmt"

	"reprise/kernels"
)

func denseCases(small bool) (out []maker) {
	shapes := []struct{ m, n, k int }{
		{1, 4096, 4096}, {1, 14336, 4096}, {8, 4096, 4096}, {32, 4096, 4096}, {64, 4096, 4096}, {512, 4096, 4096}, {2048, 4096, 4096},
	}
	if small {
		shapes = shapes[:1]
		shapes[0].n, shapes[0].k = 64, 64
	}
	for _, s := range shapes {
		out = append(out, maker{"linear bf16", fmt.Sprintf("%d x %d x %d", s.m, s.n, s.k), func(l *lab) Case { return linear(l, s.m, s.n, s.k, small) }})
	}
	rows := []int{1, 32, 512}
	if small {
		rows = rows[:1]
	}
	for _, m := range rows {
		out = append(out,
			maker{"norm + residual", fmt.Sprintf("%d x 4096", m), func(l *lab) Case { return norm(l, m, 4096, small) }},
			maker{"silu-mul", fmt.Sprintf("%d x 9216", m), func(l *lab) Case { return activate(l, kernels.SiLUMul, m, 9216, small) }},
			maker{"relu2", fmt.Sprintf("%d x 12544", m), func(l *lab) Case { return activate(l, kernels.ReLU2, m, 12544, small) }})
	}
	return out
}

func linear(l *lab, m, n, k int, small bool) Case {
	weight := 2 * float64(n) * float64(k)
	act := float64(l.act().Size())
	c := Case{Bytes: weight + act*float64(m)*float64(n+k), Flops: 2 * float64(m) * float64(n) * float64(k)}
	c.Sets = sets(c.Bytes, c.Flops, small)
	weights := make([]kernels.Weight, c.Sets)
	for i := range weights {
		weights[i] = l.weight(0, n, k)
	}
	x, y := l.mat(m, k, 1), l.mat(m, n, 0)
	c.Run = func(o kernels.Ops, set int) { o.Linear(kernels.Linear{X: x, Y: y, W: weights[set]}) }
	return c
}

func norm(l *lab, m, n int, small bool) Case {
	act := float64(l.act().Size())
	c := Case{Bytes: act*4*float64(m*n) + 4*float64(n), Flops: 6 * float64(m*n)}
	c.Sets = sets(c.Bytes, c.Flops, small)
	x, add, y := l.mat(c.Sets*m, n, 1), l.mat(c.Sets*m, n, 0), l.mat(c.Sets*m, n, 0)
	w := l.floats(kernels.F32, int64(n), 1)
	c.Run = func(o kernels.Ops, set int) {
		o.Norm(kernels.Norm{X: x.RowRange(set*m, m), Add: add.RowRange(set*m, m), Y: y.RowRange(set*m, m), Weight: w, Eps: 1e-6})
	}
	return c
}

func activate(l *lab, kind kernels.Activation, m, n int, small bool) Case {
	act := float64(l.act().Size())
	in := kind.InWidth(n)
	c := Case{Bytes: act * float64(m*(in+n)), Flops: 4 * float64(m*n)}
	c.Sets = sets(c.Bytes, c.Flops, small)
	x, y := l.mat(c.Sets*m, in, 1), l.mat(c.Sets*m, n, 0)
	c.Run = func(o kernels.Ops, set int) {
		o.Activate(kernels.Activate{Kind: kind, X: x.RowRange(set*m, m), Y: y.RowRange(set*m, m)})
	}
	return c
}

func moeCases(small bool) (out []maker) {
	type shape struct {
		name                   string
		experts, top, width, h int
		act                    kernels.Activation
	}
	shapes := []shape{{"30B-A3B", 128, 6, 1856, 2688, kernels.ReLU2}, {"35B-A3B", 256, 8, 512, 2048, kernels.SiLUMul}}
	tokens := []int{1, 32, 256}
	if small {
		shapes, tokens = []shape{{"tiny", 8, 2, 32, 64, kernels.SiLUMul}}, []int{3}
	}
	for _, s := range shapes {
		for _, m := range tokens {
			out = append(out, maker{"experts", fmt.Sprintf("%s %d tokens", s.name, m), func(l *lab) Case {
				return experts(l, m, s.experts, s.top, s.width, s.h, s.act)
			}})
		}
	}
	return out
}

// experts counts the weights of every expert that some token chose.
func experts(l *lab, m, n, top, width, h int, act kernels.Activation) Case {
	ids := make([]int32, 0, m*top)
	chosen := map[int32]bool{}
	for range m {
		for _, e := range l.rng.Perm(n)[:top] {
			ids = append(ids, int32(e))
			chosen[int32(e)] = true
		}
	}
	up, down := l.weight(n, act.InWidth(width), h), l.weight(n, h, width)
	each := float64(act.InWidth(width)*h + h*width)
	c := Case{Bytes: 2*each*float64(len(chosen)) + 2*float64(l.act().Size()*m*h), Flops: 2 * each * float64(m*top), Sets: 1}
	x, y := l.mat(m, h, 1), l.mat(m, h, 0)
	idBuf, weights := l.ints(ids...), l.floats(kernels.F32, int64(m*top), 1)
	c.Run = func(o kernels.Ops, _ int) {
		o.Experts(kernels.Experts{X: x, Out: y, Up: up, Down: down, Act: act, IDs: idBuf, Weights: weights, TopK: top})
	}
	return c
}
