//go:build cuda

package cuda

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"reprise/kernels"
	"reprise/kernels/kernelbench"
	"reprise/kernels/kerneltest"
)

// stepShape is a layer whose step BenchmarkSteps times.
type stepShape struct {
	name   string
	mamba2 kernels.Mamba2Dims
	delta  kernels.DeltaDims
}

var stepShapes = [...]stepShape{
	{name: "nano", mamba2: kernels.Mamba2Dims{Heads: 96, HeadDim: 80, State: 128, Groups: 8, Taps: 4}},
	{name: "q4b", delta: kernels.DeltaDims{KeyHeads: 16, ValueHeads: 32, KeyDim: 128, ValueDim: 128, Taps: 4}},
}

func (m stepShape) isDelta() bool { return m.delta.Taps > 0 }

// inputs and outputs are the columns of the projections in front and behind.
func (m stepShape) inputs() int {
	if d := m.delta; m.isDelta() {
		return d.Conv() + d.Values() + 2*d.ValueHeads
	}
	return m.mamba2.Inner() + m.mamba2.Conv() + m.mamba2.Heads
}

func (m stepShape) outputs() int {
	if m.isDelta() {
		return m.delta.Values()
	}
	return m.mamba2.Inner()
}

func (m stepShape) layouts(w kernels.Window, p kernels.Precision) (kernels.RingLayout, kernels.CheckpointLayout) {
	if m.isDelta() {
		return kernels.DeltaRing(m.delta, w, kernels.BF16, p), kernels.DeltaCheckpoint(m.delta, p)
	}
	return kernels.Mamba2Ring(m.mamba2, w, kernels.BF16), kernels.Mamba2Checkpoint(m.mamba2, p)
}

// stepRig is some layers with the memory of some rows, all zeros but for the cursors: the times do not depend on values.
type stepRig struct {
	*testing.B
	dev     *Device
	buffers []kernels.Buffer
	layers  []func(o kernels.Ops)
}

func (r *stepRig) alloc(bytes int64) kernels.Buffer {
	b, err := r.dev.Alloc(bytes)
	if err != nil {
		r.Fatal(err)
	}
	r.buffers = append(r.buffers, b)
	return b
}

func (r *stepRig) ints(n int, f func(i int) int) kernels.Buffer {
	data := make([]byte, 0, 4*n)
	for i := range n {
		data = binary.LittleEndian.AppendUint32(data, uint32(f(i)))
	}
	b := r.alloc(int64(len(data)))
	r.dev.Submit(kernels.ProgramFunc(func(o kernels.Ops) { o.Upload(b, data) }))
	return b
}

func (r *stepRig) mat(rows, cols int) kernels.Mat {
	return kernels.NewMat(r.alloc(int64(rows*cols*2)), kernels.BF16, rows, cols)
}

// stepBytes is what a row moves, flushing or not.
func (m stepShape) stepBytes(w kernels.Window, p kernels.Precision, flush float64) float64 {
	var all float64
	if m.isDelta() {
		all, _ = kernelbench.DeltaCost(m.delta, w, w.T, kernels.BF16, kernels.Precision{})
	} else {
		all, _ = kernelbench.Mamba2Cost(m.mamba2, w, w.T, kernels.BF16, kernels.Precision{})
	}
	_, c := m.layouts(w, p)
	elements := float64(c.HP.Heads * c.HP.Rows * c.HP.Cols)
	all -= 4 * elements * (1 + float64(w.T)/float64(w.L+1))
	size := func(a kernels.StateArray) float64 { return float64(a.Heads) * float64(a.HeadBytes()) }
	all += (1-flush)*size(c.LP) + flush*2*size(c.HP)
	if p.Two() {
		all += flush * size(c.LP)
	}
	return all
}

// phases is where the rows of a rig stand in their windows: at all places, where none of them flushes, or where all do. The
// names say which rows flush.
type phases string

const (
	everywhere phases = "some"
	early      phases = "none"
	last       phases = "all"
)

// place is the records that row i has.
func (p phases) place(i int, w kernels.Window) int {
	switch p {
	case early:
		return i * 7 % (w.L - w.T + 1)
	case last:
		return w.L
	}
	return i * 7 % (w.L + 1)
}

