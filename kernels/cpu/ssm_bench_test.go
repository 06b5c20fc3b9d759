package cpu

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"reprise/kernels"
)

// ssmFixture is one SSM layer with rows, state and random inputs of every operand.
type ssmFixture struct {
	testing.TB
	dev     *Device
	r       *rand.Rand
	rows    kernels.Rows
	cursors kernels.Cursors
}

// newSSMFixture has count rows of n tokens (t = 0: packed) with h committed records.
func newSSMFixture(tb testing.TB, threads, count, t, n, h int) *ssmFixture {
	f := &ssmFixture{TB: tb, dev: open(tb, threads), r: rand.New(rand.NewPCG(1, 2))}
	f.rows = kernels.Rows{Count: count, Tokens: count * max(t, n), T: t, MaxLen: max(t, n)}
	slot, start, block := make([]int32, count), make([]int32, count), make([]int32, count+1)
	for i := range count {
		slot[i], start[i], block[i+1] = int32(i+1), int32(i*n), int32(i+1)
	}
	f.rows.Slot, f.rows.N, f.rows.Start = f.ints(slot), f.ints(fill(count, int32(n))), f.ints(start)
	f.cursors = kernels.Cursors{
		Origin: f.ints(fill(count+1, 100)), H: f.ints(fill(count+1, int32(h))), Src: f.ints(block), Dst: f.ints(block),
	}
	return f
}

func fill(n int, v int32) []int32 {
	s := make([]int32, n)
	for i := range s {
		s[i] = v
	}
	return s
}

func (f *ssmFixture) ints(v []int32) kernels.Buffer {
	b := alloc(f, f.dev, int64(4*len(v)))
	copy(i32(b), v)
	return b
}

func (f *ssmFixture) normal(n int, mean, deviation float64) kernels.Buffer {
	b := alloc(f, f.dev, int64(4*n))
	for i := range f32(b) {
		f32(b)[i] = float32(mean + deviation*f.r.NormFloat64())
	}
	return b
}

func (f *ssmFixture) mat(cols int) kernels.Mat {
	return kernels.NewMat(f.normal(f.rows.Tokens*cols, 0, 1), kernels.F32, f.rows.Tokens, cols)
}

func (f *ssmFixture) pool(c kernels.CheckpointLayout, p kernels.Precision, w kernels.Window, layout kernels.RingLayout) kernels.State {
	slots := f.rows.Count + 1
	s := kernels.State{BlockStride: c.Bytes(), RingStride: layout.Bytes, Layout: layout, Window: w, Precision: p}
	s.Blocks = f.blocks(slots, c)
	s.Rings = f.normal(slots*int(layout.Bytes)/4, 0, 0.5)
	for slot := range slots { // time steps are positive, log decays negative: the caller's sign of A makes both decay
		decays := ringsOf(&s, slot).decay.data
		for i := range decays {
			decays[i] = 0.05
		}
	}
	return s
}

// blocks is random states.
func (f *ssmFixture) blocks(n int, c kernels.CheckpointLayout) kernels.Buffer {
	all := alloc(f, f.dev, int64(n)*c.Bytes())
	for b := range n {
		copies := []kernels.StateArray{c.HP, c.LP}
		if c.HP == c.LP {
			copies = copies[:1]
		}
		for _, a := range copies {
			for h := range a.Heads {
				head := f.normal(a.Rows*a.Cols, 0, 1)
				a.EncodeHead(bytesOf(all)[int64(b)*c.Bytes():], h, f32(head), kernels.StateNoise{})
				f.dev.Free(head)
			}
		}
	}
	return all
}

func (f *ssmFixture) mamba2(d kernels.Mamba2Dims, w kernels.Window, q kernels.Precision) kernels.Mamba2 {
	return kernels.Mamba2{
		Rows: f.rows, Cursors: f.cursors, Dims: d, Z: f.mat(d.Inner()), XBC: f.mat(d.Conv()), Dt: f.mat(d.Heads),
		State: f.pool(kernels.Mamba2Checkpoint(d, q), q, w, kernels.Mamba2Ring(d, w, kernels.F32)),
		ConvW: f.normal(d.Conv()*d.Taps, 0, 0.5), ConvB: f.normal(d.Conv(), 0, 0.1), A: f.normal(d.Heads, -1, 0.1),
		D: f.normal(d.Heads, 1, 0.1), DtBias: f.normal(d.Heads, -3, 1), NormW: f.normal(d.Inner(), 1, 0.1), Eps: 1e-5,
		Out: f.mat(d.Inner()),
	}
}

