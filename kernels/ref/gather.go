package ref

import "reprise/kernels"

func (o ops[F]) GatherRows(p kernels.GatherRows) {
	o.begin("GatherRows", p.Validate())
	x, y, index := o.matrix(p.X), o.matrix(p.Y), o.ints(p.Index)
	for i := range p.Y.Rows {
		if from := index.at(i); from >= 0 {
			copy(y.row(i).data, x.row(from).data)
		} else {
			y.zero(i)
		}
	}
}