// newStepRig is enough layers of b rows for cold caches; with the projections around the mixers, if hidden columns are given.
func newStepRig(b *testing.B, dev *Device, m stepShape, rows int, w kernels.Window, p kernels.Precision, at phases, hidden int) (r *stepRig, bytes float64) {
	r = &stepRig{B: b, dev: dev}
	ring, check := m.layouts(w, p)
	share := float64(0)
	h := func(i int) int { return at.place(i, w) }
	for i := range rows {
		if h(i)+w.T > w.L {
			share += 1 / float64(rows)
		}
	}
	bytes = m.stepBytes(w, p, share) * float64(rows)
	row := func(i int) int { return i * 37 % rows } // a permutation: the numbers of rows are powers of two
	slot, n := r.ints(rows, row), r.ints(rows, func(int) int { return w.T })
	self := r.ints(rows, func(i int) int { return i })
	cursors := kernels.Cursors{Origin: r.ints(rows, func(i int) int { return 64 + i%7 }), H: r.ints(rows, h), Src: self, Dst: self}
	tokens := rows * w.T
	shape := kernels.Rows{Count: rows, Tokens: tokens, T: w.T, MaxLen: w.T, Slot: slot, N: n}
	layers, weights := min(64, int(240e6/bytes)+2), [2][]kernels.Weight{}
	if hidden > 0 {
		layers = min(layers, 12)
		for i := range weights {
			weights[i] = []kernels.Weight{r.pack(m.inputs(), hidden), r.pack(hidden, m.outputs())}
		}
	}
	x := r.mat(tokens, hidden)
	for i := range layers {
		all := r.mat(tokens, m.inputs())
		inputs := all
		take := func(cols int) (v kernels.Mat) {
			v, inputs = inputs.ColRange(0, cols), inputs.ColRange(cols, inputs.Cols-cols)
			return v
		}
		add := func(out kernels.Mat, mixer func(o kernels.Ops)) {
			if hidden == 0 {
				r.layers = append(r.layers, mixer)
				return
			}
			r.project(x, all, out, mixer, weights[i%2])
		}
		s := kernels.State{Blocks: r.alloc(check.Bytes() * int64(rows)), BlockStride: check.Bytes(), Rings: r.alloc(ring.Bytes * int64(rows)), RingStride: ring.Bytes, Layout: ring, Window: w, Precision: p}
		if d := m.delta; m.isDelta() {
			q := kernels.Delta{Rows: shape, Cursors: cursors, State: s, Dims: d, QKV: take(d.Conv()), Z: take(d.Values()), B: take(d.ValueHeads), A: take(d.ValueHeads),
				ConvW: r.alloc(int64(d.Conv() * 16)), DecayA: r.alloc(int64(d.ValueHeads * 4)), DtBias: r.alloc(int64(d.ValueHeads * 4)), NormW: r.alloc(int64(d.ValueDim * 4)), Eps: 1e-6, Out: r.mat(tokens, d.Values())}
			add(q.Out, func(o kernels.Ops) { o.DeltaStep(q) })
			continue
		}
		d := m.mamba2
		q := kernels.Mamba2{Rows: shape, Cursors: cursors, State: s, Dims: d, Z: take(d.Inner()), XBC: take(d.Conv()), Dt: take(d.Heads), ConvW: r.alloc(int64(d.Conv() * 16)), ConvB: r.alloc(int64(d.Conv() * 4)),
			A: r.alloc(int64(d.Heads * 4)), D: r.alloc(int64(d.Heads * 4)), DtBias: r.alloc(int64(d.Heads * 4)), NormW: r.alloc(int64(d.Inner() * 4)), Eps: 1e-5, Out: r.mat(tokens, d.Inner())}
		add(q.Out, func(o kernels.Ops) { o.Mamba2Step(q) })
	}
	return r, bytes
}

// project puts the projections of a layer of hidden columns around each mixer: inputs are columns of one product's output.
func (r *stepRig) project(x, y, out kernels.Mat, mixer func(o kernels.Ops), weights []kernels.Weight) {
	norm := r.alloc(int64(x.Cols * 4))
	first := kernels.Linear{X: x, Y: y, W: weights[0], NormW: norm, Eps: 1e-5, Normed: r.mat(x.Rows, x.Cols)}
	last := kernels.Linear{X: out, Y: x, W: weights[1], Add: true}
	r.layers = append(r.layers, func(o kernels.Ops) {
		o.Linear(first)
		mixer(o)
		o.Linear(last)
	})
}

