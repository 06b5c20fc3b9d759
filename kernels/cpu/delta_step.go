package cpu

import (
	"math"

	"reprise/kernels"
)

// keyEps is added to the sum of squares of a query or key before its root is taken.
const keyEps = 1e-6

// DeltaStep runs one task for each row and key head: the value heads, channels and records of a key head concern no
// other.
func (o *ops) DeltaStep(p kernels.Delta) {
	o.enter("DeltaStep")
	mustBeRows(p.Rows, true, p.Validate())
	o.ssm.deltaStep = deltaStep{p, o.ssmWorkers()}
	o.pool.parallel(p.Rows.Count*p.Dims.KeyHeads, &o.ssm.deltaStep)
}

// DeltaFold runs one task for each row and key head.
func (o *ops) DeltaFold(p kernels.Delta) {
	o.enter("DeltaFold")
	mustBeRows(p.Rows, false, p.ValidateFold())
	o.ssm.deltaFold = deltaFold{p, o.ssmWorkers()}
	o.pool.parallel(p.Rows.Count*p.Dims.KeyHeads, &o.ssm.deltaFold)
}

type deltaStep struct {
	p       kernels.Delta
	workers []ssmMemory
}

func (s *deltaStep) do(i, worker int) {
	g := newDeltaGroup(&s.p, i, &s.workers[worker])
	clearTokens(g.out, g.row, s.p.Rows.T, g.v0, g.v0+g.width)
	if g.row.n == 0 {
		return
	}
	g.append()
	flush := g.row.flushes(s.p.State.Window)
	from := g.saved.read(flush)
	if flush {
		g.prepareFold()
	}
	for head := range g.heads {
		g.output(g.head0+head, from)
		if flush {
			g.fold(g.head0 + head)
		}
	}
}

type deltaFold struct {
	p       kernels.Delta
	workers []ssmMemory
}

func (s *deltaFold) do(i, worker int) {
	g := newDeltaGroup(&s.p, i, &s.workers[worker])
	if g.row.n == 0 || g.row.cursor.H == 0 {
		return
	}
	h := int(g.row.cursor.H)
	g.rings.b.gather(g.records.k, g.row.cursor.Origin, h, g.k0)
	g.prepareFold()
	for head := g.head0; head < g.head0+g.heads; head++ {
		g.load(head, h, 0)
		g.fold(head)
	}
}

// deltaGroup is one key head of one row: its value heads are head0.., whose channels of v, z, u and the output start
// at v0; its own q and k channels start at k0.
type deltaGroup struct {
	p             *kernels.Delta
	d             kernels.DeltaDims
	m             *ssmMemory
	row           replayRow
	rings         rings
	saved         checkpoints
	out, z        rows
	heads, head0  int
	width, v0, k0 int
	probes, v     tile // [2n, KeyDim]: keys, then queries of the new tokens; [n, width]
	scores        tile // [2n, h+n]: probes times the keys of the records
	held          tile // [2n, ValueDim]: the checkpoint of one head times the probes
	records       deltaRecords
	weights       []float32
	again         deltaAgain
}

// deltaRecords are a group's records side by side: keys of all, u and decay of one value head.
type deltaRecords struct {
	k, u   tile // [records, KeyDim], [records, ValueDim]
	decays []float64
}

func newDeltaGroup(p *kernels.Delta, i int, m *ssmMemory) deltaGroup {
	m.reset()
	d, key := p.Dims, i%p.Dims.KeyHeads
	g := deltaGroup{p: p, d: d, m: m, row: readRow(p.Rows, p.Cursors, i/d.KeyHeads)}
	g.heads = d.ValueHeads / d.KeyHeads
	g.head0 = key * g.heads
	g.width = g.heads * d.ValueDim
	g.v0, g.k0 = key*g.width, key*d.KeyDim
	g.rings = ringsOf(&p.State, g.row.slot)
	g.saved = newCheckpoints(&p.State, kernels.DeltaCheckpoint(d, p.State.Precision), g.row, m)
	g.out, g.z = rowsOf(p.Out), rowsOf(p.Z)
	n := p.State.Window.Records()
	g.weights = m.floats.take(n)
	g.records = deltaRecords{
		grid(m.floats.take(n*d.KeyDim), d.KeyDim), grid(m.floats.take(n*d.ValueDim), d.ValueDim), m.doubles.take(n),
	}
	return g
}

