package cpu

import (
	"math"

	"reprise/kernels"
)

// stateRows is how many rows of a state are multiplied by all vectors before the next are (16 KB at 128 columns), which
// are asked for meanwhile.
const stateRows = 32

// Mamba2Step runs one task for each row and group of heads: the channels, records and norm of a group concern no other.
func (o *ops) Mamba2Step(p kernels.Mamba2) {
	o.enter("Mamba2Step")
	mustBeRows(p.Rows, true, p.Validate())
	o.ssm.mamba2Step = mamba2Step{p, o.ssmWorkers()}
	o.pool.parallel(p.Rows.Count*p.Dims.Groups, &o.ssm.mamba2Step)
}

// Mamba2Fold runs one task for each row and group.
func (o *ops) Mamba2Fold(p kernels.Mamba2) {
	o.enter("Mamba2Fold")
	mustBeRows(p.Rows, false, p.ValidateFold())
	o.ssm.mamba2Fold = mamba2Fold{p, o.ssmWorkers()}
	o.pool.parallel(p.Rows.Count*p.Dims.Groups, &o.ssm.mamba2Fold)
}

type mamba2Step struct {
	p       kernels.Mamba2
	workers []ssmMemory
}

func (s *mamba2Step) do(i, worker int) {
	g := newMamba2Group(&s.p, i, &s.workers[worker])
	clearTokens(g.out, g.row, s.p.Rows.T, g.x0, g.x0+g.width)
	if g.row.n == 0 {
		return
	}
	g.append()
	flush := g.row.flushes(s.p.State.Window)
	from := g.saved.read(flush)
	for head := range g.heads {
		g.output(g.head0+head, from)
		if flush {
			g.fold(g.head0 + head)
		}
	}
	for t := range g.row.n {
		g.finish(t, line(g.y, t))
	}
}

type mamba2Fold struct {
	p       kernels.Mamba2
	workers []ssmMemory
}

func (s *mamba2Fold) do(i, worker int) {
	g := newMamba2Group(&s.p, i, &s.workers[worker])
	if g.row.n == 0 || g.row.cursor.H == 0 {
		return
	}
	h := int(g.row.cursor.H)
	g.rings.b.gather(g.records.b, g.row.cursor.Origin, h, g.b0)
	for head := g.head0; head < g.head0+g.heads; head++ {
		g.load(head, h)
		g.fold(head)
	}
}

// mamba2Group is one group of heads of one row: the heads head0.., whose channels of x, z and the output start at x0,
// and whose B starts at b0 in the records.
type mamba2Group struct {
	p             *kernels.Mamba2
	d             kernels.Mamba2Dims
	m             *ssmMemory
	row           replayRow
	rings         rings
	saved         checkpoints
	out, z, dt    rows
	heads, head0  int
	width, x0, b0 int
	c, scores, y  tile // step: [n, State], [n, h+n], [n, width]
	records       mamba2Records
	weights       []float32
}

// mamba2Records are a group's records side by side: B of all, x, dt and decay of one head.
type mamba2Records struct {
	b, x   tile // [records, State], [records, HeadDim]
	dt     []float32
	decays []float64
}

func newMamba2Group(p *kernels.Mamba2, i int, m *ssmMemory) mamba2Group {
	m.reset()
	d, group := p.Dims, i%p.Dims.Groups
	g := mamba2Group{p: p, d: d, m: m, row: readRow(p.Rows, p.Cursors, i/d.Groups)}
	g.heads = d.Heads / d.Groups
	g.head0 = group * g.heads
	g.width = g.heads * d.HeadDim
	g.x0, g.b0 = group*g.width, group*d.State
	g.rings = ringsOf(&p.State, g.row.slot)
	g.saved = newCheckpoints(&p.State, kernels.Mamba2Checkpoint(d, p.State.Precision), g.row, m)
	g.out, g.z, g.dt = rowsOf(p.Out), rowsOf(p.Z), rowsOf(p.Dt)
	n := p.State.Window.Records()
	g.weights = m.floats.take(n)
	g.records = mamba2Records{
		grid(m.floats.take(n*d.State), d.State), grid(m.floats.take(n*d.HeadDim), d.HeadDim), m.floats.take(n), m.doubles.take(n),
	}
	return g
}

// load gathers x, dt and decay of the first n records of a head.
func (g *mamba2Group) load(head, n int) {
	r, a := &g.records, float64(f32(g.p.A)[head])
	g.rings.x.gather(r.x, g.row.cursor.Origin, n, g.x0+(head-g.head0)*g.d.HeadDim)
	for j := range n {
		r.dt[j] = g.rings.decay.row(g.row.cursor.Origin + int32(j))[head]
		r.decays[j] = math.Exp(a * float64(r.dt[j]))
	}
}