func (r *stepRig) pack(rows, cols int) kernels.Weight {
	w, err := r.dev.Pack(kernels.WeightSpec{Name: "w", Parts: []kernels.HostTensor{{Name: "w", DType: kernels.BF16, Shape: []int{rows, cols}, Data: make([]byte, rows*cols*2)}}})
	if err != nil {
		r.Fatal(err)
	}
	return w
}

// micro is the time of one layer's step: the best of some replays of a program of about a millisecond.
func (r *stepRig) micro(c choices, guess float64) float64 {
	kept := r.dev.ops.ssm.choices
	r.dev.ops.ssm.choices = c
	defer func() { r.dev.ops.ssm.choices = kept }()
	repeats := max(1, int(1500/guess)/len(r.layers))
	g, err := r.dev.Capture(kernels.ProgramFunc(func(o kernels.Ops) {
		for range repeats {
			for _, l := range r.layers {
				l(o)
			}
		}
	}))
	if err != nil {
		r.Fatal(err)
	}
	var times []float64
	for range 4 {
		begin := time.Now()
		r.dev.Replay(g)
		if err := r.dev.Wait(r.dev.Mark()); err != nil {
			r.Fatal(err)
		}
		times = append(times, time.Since(begin).Seconds()*1e6/float64(repeats*len(r.layers)))
	}
	return slices.Min(times)
}

func (r *stepRig) free() {
	for _, b := range r.buffers {
		r.dev.Free(b)
	}
}

// variant is a way of doing the steps of some number of rows.
type variant struct {
	name string
	set  func(c *choices)
}

func stepVariants() []variant {
	in := func(w way, spread int) func(c *choices) {
		return func(c *choices) {
			one := table{{0, w}}
			*c = choices{spread: spread, mamba2: [3]table{one, one, one}, delta: [3]table{one, one, one}}
		}
	}
	list := []variant{{"spread", in(way{apart, 1}, 1<<20)}, {"span", in(way{apart, 1}, 0)}}
	for k, name := range [...]string{apart: "apart", whole: "whole"} {
		for b := range 2 {
			list = append(list, variant{fmt.Sprintf("%s%d", name, b), in(way{k, b}, measured().spread)})
		}
	}
	return list
}

// variantsOf are those worth a time.
func variantsOf(rows int, p kernels.Precision) []variant {
	if p.Read() != kernels.StateF32 {
		return nil
	}
	return slices.DeleteFunc(stepVariants(), func(v variant) bool {
		return rows > 32 && strings.HasSuffix(v.name, "0")
	})
}

// TestStepVariants runs the conformance suite's steps with every kernel that a step may be done by.
func TestStepVariants(t *testing.T) {
	for _, v := range stepVariants() {
		t.Run(v.name, func(t *testing.T) {
			kerneltest.RunCases(t, "ssm", "step", func(t testing.TB) kernels.Device {
				d, err := Open(Options{WalkScans: true})
				if err != nil {
					skip(t, err)
				}
				v.set(&d.(*Device).ops.ssm.choices)
				return d
			})
		})
	}
}

// stepTimer times steps of one device.
type stepTimer struct {
	*testing.B
	dev *Device
}

func newStepTimer(b *testing.B) stepTimer {
	return stepTimer{b, openFor(b, kernels.BF16).(*Device)}
}

// window is the replay window that engines choose for rows of t tokens.
func windowOf(t int) kernels.Window {
	if t > 4 {
		return kernels.Window{L: 32, T: t}
	}
	return kernels.Window{L: 16, T: t}
}

// time prints the time of a step as it is chosen, and of each other way.
func (s stepTimer) time(m stepShape, rows, t int, p kernels.Precision, at phases) {
	w := windowOf(t)
	r, bytes := newStepRig(s.B, s.dev, m, rows, w, p, at, 0)
	defer r.free()
	floor := bytes / 4.11e6
	us := r.micro(s.dev.ops.ssm.choices, floor+5)
	line := fmt.Sprintf("%-4s B%-3d T%d L%d %-20v flush %-4v %8.2f us floor %8.2f ratio %5.2f |", m.name, rows, t, w.L, p, at, us, floor, us/floor)
	for _, v := range variantsOf(rows, p) {
		c := s.dev.ops.ssm.choices
		v.set(&c)
		line += fmt.Sprintf(" %s %.2f", v.name, r.micro(c, floor+5))
	}
	fmt.Println(strings.TrimRight(line, "|"))
}

