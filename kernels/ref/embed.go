package ref

import (
	"fmt"

	"reprise/kernels"
)

func (o ops[F]) Embed(p kernels.Embed) {
	o.begin("Embed", p.Validate())
	table, ids, out := own(p.Table), o.ints(p.IDs), o.matrix(p.Out)
	for i := range p.Out.Rows {
		id := ids.at(i)
		if id < 0 || id >= table.rows {
			panic(fmt.Sprintf("ref: token %d of a table of %d", id, table.rows))
		}
		row[float64]{out.row(i).values}.store(table.experts[0][id])
	}
}
