package ref

import "reprise/kernels"

func (o ops[F]) Norm(p kernels.Norm) {
	o.begin("Norm", p.Validate())
	x, y, w := o.matrix(p.X), o.matrix(p.Y), o.floats(p.Weight, p.X.Cols)
	for i := range p.X.Rows {
		v := x.get(i)
		if !p.Add.Nil() {
			for j, a := range o.matrix(p.Add).get(i) {
				v[j] += a
			}
			x.put(i, v)
			v = x.get(i)
		}
		y.put(i, normalise(v, w, F(p.Eps)))
	}
}