func (f *ssmFixture) delta(d kernels.DeltaDims, w kernels.Window, q kernels.Precision) kernels.Delta {
	p := kernels.Delta{
		Rows: f.rows, Cursors: f.cursors, Dims: d,
		QKV: f.mat(d.Conv()), Z: f.mat(d.Values()), B: f.mat(d.ValueHeads), A: f.mat(d.ValueHeads),
		State: f.pool(kernels.DeltaCheckpoint(d, q), q, w, kernels.DeltaRing(d, w, kernels.F32, q)),
		ConvW: f.normal(d.Conv()*d.Taps, 0, 0.5), DecayA: f.normal(d.ValueHeads, -1, 0.1),
		DtBias: f.normal(d.ValueHeads, -3, 1), NormW: f.normal(d.ValueDim, 1, 0.1), Eps: 1e-6, Out: f.mat(d.Values()),
	}
	for slot := range f.rows.Count + 1 {
		decays := ringsOf(&p.State, slot).decay.data
		scale(-1, decays)
	}
	return p
}

// Shapes of the released models (models.md): Nemotron-3 Nano 4B and Qwen3.5 4B.
func nano4B() kernels.Mamba2Dims {
	return kernels.Mamba2Dims{Heads: 96, HeadDim: 80, State: 128, Groups: 8, Taps: 4}
}

func qwen4B() kernels.DeltaDims {
	return kernels.DeltaDims{KeyHeads: 16, ValueHeads: 32, KeyDim: 128, ValueDim: 128, Taps: 4}
}

// measure runs a program b.N times and reports bytes of state and operations a second.
func (f *ssmFixture) measure(b *testing.B, bytes, flops int, run func(kernels.Ops)) {
	p := kernels.ProgramFunc(run)
	for b.Loop() {
		f.dev.Submit(p)
		if err := f.dev.Wait(f.dev.Mark()); err != nil {
			b.Fatal(err)
		}
	}
	seconds := b.Elapsed().Seconds() / float64(b.N)
	b.ReportMetric(float64(bytes)/seconds/1e9, "GB/s")
	b.ReportMetric(float64(flops)/seconds/1e9, "GFLOP/s")
}

type stepShape struct{ count, n, h int }

func (s stepShape) String() string { return fmt.Sprintf("B%d/T%d/h%d", s.count, s.n, s.h) }

var stepShapes = []stepShape{{1, 1, 8}, {1, 1, 16}, {1, 4, 8}, {1, 4, 16}, {8, 1, 8}, {8, 4, 8}}

// stateBytes is the traffic of a step: every row reads its checkpoint, and writes it if it flushes.
func (s stepShape) stateBytes(elements int, w kernels.Window) int {
	n := 4 * s.count * elements
	if kernels.Flushes(int32(s.h), int32(s.n), int32(w.L)) {
		n *= 2
	}
	return n
}

func BenchmarkMamba2Step(b *testing.B) {
	d, w := nano4B(), kernels.Window{L: 16, T: 4}
	for _, s := range stepShapes {
		b.Run(s.String(), func(b *testing.B) {
			f := newSSMFixture(b, 0, s.count, s.n, s.n, s.h)
			p := f.mamba2(d, w, kernels.Precision{})
			f.measure(b, s.stateBytes(d.Inner()*d.State, w), 2*s.count*s.n*d.Inner()*d.State, func(o kernels.Ops) { o.Mamba2Step(p) })
		})
	}
}

func BenchmarkDeltaStep(b *testing.B) {
	d, w := qwen4B(), kernels.Window{L: 16, T: 4}
	for _, s := range stepShapes {
		b.Run(s.String(), func(b *testing.B) {
			f := newSSMFixture(b, 0, s.count, s.n, s.n, s.h)
			p := f.delta(d, w, kernels.Precision{})
			f.measure(b, s.stateBytes(d.Values()*d.KeyDim, w), 4*s.count*s.n*d.Values()*d.KeyDim, func(o kernels.Ops) { o.DeltaStep(p) })
		})
	}
}

func BenchmarkMamba2Scan(b *testing.B) {
	d, w := nano4B(), kernels.Window{L: 16, T: 4}
	for _, n := range []int{16, 512} {
		b.Run(fmt.Sprintf("m%d", n), func(b *testing.B) {
			f := newSSMFixture(b, 0, 1, 0, n, 0)
			p := f.mamba2(d, w, kernels.Precision{})
			f.measure(b, 8*d.Inner()*d.State, 4*n*d.Inner()*d.State, func(o kernels.Ops) { o.Mamba2Scan(p) })
		})
	}
}