// append convolves the new tokens, stores their records and computes what they have in common for all heads.
func (g *mamba2Group) append() {
	n, h := g.row.n, int(g.row.cursor.H)
	g.c = grid(g.m.floats.take(n*g.d.State), g.d.State)
	g.scores = grid(g.m.floats.take(n*(h+n)), h+n)
	g.y = grid(g.m.floats.take(n*g.width), g.width)
	conv := newConvolution(g.m, g.p.XBC, g.p.ConvW, g.p.ConvB, g.d.Taps, g.rings.conv, g.row)
	for t := range n {
		i := g.row.next() + int32(t)
		x, b := g.rings.x.row(i)[g.x0:g.x0+g.width], g.rings.b.row(i)[g.b0:g.b0+g.d.State]
		g.convolve(&conv, t, x, b, line(g.c, t))
		g.timeSteps(t, g.rings.decay.row(i)[g.head0:g.head0+g.heads])
	}
	g.keep(&conv, 0)
	g.rings.b.gather(g.records.b, g.row.cursor.Origin, h+n, g.b0)
	for t := range n {
		dots(line(g.scores, t), g.records.b, line(g.c, t), h+t+1)
	}
}

// convolve is x, B and C of token t.
func (g *mamba2Group) convolve(conv *convolution, t int, x, b, c []float32) {
	inner, bc := g.d.Inner(), g.d.Groups*g.d.State
	conv.token(t, g.x0, x)
	conv.token(t, inner+g.b0, b)
	conv.token(t, inner+bc+g.b0, c)
}

// channels is from where to where the group's raw channels are.
func (g *mamba2Group) channels() [3][2]int {
	inner, bc := g.d.Inner(), g.d.Groups*g.d.State
	return [3][2]int{{g.x0, g.x0 + g.width}, {inner + g.b0, inner + g.b0 + g.d.State}, {inner + bc + g.b0, inner + bc + g.b0 + g.d.State}}
}

// keep stores the group's raw channels from token t on.
func (g *mamba2Group) keep(conv *convolution, t int) {
	for _, c := range g.channels() {
		conv.keep(t, c[0], c[1])
	}
}

// timeSteps is dt of token t by head of the group.
func (g *mamba2Group) timeSteps(t int, out []float32) {
	raw, bias := g.dt.row(g.row.first + t)[g.head0:], f32(g.p.DtBias)[g.head0:]
	for i := range out {
		dt := float32(softplus(float64(raw[i]) + float64(bias[i])))
		if dt = max(dt, g.p.DtMin); g.p.DtMax > 0 {
			dt = min(dt, g.p.DtMax)
		}
		out[i] = dt
	}
}

// output is y of the new tokens for one head from a checkpoint and records (paper Eq. 6).
func (g *mamba2Group) output(head int, from heldState) {
	n, h, dim := g.row.n, int(g.row.cursor.H), g.d.HeadDim
	col := (head - g.head0) * dim
	y := tile{g.y.data[col:], g.width, 1}
	g.saved.multiplyState(y, from, head, g.c, n)
	g.load(head, h+n)
	for t := range n {
		coef := g.weights[:h+t+1]
		before := replayWeights(coef, g.records.decays)
		for j, score := range line(g.scores, t)[:h+t+1] {
			coef[j] *= g.records.dt[j] * score
		}
		coef[h+t] += f32(g.p.D)[head]
		yt := grid(y.data[t*y.rows:], y.rows)
		product(yt, before, yt, grid(coef, len(coef)), g.records.x, 1, dim, len(coef))
	}
}

// fold replays the h committed records of a head, which are loaded.
func (g *mamba2Group) fold(head int) {
	h, r := int(g.row.cursor.H), &g.records
	before := replayWeights(g.weights[:h], r.decays)
	for j := range h {
		g.weights[j] *= r.dt[j]
	}
	g.saved.fold(head, before, g.weights[:h], r.x, r.b)
}

// finish gates y of token t, normalises it over the group and writes it out; y is overwritten.
func (g *mamba2Group) finish(t int, y []float32) {
	i := g.row.first + t
	z := g.z.row(i)[g.x0 : g.x0+g.width]
	prefetch(&z[0], lookAhead*g.z.stride, len(z))
	siluMul(y, z, y)
	scale := rootMeanSquare(y, g.p.Eps)
	scaleMul(g.out.row(i)[g.x0:g.x0+g.width], y, f32(g.p.NormW)[g.x0:], scale)
}

// rootMeanSquare is the factor 1 / sqrt(mean of x^2 + eps).
func rootMeanSquare(x []float32, eps float32) float32 {
	return float32(1 / math.Sqrt(float64(dot(x, x))/float64(len(x))+float64(eps)))
}