// BenchmarkSteps times mixers (convolution, state, norm) as the program of a step has them, in each way of doing them:
// -test.bench Steps -test.benchtime 1x. Floors are bytes at 4.11 TB/s. It checks nothing.
func BenchmarkSteps(b *testing.B) {
	s := newStepTimer(b)
	defer s.dev.Close()
	for _, m := range stepShapes {
		for _, t := range []int{1, 4, 8} {
			for _, rows := range []int{1, 8, 32, 128, 256} {
				s.time(m, rows, t, kernels.Precision{}, everywhere)
			}
		}
	}
}

// BenchmarkLayers times mixers between their projections.
func BenchmarkLayers(b *testing.B) {
	s := newStepTimer(b)
	defer s.dev.Close()
	for i, hidden := range []int{3136, 2560} {
		for _, t := range []int{1, 4} {
			for _, rows := range []int{1, 4, 8, 16, 24, 32, 48, 64} {
				s.layer(stepShapes[i], hidden, rows, t)
			}
		}
	}
}

// layer prints the time of a layer with its projections, and with each other way of doing the mixer.
func (s stepTimer) layer(m stepShape, hidden, rows, t int) {
	r, _ := newStepRig(s.B, s.dev, m, rows, windowOf(t), kernels.Precision{}, everywhere, hidden)
	defer r.free()
	line := fmt.Sprintf("layer %-4s B%-3d T%d %.2f us |", m.name, rows, t, r.micro(s.dev.ops.ssm.choices, 50))
	for _, v := range variantsOf(rows, kernels.Precision{}) {
		c := s.dev.ops.ssm.choices
		v.set(&c)
		line += fmt.Sprintf(" %s %.2f", v.name, r.micro(c, 50))
	}
	fmt.Println(line)
}

// BenchmarkFormats times mixers in the formats of checkpoints.
func BenchmarkFormats(b *testing.B) {
	for _, m := range stepShapes {
		b.Run(m.name, func(b *testing.B) { timeFormats(newStepTimer(b), m) })
	}
}

func timeFormats(s stepTimer, m stepShape) {
	defer s.dev.Close()
	f32, f16, bf16, f8, f4, sr := kernels.StateF32, kernels.StateF16, kernels.StateBF16, kernels.StateF8, kernels.StateNVFP4, kernels.Stochastic
	for _, p := range []kernels.Precision{{}, {HP: f16, Rounding: sr}, {HP: bf16, Rounding: sr}, {HP: f8, Rounding: sr}, {HP: f4, Rounding: sr}} {
		s.time(m, 256, 1, p, early)
	}
	for _, t := range []int{1, 4, 8} {
		for _, p := range []kernels.Precision{{HP: f16, Rounding: sr}, {HP: f8, Rounding: sr}, {HP: f4, Rounding: sr}, {HP: f16, LP: f8, Rounding: sr}, {HP: f16, LP: f4, Rounding: sr}, {HP: f32, LP: f4}} {
			s.time(m, 256, t, p, everywhere)
		}
	}
}

// BenchmarkFewFormats times the same for fewer rows, and where all rows flush in one step.
func BenchmarkFewFormats(b *testing.B) {
	f16, f8, f4, sr := kernels.StateF16, kernels.StateF8, kernels.StateNVFP4, kernels.Stochastic
	s := newStepTimer(b)
	defer s.dev.Close()
	for _, m := range stepShapes {
		for _, p := range []kernels.Precision{{}, {HP: f16, Rounding: sr}, {HP: f8, Rounding: sr}, {HP: f4, Rounding: sr}, {HP: f16, LP: f8, Rounding: sr}, {HP: f16, LP: f4, Rounding: sr}} {
			for _, rows := range []int{1, 8, 32, 64} {
				s.time(m, rows, 1, p, early)
				s.time(m, rows, 1, p, last)
			}
			s.time(m, 256, 1, p, last)
		}
	}
}
