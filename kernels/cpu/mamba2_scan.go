package cpu

import (
	"math"

	"reprise/kernels"
)

// chunkTokens is the length of a chunk of a scan: within a chunk tokens act on each other through matrix products,
// between chunks through the state.
const chunkTokens = 64

// Mamba2Scan runs one task for each row and group of heads.
func (o *ops) Mamba2Scan(p kernels.Mamba2) {
	o.enter("Mamba2Scan")
	mustBeRows(p.Rows, false, p.Validate())
	o.ssm.mamba2Scan = mamba2Scan{p, o.ssmWorkers()}
	o.pool.parallel(p.Rows.Count*p.Dims.Groups, &o.ssm.mamba2Scan)
}

type mamba2Scan struct {
	p       kernels.Mamba2
	workers []ssmMemory
}

func (s *mamba2Scan) do(i, worker int) {
	c := mamba2Chunk{mamba2Group: newMamba2Group(&s.p, i, &s.workers[worker])}
	if c.row.n == 0 {
		return
	}
	c.allocate()
	c.loadState()
	conv := newConvolution(c.m, s.p.XBC, s.p.ConvW, s.p.ConvB, c.d.Taps, c.rings.conv, c.row)
	c.row.chunks(func(from, n int) { c.run(&conv, from, n) }, func(cut, n int) { c.keepCut(&conv, cut, n) })
	c.keep(&conv, conv.lastTaps())
	c.storeState(c.saved.scanned())
}

// keepCut leaves what a snapshot behind n tokens of the row has of the group.
func (c *mamba2Chunk) keepCut(conv *convolution, cut, n int) {
	c.storeState(c.saved.checkpoint(i32(c.p.Rows.Cuts.Block)[cut], n))
	for _, k := range c.channels() {
		conv.keepCut(&c.p.State, cut, n, k[0], k[1])
	}
}

// mamba2Chunk is a chunk of one group of heads (SSD, Mamba-2 sec. 6). States are transposed: [State, HeadDim] a head.
type mamba2Chunk struct {
	mamba2Group
	states  []float32
	x, b    tile // [tokens, width], [tokens, State]
	dts     tile // [tokens, heads]
	pairs   tile // C_t . B_j at [t, j]
	mix     tile // the same, times decays and dt, for one head
	scaled  tile // x times its factor in the state at the chunk's end
	since   []float64
	decays  []float64
	factors []float32
}

func (c *mamba2Chunk) allocate() {
	q := min(chunkTokens, c.row.n)
	f := &c.m.floats
	c.states = f.take(c.heads * c.d.State * c.d.HeadDim)
	c.x, c.y = grid(f.take(q*c.width), c.width), grid(f.take(q*c.width), c.width)
	c.b, c.c = grid(f.take(q*c.d.State), c.d.State), grid(f.take(q*c.d.State), c.d.State)
	c.dts = grid(f.take(q*c.heads), c.heads)
	c.pairs, c.mix = grid(f.take(q*q), q), grid(f.take(q*q), q)
	c.scaled = grid(f.take(q*c.d.HeadDim), c.d.HeadDim)
	c.since, c.decays, c.factors = c.m.doubles.take(q), c.m.doubles.take(q), f.take(q)
}

func (c *mamba2Chunk) state(head int) tile {
	size := c.d.State * c.d.HeadDim
	return grid(c.states[(head-c.head0)*size:][:size], c.d.HeadDim)
}

func (c *mamba2Chunk) loadState() {
	from := c.saved.start()
	for head := c.head0; head < c.head0+c.heads; head++ {
		state := from.rows(head, 0, c.d.HeadDim, c.saved.head)
		transpose(c.state(head), grid(state, c.d.State), c.d.HeadDim, c.d.State)
	}
}

func (c *mamba2Chunk) storeState(to target) {
	for head := c.head0; head < c.head0+c.heads; head++ {
		state := to.memory(head, c.saved.head)
		transpose(grid(state, c.d.State), c.state(head), c.d.State, c.d.HeadDim)
		to.store(head, state)
	}
}

// run is q tokens of the row from token from on.
func (c *mamba2Chunk) run(conv *convolution, from, q int) {
	for t := range q {
		c.convolve(conv, from+t, line(c.x, t), line(c.b, t), line(c.c, t))
		c.timeSteps(from+t, line(c.dts, t))
	}
	for t := range q {
		dots(line(c.pairs, t), c.b, line(c.c, t), t+1)
	}
	for head := range c.heads {
		c.head(head, q)
	}
	for t := range q {
		c.finish(from+t, line(c.y, t))
	}
}

// head is y of q tokens and the next state of one head of the group.
func (c *mamba2Chunk) head(head, q int) {
	dim, state := c.d.HeadDim, c.state(c.head0+head)
	x, y := tile{c.x.data[head*dim:], c.width, 1}, tile{c.y.data[head*dim:], c.width, 1}
	a := float64(f32(c.p.A)[c.head0+head])
	for t := range q {
		c.decays[t] = math.Exp(a * float64(*c.dts.at(t, head)))
	}
	product(y, 0, tile{}, c.c, state, q, dim, c.d.State)
	scaleByDecay(y, c.decays[:q], dim)
	decayPairs(c.mix, c.pairs, c.since, c.decays[:q])
	c.weighPairs(head, q)
	lowerProduct(y, c.mix, x, q, dim)
	before := replayWeights(c.factors[:q], c.decays[:q])
	for t := range q {
		scaleMul(line(c.scaled, t), x.data[t*x.rows:], nil, c.factors[t]**c.dts.at(t, head))
	}
	product(state, before, state, c.b.transposed(), c.scaled, c.d.State, dim, q)
}

// weighPairs multiplies by dt of the earlier token and adds D on the diagonal.
func (c *mamba2Chunk) weighPairs(head, q int) {
	d := f32(c.p.D)[c.head0+head]
	for t := range q {
		row := c.mix.data[t*c.mix.rows:]
		for j := range t + 1 {
			row[j] *= *c.dts.at(j, head)
		}
		row[t] += d
	}
}

// scaleByDecay multiplies row t of y by the product of decays 0..t.
func scaleByDecay(y tile, decays []float64, n int) {
	w := 1.0
	for t, a := range decays {
		w *= a
		scale(decayWeight(w), y.data[t*y.rows:][:n])
	}
}

// decayPairs is dst[t, j] = pairs[t, j] times the product of decays j+1..t for j <= t, and 0 for j > t up to the next
// multiple of 16, which lowerProduct reads. since is memory for as many numbers.
func decayPairs(dst, pairs tile, since []float64, decays []float64) {
	for t, a := range decays {
		row, from := dst.data[t*dst.rows:], pairs.data[t*pairs.rows:]
		for j := range t {
			since[j] *= a
			row[j] = decayWeight(since[j]) * from[j]
		}
		since[t], row[t] = 1, from[t]
		clear(row[t+1 : min(len(decays), (t+16)&^15)])
	}
}

// lowerProduct is y += a x for a lower triangular a [q, q], sixteen rows at a time.
func lowerProduct(y, a, x tile, q, n int) {
	for i := 0; i < q; i += 16 {
		yi := tile{y.data[i*y.rows:], y.rows, 1}
		ai := tile{a.data[i*a.rows:], a.rows, 1}
		product(yi, 1, yi, ai, x, min(16, q-i), n, min(q, i+16))
	}
}
