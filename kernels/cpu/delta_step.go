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
	mustBeValid(p.Validate())
	o.ssm.deltaStep = deltaStep{p, o.ssmWorkers()}
	o.pool.parallel(p.Rows.Count*p.Dims.KeyHeads, &o.ssm.deltaStep)
}

// DeltaFold runs one task for each row and key head.
func (o *ops) DeltaFold(p kernels.Delta) {
	o.enter("DeltaFold")
	mustBeValid(p.ValidateFold())
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
	for head := range g.heads {
		g.output(g.head0 + head)
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
	for head := range g.heads {
		g.fold(g.head0 + head)
	}
}

// deltaGroup is one key head of one row: its value heads are head0.., whose channels of v, z, u and the output start
// at v0; its own q and k channels start at k0.
type deltaGroup struct {
	p              *kernels.Delta
	d              kernels.DeltaDims
	m              *ssmMemory
	row            replayRow
	rings          rings
	out, z         rows
	heads, head0   int
	width, v0, k0  int
	q, v           tile // [n, KeyDim], [n, width]
	withK, withQ   tile // [n, h+n]: keys of the records times key, query of token t
	stateK, stateQ tile // [n, ValueDim] of one head: the checkpoint times key, query of token t
	decays         []float64
	weights        []float32
}

func newDeltaGroup(p *kernels.Delta, i int, m *ssmMemory) deltaGroup {
	m.reset()
	d, key := p.Dims, i%p.Dims.KeyHeads
	g := deltaGroup{p: p, d: d, m: m, row: readRow(p.Rows, p.Cursors, i/d.KeyHeads)}
	g.heads = d.ValueHeads / d.KeyHeads
	g.head0 = key * g.heads
	g.width = g.heads * d.ValueDim
	g.v0, g.k0 = key*g.width, key*d.KeyDim
	g.rings = ringsOf(p.State, g.row.slot)
	g.out, g.z = rowsOf(p.Out), rowsOf(p.Z)
	g.decays = m.doubles.take(p.State.Window.Records())
	g.weights = m.floats.take(p.State.Window.Records())
	return g
}

// append convolves the new tokens, stores keys and decays, and multiplies the keys of all records with the new keys
// and queries. The corrections u follow head by head.
func (g *deltaGroup) append() {
	n, records := g.row.n, int(g.row.cursor.H)+g.row.n
	f := &g.m.floats
	g.q, g.v = grid(f.take(n*g.d.KeyDim), g.d.KeyDim), grid(f.take(n*g.width), g.width)
	g.withK, g.withQ = grid(f.take(n*records), records), grid(f.take(n*records), records)
	g.stateK, g.stateQ = grid(f.take(n*g.d.ValueDim), g.d.ValueDim), grid(f.take(n*g.d.ValueDim), g.d.ValueDim)
	conv := newConvolution(g.m, g.p.QKV, g.p.ConvW, kernels.Buffer{}, g.d.Taps, g.rings.conv, g.row)
	for t := range n {
		i := g.row.next() + int32(t)
		g.convolve(&conv, t, g.query(t), g.key(i), g.v.data[t*g.width:][:g.width])
		decay := g.rings.decay.row(i)[g.head0:]
		for head := range g.heads {
			decay[head] = g.logDecay(t, g.head0+head)
		}
	}
	g.keep(&conv, 0)
	for t := range n {
		upTo := records - n + t + 1
		g.rings.b.dots(g.withK.data[t*records:][:upTo-1], g.row.cursor.Origin, g.k0, g.key(g.row.next()+int32(t)))
		g.rings.b.dots(g.withQ.data[t*records:][:upTo], g.row.cursor.Origin, g.k0, g.query(t))
	}
}

func (g *deltaGroup) query(t int) []float32 { return g.q.data[t*g.d.KeyDim:][:g.d.KeyDim] }

// key is the key of the record of token i.
func (g *deltaGroup) key(i int32) []float32 { return g.rings.b.row(i)[g.k0 : g.k0+g.d.KeyDim] }

// convolve is q, k (normalised) and v of token t.
func (g *deltaGroup) convolve(conv *convolution, t int, q, k, v []float32) {
	conv.token(t, g.k0, q)
	conv.token(t, g.d.Keys()+g.k0, k)
	conv.token(t, 2*g.d.Keys()+g.v0, v)
	scale(float32(1/math.Sqrt((float64(dot(q, q))+keyEps)*float64(g.d.KeyDim))), q)
	scale(float32(1/math.Sqrt(float64(dot(k, k))+keyEps)), k)
}

// keep stores the group's raw channels from token t on.
func (g *deltaGroup) keep(conv *convolution, t int) {
	keys := g.d.Keys()
	conv.keep(t, g.k0, g.k0+g.d.KeyDim)
	conv.keep(t, keys+g.k0, keys+g.k0+g.d.KeyDim)
	conv.keep(t, 2*keys+g.v0, 2*keys+g.v0+g.width)
}

func (g *deltaGroup) logDecay(t, head int) float32 {
	a := rowsOf(g.p.A).row(g.row.first + t)[head]
	return float32(float64(f32(g.p.DecayA)[head]) * softplus(float64(a)+float64(f32(g.p.DtBias)[head])))
}

// beta is the write strength of token t.
func (g *deltaGroup) beta(t, head int) float32 {
	return float32(logistic(float64(rowsOf(g.p.B).row(g.row.first + t)[head])))
}

// loadDecays reads the decays of the first n records of a head.
func (g *deltaGroup) loadDecays(head, n int) {
	for j := range n {
		g.decays[j] = math.Exp(float64(g.rings.decay.row(g.row.cursor.Origin + int32(j))[head]))
	}
}

// output finishes the records of the new tokens for one head (paper Eq. 10) and writes their outputs (Eq. 11).
func (g *deltaGroup) output(head int) {
	n, h, dim := g.row.n, int(g.row.cursor.H), g.d.ValueDim
	g.multiplyCheckpoint(head)
	g.loadDecays(head, h+n)
	for t := range n {
		g.correct(head, t)
		y := g.stateQ.data[t*dim:][:dim]
		g.addRecords(y, h+t+1, 1, g.withQ.data[t*g.withQ.rows:], head)
		g.finish(t, head, y)
	}
}

// multiplyCheckpoint is S k and S q of the new tokens; every part of S is read once.
func (g *deltaGroup) multiplyCheckpoint(head int) {
	state := headState(g.p.State, g.row.cursor.Src, head, g.d.ValueDim, g.d.KeyDim)
	for i := 0; i < g.d.ValueDim; i += stateRows {
		m := min(stateRows, g.d.ValueDim-i)
		part := grid(state[i*g.d.KeyDim:], g.d.KeyDim)
		for t := range g.row.n {
			dots(g.stateK.data[t*g.stateK.rows+i:][:m], part, g.key(g.row.next()+int32(t)), m)
			dots(g.stateQ.data[t*g.stateQ.rows+i:][:m], part, g.query(t), m)
		}
	}
}

// correct writes u of token t, whose earlier tokens have theirs: beta * (v - decayed state before it times its key).
func (g *deltaGroup) correct(head, t int) {
	h, dim := int(g.row.cursor.H), g.d.ValueDim
	held := g.stateK.data[t*dim:][:dim]
	g.addRecords(held, h+t, float32(g.decays[h+t]), g.withK.data[t*g.withK.rows:], head)
	u := g.rings.x.row(g.row.next() + int32(t))[head*dim:][:dim]
	v := g.v.data[t*g.width+(head-g.head0)*dim:]
	beta := g.beta(t, head)
	for i := range u {
		u[i] = beta * (v[i] - held[i])
	}
}

// addRecords turns y = S q into last * (the state after n records) q, given the keys of the records times q.
func (g *deltaGroup) addRecords(y []float32, n int, last float32, products []float32, head int) {
	coef := g.weights[:n]
	before := replayWeights(coef, g.decays)
	for j := range coef {
		coef[j] *= last * products[j]
	}
	yt := grid(y, len(y))
	g.rings.x.product(yt, last*before, yt, grid(coef, n), 1, len(y), g.row.cursor.Origin, n, head*g.d.ValueDim)
}

// fold replays the h committed records of a head from block Src into block Dst.
func (g *deltaGroup) fold(head int) {
	h := int(g.row.cursor.H)
	g.loadDecays(head, h)
	before := replayWeights(g.weights[:h], g.decays)
	foldRecords(g.m, g.p.State, g.row, head, g.d.ValueDim, g.d.KeyDim, before, g.weights[:h], g.rings, head*g.d.ValueDim, g.k0)
}

// finish normalises y of token t and head, gates it and writes it out.
func (g *deltaGroup) finish(t, head int, y []float32) {
	factor := rootMeanSquare(y, g.p.Eps)
	from, to := head*g.d.ValueDim, (head+1)*g.d.ValueDim
	out, w := g.out.row(g.row.first + t)[from:to], f32(g.p.NormW)
	for i, v := range y {
		out[i] = v * factor * w[i]
	}
	siluMul(out, g.z.row(g.row.first + t)[from:to], out)
}
