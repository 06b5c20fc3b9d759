package ref

import "reprise/kernels"

func (o ops[F]) Linear(p kernels.Linear) {
	o.begin("Linear", p.Validate())
	if !p.Whole() {
		p.Apart(o)
		return
	}
	x, y, w := o.matrix(p.X), o.matrix(p.Y), own(p.W).experts[0]
	for i := range p.X.Rows {
		v := times(w, x.get(i))
		if p.Add {
			v = plus(v, y.get(i))
		}
		y.put(i, v)
	}
}

func plus[F real](x, y []F) []F {
	for i := range x {
		x[i] += y[i]
	}
	return x
}
