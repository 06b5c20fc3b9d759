package cpu

import (
	"fmt"

	"reprise/kernels"
)

// ssmTasks are the tasks of the recurrent operations and their workers' memory.
type ssmTasks struct {
	memory []ssmMemory // by worker

	mamba2Step mamba2Step
	mamba2Scan mamba2Scan
	mamba2Fold mamba2Fold
	deltaStep  deltaStep
	deltaScan  deltaScan
	deltaFold  deltaFold
}

// ssmWorkers is the workers' memory, made on first use.
func (o *ops) ssmWorkers() []ssmMemory {
	if o.ssm.memory == nil {
		o.ssm.memory = make([]ssmMemory, o.pool.size())
	}
	return o.ssm.memory
}

// mustBeRows panics with err, or if the rows are not those that an operation takes: step rows or packed ones.
func mustBeRows(r kernels.Rows, step bool, err error) {
	if err != nil {
		panic(err)
	}
	if !r.Empty() && step != (r.T > 0) {
		panic(fmt.Sprintf("cpu: rows of T %d in an operation for the other kind of rows", r.T))
	}
}

// ssmMemory is what one task of a recurrent operation works in.
type ssmMemory struct {
	floats  arena[float32]
	doubles arena[float64]
	rows    arena[[]float32]
}

func (m *ssmMemory) reset() { m.floats.used, m.doubles.used, m.rows.used = 0, 0, 0 }

// arena hands out pieces of memory until it is reset (used = 0). It grows until a whole task fits, then it allocates no more.
type arena[E any] struct {
	data []E
	used int
}

// take is n elements of undefined content.
func (a *arena[E]) take(n int) []E {
	room := (n + 15) &^ 15
	if a.used+room > len(a.data) {
		a.data, a.used = make([]E, 2*len(a.data)+room), 0
	}
	a.used += room
	return a.data[a.used-room:][:n:n]
}

// replayRow is one row of a launch.
type replayRow struct {
	slot   int
	n      int // tokens that count
	first  int // token of the batch at which it starts
	cursor kernels.Cursor

	scratch int32 // scratch block, -1 for none
	stage   int32
	cuts    []int32 // entries of kernels.Cuts.Place, of which the first is entry number cut0 of all
	cut0    int
}

func readRow(r kernels.Rows, c kernels.Cursors, i int) replayRow {
	slot := i32(r.Slot)[i]
	row := replayRow{slot: int(slot), n: int(i32(r.N)[i]), first: r.First + i*r.T, scratch: -1}
	if r.T == 0 {
		row.first = int(i32(r.Start)[i])
	}
	if !r.Scratch.Nil() {
		row.scratch, row.stage = i32(r.Scratch)[i], i32(r.Stage)[i]
	}
	if k := r.Cuts.PerRow; k > 0 {
		row.cut0, row.cuts = i*k, i32(r.Cuts.Place)[i*k:(i+1)*k]
	}
	if row.n < 0 || r.T > 0 && row.n > r.T {
		panic(fmt.Sprintf("cpu: %d tokens in a row of %d", row.n, r.T))
	}
	row.cursor = kernels.Cursor{Origin: i32(c.Origin)[slot], H: i32(c.H)[slot], Src: i32(c.Src)[slot], Dst: i32(c.Dst)[slot]}
	return row
}

// next is the absolute index of the first token that the row appends.
func (r replayRow) next() int32 { return r.cursor.Origin + r.cursor.H }

func (r replayRow) flushes(w kernels.Window) bool {
	return kernels.Flushes(r.cursor.H, int32(r.n), int32(w.L))
}

// stop is where the chunks that begin at a token have to end: at a cut, or at the row's end. cut is the entry of
// kernels.Cuts there, -1 for none.
func (r replayRow) stop(from int) (to, cut int) {
	for j, place := range r.cuts {
		if int(place) > from && int(place) <= r.n {
			return int(place), r.cut0 + j
		}
	}
	return r.n, -1
}

// chunks calls run for n tokens at a time, none of which go over a cut, and keep, with the tokens before it, at every cut.
func (r replayRow) chunks(run func(from, n int), keep func(cut, n int)) {
	for from := 0; from < r.n; {
		stop, cut := r.stop(from)
		n := min(chunkTokens, stop-from)
		run(from, n)
		if from += n; from == stop && cut >= 0 {
			keep(cut, from)
		}
	}
}

// ring holds rows by absolute token index.
type ring struct {
	data        []float32
	count, cols int
}

// row is token i's.
func (r ring) row(i int32) []float32 {
	at := kernels.RingIndex(i, r.count) * r.cols
	return r.data[at : at+r.cols : at+r.cols]
}