// load gathers u of the first n records of a head, and the decays of those and the next more.
func (g *deltaGroup) load(head, n, more int) {
	g.rings.x.gather(g.records.u, g.row.cursor.Origin, n, head*g.d.ValueDim)
	for j := range n + more {
		g.records.decays[j] = math.Exp(float64(g.rings.decay.row(g.row.cursor.Origin + int32(j))[head]))
	}
}

// append convolves the new tokens, stores keys and decays, and multiplies the keys of all records with the new keys
// and queries. The corrections u follow head by head.
func (g *deltaGroup) append() {
	n, records := g.row.n, int(g.row.cursor.H)+g.row.n
	f := &g.m.floats
	g.probes, g.v = grid(f.take(2*n*g.d.KeyDim), g.d.KeyDim), grid(f.take(n*g.width), g.width)
	g.scores, g.held = grid(f.take(2*n*records), records), grid(f.take(2*n*g.d.ValueDim), g.d.ValueDim)
	conv := newConvolution(g.m, g.p.QKV, g.p.ConvW, kernels.Buffer{}, g.d.Taps, g.rings.conv, g.row)
	for t := range n {
		i := g.row.next() + int32(t)
		key := line(g.probes, t)
		g.convolve(&conv, t, line(g.probes, n+t), key, line(g.v, t))
		copy(g.rings.b.row(i)[g.k0:], key)
		decay := g.rings.decay.row(i)[g.head0:]
		for head := range g.heads {
			decay[head] = g.logDecay(t, g.head0+head)
		}
	}
	g.keep(&conv, 0)
	g.rings.b.gather(g.records.k, g.row.cursor.Origin, records, g.k0)
	for t := range n {
		before := records - n + t
		dots(line(g.scores, t), g.records.k, line(g.probes, t), before)
		dots(line(g.scores, n+t), g.records.k, line(g.probes, n+t), before+1)
	}
}

// convolve is q, k (normalised) and v of token t.
func (g *deltaGroup) convolve(conv *convolution, t int, q, k, v []float32) {
	conv.token(t, g.k0, q)
	conv.token(t, g.d.Keys()+g.k0, k)
	conv.token(t, 2*g.d.Keys()+g.v0, v)
	scale(float32(1/math.Sqrt((float64(dot(q, q))+keyEps)*float64(g.d.KeyDim))), q)
	scale(float32(1/math.Sqrt(float64(dot(k, k))+keyEps)), k)
}

// channels is from where to where the group's raw channels are.
func (g *deltaGroup) channels() [3][2]int {
	keys := g.d.Keys()
	return [3][2]int{{g.k0, g.k0 + g.d.KeyDim}, {keys + g.k0, keys + g.k0 + g.d.KeyDim}, {2*keys + g.v0, 2*keys + g.v0 + g.width}}
}

// keep stores the group's raw channels from token t on.
func (g *deltaGroup) keep(conv *convolution, t int) {
	for _, c := range g.channels() {
		conv.keep(t, c[0], c[1])
	}
}

func (g *deltaGroup) logDecay(t, head int) float32 {
	a := rowsOf(g.p.A).row(g.row.first + t)[head]
	return float32(float64(f32(g.p.DecayA)[head]) * softplus(float64(a)+float64(f32(g.p.DtBias)[head])))
}

// beta is the write strength of token t.
func (g *deltaGroup) beta(t, head int) float32 {
	return float32(logistic(float64(rowsOf(g.p.B).row(g.row.first + t)[head])))
}

// output finishes the records of the new tokens for one head (paper Eq. 10) and writes their outputs (Eq. 11).
func (g *deltaGroup) output(head int, from heldState) {
	n, h := g.row.n, int(g.row.cursor.H)
	g.saved.multiplyState(g.held, from, head, g.probes, 2*n)
	g.load(head, h, n)
	for t := range n {
		g.correct(head, t)
		y := line(g.held, n+t)
		g.addRecords(y, h+t+1, 1, line(g.scores, n+t))
		g.finish(t, head, y)
	}
}

