package cpu

import (
	"math"

	"reprise/kernels"
)

// elementsATask is the least work worth handing to another worker, in numbers touched.
const elementsATask = 1 << 13

// rowTask runs one of the row by row operations over rows [i*each, (i+1)*each).
type rowTask struct {
	count, each int
	row         func(r, worker int)
}

func (t *rowTask) do(i, worker int) {
	for r := i * t.each; r < min((i+1)*t.each, t.count); r++ {
		t.row(r, worker)
	}
}

// eachRow calls row, a bound method that was made once, for rows of the given cost in numbers touched.
func (o *ops) eachRow(count, cost int, row func(r, worker int)) {
	parts, each := o.share(count, 1+elementsATask/max(1, cost))
	o.byRow = rowTask{count, each, row}
	o.pool.parallel(parts, &o.byRow)
}

type embedding struct {
	table *weight
	ids   []int32
	out   rows
}

// Embed widens rows of a table.
func (o *ops) Embed(p kernels.Embed) {
	o.enter("Embed")
	must(p.Validate())
	table := p.Table.(*weight)
	o.embedding = embedding{table, i32(p.IDs), rowsOf(p.Out)}
	o.eachRow(p.Out.Rows, p.Out.Cols, o.embedRow)
}

func (e *embedding) row(r, _ int) {
	id := int(e.ids[r])
	if id < 0 || id >= e.table.rows {
		fail("token %d of a table of %d", id, e.table.rows)
	}
	widen(e.out.row(r), e.table.row(id), e.table.dtype)
}

type norm struct {
	x, add, y rows
	weight    []float32
	eps       float32
}

// Norm adds into the residual and normalises.
func (o *ops) Norm(p kernels.Norm) {
	o.enter("Norm")
	must(p.Validate())
	o.norm = norm{x: rowsOf(p.X), y: rowsOf(p.Y), weight: f32(p.Weight), eps: p.Eps}
	if !p.Add.Nil() {
		o.norm.add = rowsOf(p.Add)
	}
	o.eachRow(p.X.Rows, p.X.Cols, o.normRow)
}

func (n *norm) row(r, _ int) {
	x := n.x.row(r)
	if n.add.data != nil {
		axpy(1, n.add.row(r), x)
	}
	normalise(n.y.row(r), x, n.weight, n.eps)
}

// normalise writes x / rms(x) * w.
func normalise(y, x, w []float32, eps float32) {
	factor := inverseRMS(x, eps)
	y, w = y[:len(x)], w[:len(x)]
	for i, v := range x {
		y[i] = v * factor * w[i]
	}
}

// inverseRMS is 1 / sqrt(mean(x^2) + eps).
func inverseRMS(x []float32, eps float32) float32 {
	return 1 / float32(math.Sqrt(float64(dot(x, x)/float32(len(x))+eps)))
}

type activation struct {
	scratch []scratch
	kind    kernels.Activation
	x, y    rows
	width   int // columns of Y a piece
	pieces  int // a row
}

// activationWidth is the columns of a piece of a row: few rows are wide enough to share.
const activationWidth = 2048

// Activate applies the nonlinearity of an MLP.
func (o *ops) Activate(p kernels.Activate) {
	o.enter("Activate")
	must(p.Validate())
	o.activate(p.Kind, rowsOf(p.X), rowsOf(p.Y))
}

func (o *ops) activate(kind kernels.Activation, x, y rows) {
	pieces := (y.cols + activationWidth - 1) / activationWidth
	o.activation = activation{o.scratch, kind, x, y, activationWidth, pieces}
	o.eachRow(y.count*pieces, 4*min(y.cols, activationWidth), o.activatePiece)
}

// piece is one stretch of columns of one row.
func (a *activation) piece(i, worker int) {
	row, from := i/a.pieces, i%a.pieces*a.width
	y := a.y.row(row)
	x := a.x.row(row)
	n := min(a.width, len(y)-from)
	if a.kind == kernels.ReLU2 {
		reluSquared(y[from:from+n], x[from:from+n])
		return
	}
	siluProduct(y[from:from+n], x[from:from+n], x[len(y)+from:], a.scratch[worker].take(n))
}

func reluSquared(y, x []float32) {
	for i, v := range x {
		v = max(v, 0)
		y[i] = v * v
	}
}

// siluProduct writes x * sigmoid(x) * up; buffer is as long as x.
func siluProduct(y, x, up, buffer []float32) {
	sigmoid(buffer, x)
	up, y = up[:len(x)], y[:len(x)]
	for i, v := range x {
		y[i] = v * buffer[i] * up[i]
	}
}

// sigmoid writes 1 / (1 + e^-x); dst is not x.
func sigmoid(dst, x []float32) {
	dst = dst[:len(x)]
	for i, v := range x {
		dst[i] = -v
	}
	exp(dst, dst)
	for i, e := range dst {
		dst[i] = 1 / (1 + e)
	}
}

type gathering struct {
	x, y  rows
	index []int32
}

// GatherRows copies chosen rows.
func (o *ops) GatherRows(p kernels.GatherRows) {
	o.enter("GatherRows")
	must(p.Validate())
	o.gathering = gathering{rowsOf(p.X), rowsOf(p.Y), i32(p.Index)}
	o.eachRow(p.Y.Rows, p.Y.Cols, o.gatherRow)
}

func (g *gathering) row(r, _ int) {
	y := g.y.row(r)
	if from := g.index[r]; from >= 0 {
		if int(from) >= g.x.count {
			fail("gather row %d of %d", from, g.x.count)
		}
		copy(y, g.x.row(int(from)))
		return
	}
	clear(y)
}

type gatedSum struct{ gate, x, y rows }

// AddGated is Y += sigmoid(gate) X.
func (o *ops) AddGated(p kernels.AddGated) {
	o.enter("AddGated")
	must(p.Validate())
	o.gatedSum = gatedSum{x: rowsOf(p.X), y: rowsOf(p.Y)}
	if !p.Gate.Nil() {
		o.gatedSum.gate = rowsOf(p.Gate)
	}
	o.eachRow(p.X.Rows, p.X.Cols, o.addRow)
}

func (g *gatedSum) row(r, _ int) {
	factor := float32(1)
	if g.gate.data != nil {
		var one [1]float32
		sigmoid(one[:], g.gate.row(r))
		factor = one[0]
	}
	axpy(factor, g.x.row(r), g.y.row(r))
}
