package ref

import "reprise/kernels"

func (o ops[F]) Activate(p kernels.Activate) {
	o.begin("Activate", p.Validate())
	x, y := o.matrix(p.X), o.matrix(p.Y)
	for i := range p.Y.Rows {
		y.put(i, activate(p.Kind, x.get(i)))
	}
}

// activate applies the nonlinearity to one token's row.
func activate[F real](kind kernels.Activation, x []F) []F {
	if kind == kernels.ReLU2 {
		for i, v := range x {
			x[i] = max(v, 0) * max(v, 0)
		}
		return x
	}
	gate, up := x[:len(x)/2], x[len(x)/2:]
	for i := range gate {
		gate[i] = silu(gate[i]) * up[i]
	}
	return gate
}
