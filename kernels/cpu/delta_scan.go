package cpu

import (
	"math"

	"reprise/kernels"
)

// solveTokens is how many corrections are solved one by one before they are applied to the later ones by a product.
const solveTokens = 8

// DeltaScan runs one task for each row and key head.
func (o *ops) DeltaScan(p kernels.Delta) {
	o.enter("DeltaScan")
	mustBeRows(p.Rows, false, p.Validate())
	o.ssm.deltaScan = deltaScan{p, o.ssmWorkers()}
	o.pool.parallel(p.Rows.Count*p.Dims.KeyHeads, &o.ssm.deltaScan)
}

type deltaScan struct {
	p       kernels.Delta
	workers []ssmMemory
}

func (s *deltaScan) do(i, worker int) {
	c := deltaChunk{deltaGroup: newDeltaGroup(&s.p, i, &s.workers[worker])}
	if c.row.n == 0 {
		return
	}
	c.allocate()
	c.loadState()
	conv := newConvolution(c.m, s.p.QKV, s.p.ConvW, kernels.Buffer{}, c.d.Taps, c.rings.conv, c.row)
	c.row.chunks(func(from, n int) { c.run(&conv, from, n) }, func(cut, n int) { c.keepCut(&conv, cut, n) })
	c.keep(&conv, conv.lastTaps())
	c.storeState(c.saved.scanned())
}

// keepCut leaves what a snapshot behind n tokens of the row has of the group.
func (c *deltaChunk) keepCut(conv *convolution, cut, n int) {
	c.storeState(c.saved.checkpoint(i32(c.p.Rows.Cuts.Block)[cut], n))
	for _, k := range c.channels() {
		conv.keepCut(&c.p.State, cut, n, k[0], k[1])
	}
}

// deltaChunk is a chunk of one key head (chunked delta rule, models.md 2.c). States are transposed: [KeyDim, ValueDim]
// a value head.
type deltaChunk struct {
	deltaGroup
	states       []float32
	q, k         tile // [tokens, KeyDim]
	keyed, mixed tile // k_t . k_j and q_t . k_j at [t, j]
	mix          tile // one of them times decays, for one head
	u, y, scaled tile // [tokens, ValueDim] of one head
	since        []float64
	decays       []float64
	factors      []float32
}

func (c *deltaChunk) allocate() {
	q := min(chunkTokens, c.row.n)
	f := &c.m.floats
	c.states = f.take(c.heads * c.d.KeyDim * c.d.ValueDim)
	c.q, c.k = grid(f.take(q*c.d.KeyDim), c.d.KeyDim), grid(f.take(q*c.d.KeyDim), c.d.KeyDim)
	c.v = grid(f.take(q*c.width), c.width)
	c.keyed, c.mixed, c.mix = grid(f.take(q*q), q), grid(f.take(q*q), q), grid(f.take(q*q), q)
	c.u, c.y = grid(f.take(q*c.d.ValueDim), c.d.ValueDim), grid(f.take(q*c.d.ValueDim), c.d.ValueDim)
	c.scaled = grid(f.take(q*c.d.ValueDim), c.d.ValueDim)
	c.since, c.decays, c.factors = c.m.doubles.take(q), c.m.doubles.take(q), f.take(q)
}

func (c *deltaChunk) state(head int) tile {
	size := c.d.KeyDim * c.d.ValueDim
	return grid(c.states[(head-c.head0)*size:][:size], c.d.ValueDim)
}

func (c *deltaChunk) loadState() {
	from := c.saved.start()
	for head := c.head0; head < c.head0+c.heads; head++ {
		state := from.rows(head, 0, c.d.ValueDim, c.saved.head)
		transpose(c.state(head), grid(state, c.d.KeyDim), c.d.ValueDim, c.d.KeyDim)
	}
}

func (c *deltaChunk) storeState(to target) {
	for head := c.head0; head < c.head0+c.heads; head++ {
		state := to.memory(head, c.saved.head)
		transpose(grid(state, c.d.KeyDim), c.state(head), c.d.KeyDim, c.d.ValueDim)
		to.store(head, state)
	}
}

// run is q tokens of the row from token from on.
func (c *deltaChunk) run(conv *convolution, from, q int) {
	for t := range q {
		c.convolve(conv, from+t, line(c.q, t), line(c.k, t), line(c.v, t))
	}
	for t := range q {
		dots(line(c.keyed, t), c.k, line(c.k, t), t)
		dots(line(c.mixed, t), c.k, line(c.q, t), t+1)
	}
	for head := c.head0; head < c.head0+c.heads; head++ {
		c.head(head, from, q)
	}
}

// head is the outputs of q tokens and the next state of one value head.
func (c *deltaChunk) head(head, from, q int) {
	dim, state := c.d.ValueDim, c.state(head)
	for t := range q {
		c.decays[t] = math.Exp(float64(c.logDecay(from+t, head)))
	}
	product(c.u, 0, tile{}, c.k, state, q, dim, c.d.KeyDim)
	decayPairs(c.mix, c.keyed, c.since, c.decays[:q])
	c.solve(head, from, q)
	product(c.y, 0, tile{}, c.q, state, q, dim, c.d.KeyDim)
	scaleByDecay(c.y, c.decays[:q], dim)
	decayPairs(c.mix, c.mixed, c.since, c.decays[:q])
	lowerProduct(c.y, c.mix, c.u, q, dim)
	before := replayWeights(c.factors[:q], c.decays[:q])
	for t := range q {
		scaleMul(line(c.scaled, t), c.u.data[t*dim:], nil, c.factors[t])
		c.finish(from+t, head, line(c.y, t))
	}
	product(state, before, state, c.k.transposed(), c.scaled, c.d.KeyDim, dim, q)
}

// solve turns u, the state before the chunk times the keys, into the corrections:
// u_t = beta_t * (v_t - decayed state before t times k_t), where mix holds the decayed products of keys.
func (c *deltaChunk) solve(head, from, q int) {
	dim := c.d.ValueDim
	scaleByDecay(c.u, c.decays[:q], dim)
	for t := range q {
		beta, u := c.beta(from+t, head), line(c.u, t)
		for i, v := range c.v.data[t*c.width+(head-c.head0)*dim:][:dim] {
			u[i] = beta * (v - u[i])
		}
		scale(-beta, c.mix.data[t*c.mix.rows:][:t])
	}
	for b := 0; b < q; b += solveTokens {
		m := min(solveTokens, q-b)
		block, mix := tile{c.u.data[b*dim:], dim, 1}, c.mix.data[b*c.mix.rows:]
		if b > 0 {
			product(block, 1, block, grid(mix, c.mix.rows), c.u, m, dim, b)
		}
		for t := 1; t < m; t++ {
			row := tile{block.data[t*dim:], dim, 1}
			product(row, 1, row, grid(mix[t*c.mix.rows+b:], 1), block, 1, dim, t)
		}
	}
}
