package ref

import "reprise/kernels"

func (o ops[F]) Experts(p kernels.Experts) {
	o.begin("Experts", p.Validate())
	x, out, up, down := o.matrix(p.X), o.matrix(p.Out), own(p.Up), own(p.Down)
	ids, weights := o.ints(p.IDs), o.floats(p.Weights, p.X.Rows*p.TopK)
	for t := range p.X.Rows {
		sum := make([]F, p.Out.Cols)
		for i := range p.TopK {
			e := ids.at(t*p.TopK + i)
			y := times(down.experts[e], activate(p.Act, times(up.experts[e], x.get(t))))
			for j := range sum {
				sum[j] += weights[t*p.TopK+i] * y[j]
			}
		}
		out.put(t, sum)
	}
}
