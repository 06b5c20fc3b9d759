//go:build cuda

package cuda

import (
	"fmt"
	"math"
	"testing"

	"reprise/kernels"
)

// scanRig is one layer of a released shape with rows of equal length.
type scanRig struct {
	*rig
	read, flops float64 // measured rates
}

// scanRows is count rows of n tokens, in slots 1, 2, ...
func (r *scanRig) scanRows(count, n int) (kernels.Rows, kernels.Cursors) {
	self := r.ints(count+1, func(i int) int { return i })
	zero := r.ints(count+1, func(int) int { return 0 })
	rows := kernels.Rows{
		Count: count, Tokens: count * n, MaxLen: n, Slot: r.ints(count, func(i int) int { return i + 1 }),
		N: r.ints(count, func(int) int { return n }), Start: r.ints(count, func(i int) int { return i * n }),
	}
	return rows, kernels.Cursors{Origin: zero, H: zero, Src: self, Dst: self}
}

// noise is a matrix of random activations.
func (r *scanRig) noise(rows, cols int) kernels.Mat {
	b := r.alloc(rows * cols * 2)
	type params struct {
		to uint64
		n  int64
	}
	r.do(func(kernels.Ops) {
		launch(r.dev.ops, r.dev.ops.rates.noise, line(1024, 256), params{addr(b), int64(rows * cols)})
	})
	return kernels.NewMat(b, kernels.BF16, rows, cols)
}

func (r *scanRig) floats(n int, low, high float64) kernels.Buffer {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(low + (high-low)*r.rng.Float64())
	}
	return r.upload(bytesOf(v))
}

// scanCase is a mixer's scan with the launches that it consists of.
type scanCase struct {
	op, cut      func(o kernels.Ops) // cut: with every row cut in its middle
	parts        []func(o kernels.Ops)
	bytes, flops float64 // of the whole mixer, of the recurrence as models.md has it
	blocks, out  kernels.Buffer
}

func (r *scanRig) state(rows, elements int, ring kernels.RingLayout, w kernels.Window) kernels.State {
	stride := (int64(elements)*4 + 255) &^ 255
	return kernels.State{
		Blocks: r.alloc((2*rows + 1) * int(stride)), BlockStride: stride,
		Rings: r.alloc((rows + 1) * int(ring.Bytes)), RingStride: ring.Bytes, Layout: ring, Window: w,
	}
}

// middle cuts every row in its middle, into the blocks behind those of the rows.
func (r *scanRig) middle(rows kernels.Rows, s kernels.State, taps int) (kernels.Rows, kernels.State) {
	n := rows.Count
	rows.Cuts = kernels.Cuts{PerRow: 1, Place: r.ints(n, func(int) int { return rows.MaxLen/2 + 1 }), Block: r.ints(n, func(i int) int { return n + 1 + i })}
	s.TailStride = int64(2 * (taps - 1) * s.Layout.Conv.Cols)
	s.Tails = r.alloc(n * int(s.TailStride))
	return rows, s
}

func (r *scanRig) mamba2(d kernels.Mamba2Dims, count, n int) scanCase {
	w, tokens := kernels.Window{L: 16, T: 1}, count*n
	p := kernels.Mamba2{
		Dims: d, State: r.state(count, d.Inner()*d.State, kernels.Mamba2Ring(d, w, kernels.BF16), w),
		Z: r.noise(tokens, d.Inner()), XBC: r.noise(tokens, d.Conv()), Dt: r.noise(tokens, d.Heads), Out: r.noise(tokens, d.Inner()),
		ConvW: r.floats(d.Conv()*d.Taps, -0.5, 0.5), ConvB: r.floats(d.Conv(), -0.1, 0.1), A: r.floats(d.Heads, -8, -0.1), D: r.floats(d.Heads, 0.5, 1.5),
		DtBias: r.floats(d.Heads, -4, -1), NormW: r.floats(d.Inner(), 0.5, 1.5), Eps: 1e-5,
	}
	p.Rows, p.Cursors = r.scanRows(count, n)
	state := float64(d.Inner() * d.State)
	cut := p
	cut.Rows, cut.State = r.middle(p.Rows, p.State, d.Taps)
	c := scanCase{
		op: func(o kernels.Ops) { o.Mamba2Scan(p) }, cut: func(o kernels.Ops) { o.Mamba2Scan(cut) },
		bytes: 2*float64(tokens)*float64(d.Conv()+2*d.Inner()+d.Heads) + 8*state*float64(count),
		flops: float64(tokens) * (4*state + scanChunk*float64(d.Inner()+d.Groups*d.State)),
		out:   p.Out.Buf, blocks: p.State.Blocks,
	}
	c.parts = []func(kernels.Ops){
		func(kernels.Ops) {
			o := r.dev.ops
			o.mamba2Slices(p, func(k mamba2Scan, rows kernels.Rows, from, to int) { o.mamba2Convolve(d, k, rows, from, to) })
		},
		func(kernels.Ops) {
			o := r.dev.ops
			o.mamba2Slices(p, func(k mamba2Scan, rows kernels.Rows, _, _ int) { o.mamba2Recur(d, k, rows) })
		},
		func(kernels.Ops) { r.dev.ops.mamba2ScanNorm(p) },
	}
	return c
}

