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

// newStepRig is enough layers of b rows for cold caches; without flushes, if so wanted.
func newStepRig(b *testing.B, dev *Device, m stepShape, rows int, w kernels.Window, p kernels.Precision, flushes bool) (r *stepRig, bytes float64) {
	r = &stepRig{B: b, dev: dev}
	ring, check := m.layouts(w, p)
	phases := w.L + 1
	if !flushes {
		phases = w.L - w.T + 1
	}
	share := float64(0)
	h := func(i int) int { return i * 7 % phases }
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
	for range min(64, int(240e6/bytes)+2) {
		s := kernels.State{Blocks: r.alloc(check.Bytes() * int64(rows)), BlockStride: check.Bytes(), Rings: r.alloc(ring.Bytes * int64(rows)), RingStride: ring.Bytes, Layout: ring, Window: w, Precision: p}
		if d := m.delta; m.isDelta() {
			q := kernels.Delta{Rows: shape, Cursors: cursors, State: s, Dims: d, QKV: r.mat(tokens, d.Conv()), Z: r.mat(tokens, d.Values()), B: r.mat(tokens, d.ValueHeads), A: r.mat(tokens, d.ValueHeads),
				ConvW: r.alloc(int64(d.Conv() * 16)), DecayA: r.alloc(int64(d.ValueHeads * 4)), DtBias: r.alloc(int64(d.ValueHeads * 4)), NormW: r.alloc(int64(d.ValueDim * 4)), Eps: 1e-6, Out: r.mat(tokens, d.Values())}
			r.layers = append(r.layers, func(o kernels.Ops) { o.DeltaStep(q) })
			continue
		}
		d := m.mamba2
		q := kernels.Mamba2{Rows: shape, Cursors: cursors, State: s, Dims: d, Z: r.mat(tokens, d.Inner()), XBC: r.mat(tokens, d.Conv()), Dt: r.mat(tokens, d.Heads), ConvW: r.alloc(int64(d.Conv() * 16)), ConvB: r.alloc(int64(d.Conv() * 4)),
			A: r.alloc(int64(d.Heads * 4)), D: r.alloc(int64(d.Heads * 4)), DtBias: r.alloc(int64(d.Heads * 4)), NormW: r.alloc(int64(d.Inner() * 4)), Eps: 1e-5, Out: r.mat(tokens, d.Inner())}
		r.layers = append(r.layers, func(o kernels.Ops) { o.Mamba2Step(q) })
	}
	return r, bytes
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

func variantsOf(m stepShape, rows int, p kernels.Precision) []variant {
	if p.Read() != kernels.StateF32 {
		return nil
	}
	list := []variant{
		{"spread", func(c *choices) { c.spread, c.mix = 1<<20, [3]int{} }},
		{"span", func(c *choices) { c.spread, c.mix = 0, [3]int{} }},
		{"k0", func(c *choices) { c.few, c.mix = 1<<20, [3]int{} }},
		{"k1", func(c *choices) { c.few, c.many, c.mix = 0, 1<<20, [3]int{} }},
		{"k2", func(c *choices) { c.few, c.many, c.mix = 0, 0, [3]int{} }},
	}
	if m.isDelta() {
		list = append(list, variant{"mix", func(c *choices) { c.mix = [3]int{1 << 20, 1 << 20, 1 << 20} }})
	}
	if rows > 32 {
		list = slices.DeleteFunc(list, func(v variant) bool { return v.name == "k0" || v.name == "mix" })
	}
	return list
}

// BenchmarkSteps times mixers (convolution, state, norm) as the program of a step has them, each way of doing them, and in
// the formats of checkpoints: -test.bench Steps -test.benchtime 1x. Floors are bytes at 4.11 TB/s. It checks nothing.
func BenchmarkSteps(b *testing.B) {
	dev := openFor(b, kernels.BF16).(*Device)
	defer dev.Close()
	one := func(m stepShape, rows, t int, p kernels.Precision, flushes bool) {
		w := kernels.Window{L: 16, T: t}
		if t > 4 {
			w.L = 32
		}
		r, bytes := newStepRig(b, dev, m, rows, w, p, flushes)
		defer r.free()
		floor := bytes / 4.11e6
		us := r.micro(dev.ops.ssm.choices, floor+5)
		line := fmt.Sprintf("%-4s B%-3d T%d L%d %-20v flush %-5v %8.2f us floor %8.2f ratio %5.2f |", m.name, rows, t, w.L, p, flushes, us, floor, us/floor)
		for _, v := range variantsOf(m, rows, p) {
			c := dev.ops.ssm.choices
			v.set(&c)
			line += fmt.Sprintf(" %s %.2f", v.name, r.micro(c, floor+5))
		}
		fmt.Println(strings.TrimRight(line, "|"))
	}
	for _, m := range stepShapes {
		for _, t := range []int{1, 4, 8} {
			for _, rows := range []int{1, 8, 32, 128, 256} {
				one(m, rows, t, kernels.Precision{}, true)
			}
		}
	}
	f32, f16, bf16, f8, f4, sr := kernels.StateF32, kernels.StateF16, kernels.StateBF16, kernels.StateF8, kernels.StateNVFP4, kernels.Stochastic
	for _, m := range stepShapes {
		for _, p := range []kernels.Precision{{}, {HP: f16, Rounding: sr}, {HP: bf16, Rounding: sr}, {HP: f8, Rounding: sr}, {HP: f4, Rounding: sr}} {
			one(m, 256, 1, p, false)
		}
		for _, t := range []int{1, 4, 8} {
			for _, p := range []kernels.Precision{{HP: f16, Rounding: sr}, {HP: f8, Rounding: sr}, {HP: f4, Rounding: sr}, {HP: f16, LP: f8, Rounding: sr}, {HP: f16, LP: f4, Rounding: sr}, {HP: f32, LP: f4}} {
				one(m, 256, t, p, true)
			}
		}
	}
}