func BenchmarkDeltaScan(b *testing.B) {
	d, w := qwen4B(), kernels.Window{L: 16, T: 4}
	for _, n := range []int{16, 512} {
		b.Run(fmt.Sprintf("m%d", n), func(b *testing.B) {
			f := newSSMFixture(b, 0, 1, 0, n, 0)
			p := f.delta(d, w, kernels.Precision{})
			f.measure(b, 8*d.Values()*d.KeyDim, 6*n*d.Values()*d.KeyDim, func(o kernels.Ops) { o.DeltaScan(p) })
		})
	}
}

// benchPrecisions are the paper's.
var benchPrecisions = []kernels.Precision{
	{}, {HP: kernels.StateF16}, {HP: kernels.StateF8, Rounding: kernels.Stochastic}, {HP: kernels.StateNVFP4, Rounding: kernels.Stochastic},
	{HP: kernels.StateF32, LP: kernels.StateNVFP4}, {HP: kernels.StateF16, LP: kernels.StateF8, Rounding: kernels.Stochastic},
	{HP: kernels.StateF16, LP: kernels.StateNVFP4, Rounding: kernels.Stochastic},
}

// BenchmarkPrecision is a step that reads and one that flushes, in every precision.
func BenchmarkPrecision(b *testing.B) {
	w := kernels.Window{L: 16, T: 4}
	for _, q := range benchPrecisions {
		for _, h := range []int{8, 16} {
			shape := stepShape{1, 1, h}
			b.Run(fmt.Sprintf("mamba2/%v/h%d", q, h), func(b *testing.B) {
				f, d := newSSMFixture(b, 0, 1, 1, 1, h), nano4B()
				p := f.mamba2(d, w, q)
				f.measure(b, shape.stateBytes(d.Inner()*d.State, w), 2*d.Inner()*d.State, func(o kernels.Ops) { o.Mamba2Step(p) })
			})
			b.Run(fmt.Sprintf("delta/%v/h%d", q, h), func(b *testing.B) {
				f, d := newSSMFixture(b, 0, 1, 1, 1, h), qwen4B()
				p := f.delta(d, w, q)
				f.measure(b, shape.stateBytes(d.Values()*d.KeyDim, w), 4*d.Values()*d.KeyDim, func(o kernels.Ops) { o.DeltaStep(p) })
			})
		}
	}
}

// TestRecurrentOpsDoNotAllocate measures the steady state, in every precision.
func TestRecurrentOpsDoNotAllocate(t *testing.T) {
	for _, q := range benchPrecisions {
		t.Run(q.String(), func(t *testing.T) { recurrentOpsDoNotAllocate(t, q) })
	}
}

func recurrentOpsDoNotAllocate(t *testing.T, q kernels.Precision) {
	md, dd := kernels.Mamba2Dims{Heads: 4, HeadDim: 16, State: 32, Groups: 2, Taps: 4}, kernels.DeltaDims{KeyHeads: 2, ValueHeads: 4, KeyDim: 32, ValueDim: 16, Taps: 4}
	w := kernels.Window{L: 4, T: 3}
	f, g := newSSMFixture(t, 2, 3, 3, 2, 3), newSSMFixture(t, 2, 3, 0, 70, 3)
	sm, sd, pm, pd := f.mamba2(md, w, q), f.delta(dd, w, q), g.mamba2(md, w, q), g.delta(dd, w, q)
	if q.Scratch() {
		pm.State.Scratch, pm.State.ScratchStride = alloc(t, g.dev, 4*4*16*32), 4*4*16*32
		pd.State.Scratch, pd.State.ScratchStride = pm.State.Scratch, pm.State.ScratchStride
		pm.Rows.Scratch, pm.Rows.Stage = g.ints([]int32{0, -1, -1}), g.ints([]int32{0, 0, 0})
		pd.Rows = pm.Rows
	}
	programs := []kernels.Program{
		kernels.ProgramFunc(func(o kernels.Ops) { o.Mamba2Step(sm); o.DeltaStep(sd) }),
		kernels.ProgramFunc(func(o kernels.Ops) { o.Mamba2Fold(pm); o.Mamba2Scan(pm); o.DeltaFold(pd); o.DeltaScan(pd) }),
	}
	for i, dev := range []*Device{f.dev, g.dev} {
		run := func() {
			dev.Submit(programs[i])
			if err := dev.Wait(dev.Mark()); err != nil {
				t.Fatal(err)
			}
		}
		for range 20 { // every worker meets every task
			run()
		}
		if n := testing.AllocsPerRun(50, run); n > 0 {
			t.Errorf("program %d: %v allocations a run", i, n)
		}
	}
}