func (r *scanRig) delta(d kernels.DeltaDims, count, n int) scanCase {
	w, tokens := kernels.Window{L: 16, T: 1}, count*n
	p := kernels.Delta{
		Dims: d, State: r.state(count, d.Values()*d.KeyDim, kernels.DeltaRing(d, w, kernels.BF16, kernels.Precision{}), w),
		QKV: r.noise(tokens, d.Conv()), Z: r.noise(tokens, d.Values()), B: r.noise(tokens, d.ValueHeads), A: r.noise(tokens, d.ValueHeads), Out: r.noise(tokens, d.Values()),
		ConvW: r.floats(d.Conv()*d.Taps, -0.5, 0.5), DecayA: r.floats(d.ValueHeads, -8, -0.1), DtBias: r.floats(d.ValueHeads, -4, -1),
		NormW: r.floats(d.ValueDim, 0.5, 1.5), Eps: 1e-6,
	}
	p.Rows, p.Cursors = r.scanRows(count, n)
	state := float64(d.Values() * d.KeyDim)
	cut := p
	cut.Rows, cut.State = r.middle(p.Rows, p.State, d.Taps)
	c := scanCase{
		op: func(o kernels.Ops) { o.DeltaScan(p) }, cut: func(o kernels.Ops) { o.DeltaScan(cut) },
		bytes: 2*float64(tokens)*float64(d.Conv()+2*d.Values()+2*d.ValueHeads) + 8*state*float64(count),
		flops: float64(tokens) * (6*state + scanChunk*float64(2*d.Values()+2*d.Keys())),
		out:   p.Out.Buf, blocks: p.State.Blocks,
	}
	part := func(f func(k deltaScan, rows kernels.Rows, from, to int)) func(kernels.Ops) {
		return func(kernels.Ops) { r.dev.ops.deltaSlices(p, f) }
	}
	o := r.dev.ops
	c.parts = []func(kernels.Ops){
		part(func(k deltaScan, rows kernels.Rows, from, to int) { o.deltaConvolve(d, k, rows, from, to) }),
		part(func(k deltaScan, rows kernels.Rows, from, to int) { o.deltaPrepare(d, k, rows, from, to) }),
		part(func(k deltaScan, rows kernels.Rows, _, _ int) {
			o.deltaRecur(d, k, rows)
		}),
		func(kernels.Ops) { o.deltaNorm(p) },
	}
	return c
}

// TestScanTimes times the scans of released layers beside their floors and beside the walk, and compares what both leave.
func TestScanTimes(t *testing.T) {
	r := &scanRig{rig: newTimer(t)}
	var err error
	if r.read, r.flops, err = r.dev.MeasuredRates(); err != nil {
		t.Fatal(err)
	}
	fmt.Printf("read %.2f TB/s, products %.0f TFLOP/s; parts: convolution, (preparation,) recurrence, norm\n", r.read/1e12, r.flops/1e12)
	nano := kernels.Mamba2Dims{Heads: 96, HeadDim: 80, State: 128, Groups: 8, Taps: 4}
	q4b := kernels.DeltaDims{KeyHeads: 16, ValueHeads: 32, KeyDim: 128, ValueDim: 128, Taps: 4}
	for _, s := range [][2]int{{1, 512}, {1, 2048}, {1, 8192}, {16, 2048}} {
		r.report(fmt.Sprintf("nano %d x %d", s[0], s[1]), func() scanCase { return r.mamba2(nano, s[0], s[1]) })
		r.report(fmt.Sprintf("q4b %d x %d", s[0], s[1]), func() scanCase { return r.delta(q4b, s[0], s[1]) })
	}
}