// gather copies columns col.. of the rows from token i on into the n rows of dst, which lie close together: rows of a
// ring are often a power of two apart and would push each other out of the cache.
func (r ring) gather(dst tile, i int32, n, col int) {
	for j := range n {
		copy(dst.data[j*dst.rows:][:dst.rows], r.row(i + int32(j))[col:])
	}
}

// rings are the rings of one layer in one slot; v and beta are empty unless there are two precisions.
type rings struct{ x, b, decay, conv, v, beta ring }

func ringsOf(s *kernels.State, slot int) rings {
	region, l := s.Rings.Slice(int64(slot)*s.RingStride, s.Layout.Bytes), &s.Layout
	return rings{ringOf(region, &l.X), ringOf(region, &l.B), ringOf(region, &l.Decay), ringOf(region, &l.Conv), ringOf(region, &l.V), ringOf(region, &l.Beta)}
}

func ringOf(region kernels.Buffer, f *kernels.Field) ring {
	if f.DType != kernels.F32 && f.Rows > 0 {
		panic(fmt.Sprintf("cpu: rings of %v: this device keeps float32", f.DType))
	}
	return ring{f32(region.Slice(f.Offset, int64(f.Rows)*int64(f.Cols)*4)), f.Rows, f.Cols}
}

// convolution is the causal depthwise convolution with silu of one row's tokens.
type convolution struct {
	in      rows // raw rows by token of the batch
	w, bias []float32
	taps    [][]float32
	zeros   []float32
	ring    ring
	row     replayRow
}

func newConvolution(m *ssmMemory, in kernels.Mat, w, bias kernels.Buffer, taps int, r ring, row replayRow) convolution {
	c := convolution{in: rowsOf(in), w: f32(w), bias: f32(bias), taps: m.rows.take(taps), ring: r, row: row}
	if int(row.next()) < taps-1 {
		c.zeros = m.floats.take(r.cols)
		clear(c.zeros)
	}
	return c
}

// raw is channels from..to-1 of token t of the row; earlier tokens are negative, and zero before the sequence.
func (c *convolution) raw(t, from, to int) []float32 {
	switch i := c.row.next() + int32(t); {
	case t >= 0:
		return c.in.row(c.row.first + t)[from:to]
	case i < 0:
		return c.zeros[from:to]
	default:
		return c.ring.row(i)[from:to]
	}
}

// lookAhead is how many tokens early the columns of an activation matrix are asked for: they lie a row apart, which no
// processor guesses.
const lookAhead = 4

// token writes the convolved channels from.. of token t.
func (c *convolution) token(t, from int, out []float32) {
	to, taps := from+len(out), len(c.taps)
	for k := range c.taps {
		c.taps[k] = c.raw(t-taps+1+k, from, to)
	}
	prefetch(&c.taps[taps-1][0], lookAhead*c.in.stride, len(out))
	var bias []float32
	if c.bias != nil {
		bias = c.bias[from:to]
	}
	convSilu(out, c.w[from*taps:to*taps], bias, c.taps)
}

// keepCut stores the raw channels of the last tokens in front of token t in the tail of a cut.
func (c *convolution) keepCut(s *kernels.State, cut, t, from, to int) {
	n, cols := len(c.taps)-1, c.ring.cols
	tail := f32(s.Tails.Slice(int64(cut)*s.TailStride, int64(n*cols)*4))
	for i := range n {
		copy(tail[i*cols+from:i*cols+to], c.raw(t-n+i, from, to))
	}
}

// keep stores the raw channels of tokens t.. in the ring.
func (c *convolution) keep(t, from, to int) {
	for ; t < c.row.n; t++ {
		copy(c.ring.row(c.row.next() + int32(t))[from:to], c.raw(t, from, to))
	}
}

// lastTaps is the first token whose raw channels a later token can need.
func (c *convolution) lastTaps() int { return max(0, c.row.n-len(c.taps)+1) }

// decayWeight narrows a product of decays; what is too small to matter becomes 0, not a subnormal number.
func decayWeight(w float64) float32 {
	if w < 1e-30 {
		return 0
	}
	return float32(w)
}

// replayWeights writes the factor of each of the records in a state at the last of them, the product of the later
// decays, and returns that of the state before them.
func replayWeights(out []float32, decays []float64) float32 {
	w := 1.0
	for j := len(out) - 1; j >= 0; j-- {
		out[j] = decayWeight(w)
		w *= decays[j]
	}
	return decayWeight(w)
}

// clearTokens zeroes columns of the tokens of a step row that do not count.
func clearTokens(out rows, row replayRow, t, from, to int) {
	for i := row.n; i < t; i++ {
		clear(out.row(row.first + i)[from:to])
	}
}
