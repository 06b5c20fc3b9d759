package ref

import "reprise/kernels"

func (o ops[F]) AddGated(p kernels.AddGated) {
	o.begin("AddGated", p.Validate())
	x, y := o.matrix(p.X), o.matrix(p.Y)
	for i := range p.X.Rows {
		v := x.get(i)
		if !p.Gate.Nil() {
			gate := sigmoid(o.matrix(p.Gate).get(i)[0])
			for j := range v {
				v[j] *= gate
			}
		}
		y.put(i, plus(v, y.get(i)))
	}
}