// report times one case and frees its memory.
func (r *scanRig) report(name string, make func() scanCase) {
	r.Helper()
	held := map[uintptr]bool{}
	for a := range r.dev.memory.blocks {
		held[a] = true
	}
	c := make()
	walk, outs, states := r.walked(c)
	r.clear(c.blocks)
	r.do(c.op)
	outError, stateError := r.apart(c.out, outs, kernels.BF16), r.apart(c.blocks, states, kernels.F32)
	all := r.seconds(5, c.op)
	fmt.Printf("%-14s %9.1f us, %5.0f TFLOP/s, floor %7.1f us, ratio %5.2f, walk %9.1f us (%.0fx), apart: out %.1e state %.1e; parts", name, all*1e6, c.flops/all/1e12,
		max(c.bytes/r.read, c.flops/r.flops)*1e6, all/max(c.bytes/r.read, c.flops/r.flops), walk*1e6, walk/all, outError, stateError)
	for _, part := range c.parts {
		fmt.Printf(" %.1f", r.seconds(3, part)*1e6)
	}
	fmt.Printf("; cut once %.1f us\n", r.seconds(5, c.cut)*1e6)
	// Chunks and walk round apart: outputs and operands to 2^-8 (bfloat16), GDN's corrections to 2^-11 in another order.
	if !(outError < 1e-2 && stateError < 2e-3) {
		r.Errorf("%s: outputs of chunks and walk are %.2g apart, states %.2g", name, outError, stateError)
	}
	for a, size := range r.dev.memory.blocks {
		if !held[a] {
			r.dev.Free(kernels.Buffer{Addr: a, Size: size})
		}
	}
}

// walked is the time of the walk, and what it leaves of the first 4 MB of outputs and states.
func (r *scanRig) walked(c scanCase) (seconds float64, out, states []byte) {
	r.Helper()
	r.dev.walkScans = true
	defer func() { r.dev.walkScans = false }()
	r.clear(c.blocks)
	r.do(c.op)
	out, states = r.head(c.out), r.head(c.blocks)
	return r.seconds(1, c.op), out, states
}

func (r *scanRig) clear(b kernels.Buffer) {
	r.Helper()
	r.do(func(o kernels.Ops) { o.Zero(b) })
}

func (r *scanRig) head(b kernels.Buffer) []byte {
	r.Helper()
	data := make([]byte, min(b.Size, 4<<20))
	r.do(func(o kernels.Ops) { o.Download(data, b.Slice(0, int64(len(data)))) })
	return data
}

// apart is the norm of the difference from what a buffer held, over its norm.
func (r *scanRig) apart(b kernels.Buffer, before []byte, dtype kernels.DType) float64 {
	r.Helper()
	now := r.head(b)
	var diff, size float64
	number := func(v []byte, i int) float64 {
		if dtype == kernels.BF16 {
			return float64(kernels.BF16ToF32(uint16(v[2*i]) | uint16(v[2*i+1])<<8))
		}
		return float64(math.Float32frombits(uint32(v[4*i]) | uint32(v[4*i+1])<<8 | uint32(v[4*i+2])<<16 | uint32(v[4*i+3])<<24))
	}
	for i := range len(now) / dtype.Size() {
		x, y := number(now, i), number(before, i)
		diff, size = diff+(x-y)*(x-y), size+y*y
	}
	return math.Sqrt(diff / size)
}

func (r *scanRig) seconds(n int, f func(kernels.Ops)) float64 {
	r.Helper()
	t, err := r.dev.Time(n, kernels.ProgramFunc(f))
	if err != nil {
		r.Fatal(err)
	}
	return t
}