// correct writes u of token t, whose earlier tokens have theirs: beta * (v - decayed state before it times its key).
func (g *deltaGroup) correct(head, t int) {
	h, dim := int(g.row.cursor.H), g.d.ValueDim
	held := line(g.held, t)
	g.addRecords(held, h+t, float32(g.records.decays[h+t]), line(g.scores, t))
	u, v := line(g.records.u, h+t), line(g.v, t)[(head-g.head0)*dim:]
	beta, i := g.beta(t, head), g.row.next()+int32(t)
	correction(u, beta, v, held)
	copy(g.rings.x.row(i)[head*dim:], u)
	if g.p.State.Precision.Two() {
		copy(g.rings.v.row(i)[head*dim:][:dim], v)
		g.rings.beta.row(i)[head] = beta
	}
}

// correction is u = beta * (v - held).
func correction(u []float32, beta float32, v, held []float32) {
	for i := range u {
		u[i] = beta * (v[i] - held[i])
	}
}

// addRecords turns y = S q into last * (the state after n records) q, given the keys of the records times q.
func (g *deltaGroup) addRecords(y []float32, n int, last float32, products []float32) {
	coef := g.weights[:n]
	before := replayWeights(coef, g.records.decays)
	for j := range coef {
		coef[j] *= last * products[j]
	}
	yt := grid(y, len(y))
	product(yt, last*before, yt, grid(coef, n), g.records.u, 1, len(y), n)
}

// deltaAgain is what a fold derives corrections anew with, where there are two precisions.
type deltaAgain struct {
	keys tile // [h, h]: keys of the records times each other
	held tile // [h, ValueDim]: the checkpoint of one head times the keys
}

// prepareFold computes what the folds of all heads have in common. The keys of the records are gathered.
func (g *deltaGroup) prepareFold() {
	if !g.p.State.Precision.Two() {
		return
	}
	h := int(g.row.cursor.H)
	g.again = deltaAgain{grid(g.m.floats.take(h*h), h), grid(g.m.floats.take(h*g.d.ValueDim), g.d.ValueDim)}
	for j := range h {
		dots(line(g.again.keys, j), g.records.k, line(g.records.k, j), j)
	}
}

// fold replays the h committed records of a head, which are loaded.
func (g *deltaGroup) fold(head int) {
	if g.p.State.Precision.Two() {
		g.derive(head)
	}
	weights := g.weights[:g.row.cursor.H]
	before := replayWeights(weights, g.records.decays)
	g.saved.fold(head, before, weights, g.records.u, g.records.k)
}

// derive makes the corrections of the h committed records those of the recurrence from the checkpoint that carries it
// (paper Algorithm 6, line 8): the recorded ones have seen the copy.
func (g *deltaGroup) derive(head int) {
	h, dim := int(g.row.cursor.H), g.d.ValueDim
	g.saved.multiplyState(g.again.held, g.saved.carried(), head, g.records.k, h)
	for j := range h {
		held := line(g.again.held, j)
		g.addRecords(held, j, float32(g.records.decays[j]), line(g.again.keys, j))
		i := g.row.cursor.Origin + int32(j)
		correction(line(g.records.u, j), g.rings.beta.row(i)[head], g.rings.v.row(i)[head*dim:], held)
	}
}

// finish normalises y of token t and head, gates it and writes it out.
func (g *deltaGroup) finish(t, head int, y []float32) {
	factor := rootMeanSquare(y, g.p.Eps)
	from, to := head*g.d.ValueDim, (head+1)*g.d.ValueDim
	out := g.out.row(g.row.first + t)[from:to]
	scaleMul(out, y, f32(g.p.NormW), factor)
	z := g.z.row(g.row.first + t)[from:to]
	prefetch(&z[0], lookAhead*g.z.stride, len(z))
	siluMul(out, z, out)
}
