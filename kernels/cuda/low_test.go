//go:build cuda

package cuda

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"reprise/kernels"
	"reprise/kernels/ref"
)

// twins is a device beside the oracle, with equal memory.
type twins struct {
	testing.TB
	*rand.Rand
	devices [2]kernels.Device
}

type pair struct {
	buf  [2]kernels.Buffer
	size int
}

func (w *twins) put(data []byte) pair {
	p := pair{size: len(data)}
	for i, d := range w.devices {
		b, err := d.Alloc(int64(len(data)))
		if err != nil {
			w.Fatal(err)
		}
		p.buf[i] = b
	}
	w.run(func(o kernels.Ops, side int) { o.Upload(p.buf[side], data) })
	return p
}

func (w *twins) get(p pair) (out [2][]byte) {
	w.Helper()
	w.run(func(o kernels.Ops, side int) {
		out[side] = make([]byte, p.size)
	})
	for i, d := range w.devices {
		host, err := d.AllocHost(int64(p.size))
		if err != nil {
			w.Fatal(err)
		}
		d.Submit(kernels.ProgramFunc(func(o kernels.Ops) { o.Download(host, p.buf[i]) }))
		if err := d.Wait(d.Mark()); err != nil {
			w.Fatal(err)
		}
		out[i] = host
	}
	return out
}

func (w *twins) run(f func(o kernels.Ops, side int)) {
	w.Helper()
	for i, d := range w.devices {
		d.Submit(kernels.ProgramFunc(func(o kernels.Ops) { f(o, i) }))
		if err := d.Wait(d.Mark()); err != nil {
			w.Fatal(err)
		}
	}
}

func numbers(t kernels.DType, v []float32) []byte {
	out := make([]byte, 0, len(v)*t.Size())
	for _, x := range v {
		switch t {
		case kernels.F32:
			out = binary.LittleEndian.AppendUint32(out, math.Float32bits(x))
		case kernels.BF16:
			out = binary.LittleEndian.AppendUint16(out, kernels.F32ToBF16(x))
		case kernels.F16:
			out = binary.LittleEndian.AppendUint16(out, kernels.F32ToF16(x))
		}
	}
	return out
}

func widened(t kernels.DType, b []byte) []float64 {
	out := make([]float64, 0, len(b)/t.Size())
	for i := 0; i < len(b); i += t.Size() {
		switch t {
		case kernels.F32:
			out = append(out, float64(math.Float32frombits(binary.LittleEndian.Uint32(b[i:]))))
		case kernels.BF16:
			out = append(out, float64(kernels.BF16ToF32(binary.LittleEndian.Uint16(b[i:]))))
		case kernels.F16:
			out = append(out, float64(kernels.F16ToF32(binary.LittleEndian.Uint16(b[i:]))))
		}
	}
	return out
}

func (w *twins) normal(n int, by float64) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(w.NormFloat64() * by)
	}
	return v
}

func (w *twins) between(n int, low, high float64) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(low + w.Float64()*(high-low))
	}
	return v
}

func (w *twins) ints(v []int32) pair {
	b := make([]byte, 0, 4*len(v))
	for _, x := range v {
		b = binary.LittleEndian.AppendUint32(b, uint32(x))
	}
	return w.put(b)
}

func (w *twins) mat(rows, cols int, by float64) func(side int) kernels.Mat {
	t := w.devices[0].Activations()
	p := w.put(numbers(t, w.normal(rows*cols, by)))
	return func(side int) kernels.Mat { return kernels.NewMat(p.buf[side], t, rows, cols) }
}

func (w *twins) floats(v []float32) pair { return w.put(numbers(kernels.F32, v)) }

func relative(got, want []float64) (err float64) {
	var d, n float64
	for i := range got {
		d += (got[i] - want[i]) * (got[i] - want[i])
		n += want[i] * want[i]
	}
	return math.Sqrt(d / n)
}

func (w *twins) near(what string, got, want []float64, limit float64) {
	w.Helper()
	if e := relative(got, want); !(e <= limit) {
		w.Errorf("%s: error %.3g, allowed %.3g", what, e, limit)
	}
}

// lowLimits are errors of a decoded state relative to its norm: few codes may be rounded the other way.
var lowLimits = map[kernels.StateFormat]float64{kernels.StateF32: 1e-5, kernels.StateF16: 1e-3, kernels.StateBF16: 4e-3, kernels.StateF8: 6e-3, kernels.StateNVFP4: 2e-2}

type lowRow struct{ n, h, origin, src, dst int }

func (w *twins) low(m *kernels.Mamba2Dims, d *kernels.DeltaDims, p kernels.Precision, win kernels.Window, t int, op string) {
	act := w.devices[0].Activations()
	var layout kernels.RingLayout
	var check kernels.CheckpointLayout
	if m != nil {
		layout, check = kernels.Mamba2Ring(*m, win, act), kernels.Mamba2Checkpoint(*m, p)
	} else {
		layout, check = kernels.DeltaRing(*d, win, act, p), kernels.DeltaCheckpoint(*d, p)
	}
	var rows []lowRow
	for i, h := range []int{0, 3, win.L / 2, win.L - 1, win.L, win.L, win.L - t/2, 1} {
		r := lowRow{n: 1 + (t-1+i)%t, h: h, origin: []int{0, 5, 1000}[i%3], src: 1 + 2*i, dst: 1 + 2*i}
		if i%2 == 1 {
			r.dst++
		}
		if op != "step" {
			r.n = []int{1, 7, 33, 5}[i%4]
		}
		rows = append(rows, r)
	}
	slots, blocks := len(rows)+1, 2*len(rows)+1
	// memory
	share := int(check.Bytes())
	block := make([]byte, share*blocks)
	for b := range blocks {
		for _, a := range []kernels.StateArray{check.HP, check.LP} {
			for h := range a.Heads {
				a.EncodeHead(block[b*share:(b+1)*share], h, w.normal(a.Rows*a.Cols, 0.5), kernels.StateNoise{})
			}
		}
	}
	ring := make([]byte, slots*int(layout.Bytes))
	for s := range slots {
		put := func(f kernels.Field, v []float32) { copy(ring[int64(s)*layout.Bytes+f.Offset:], numbers(f.DType, v)) }
		put(layout.X, w.normal(layout.X.Rows*layout.X.Cols, 0.5))
		put(layout.Conv, w.normal(layout.Conv.Rows*layout.Conv.Cols, 1))
		if m != nil {
			put(layout.B, w.normal(layout.B.Rows*layout.B.Cols, 0.5))
			put(layout.Decay, w.between(layout.Decay.Rows*layout.Decay.Cols, 0.001, 1))
		} else {
			put(layout.B, w.normal(layout.B.Rows*layout.B.Cols, 1/math.Sqrt(float64(d.KeyDim))))
			put(layout.Decay, w.between(layout.Decay.Rows*layout.Decay.Cols, -1, -0.001))
			if p.Two() {
				put(layout.V, w.normal(layout.V.Rows*layout.V.Cols, 0.5))
				put(layout.Beta, w.between(layout.Beta.Rows*layout.Beta.Cols, 0.05, 0.95))
			}
		}
	}
	blockMem, ringMem := w.put(block), w.put(ring)
	var slot, n, start, cursor [4][]int32
	for i := range cursor {
		cursor[i] = []int32{0}
	}
	tokens, packed := 0, 0
	for i, r := range rows {
		slot[0], n[0], start[0] = append(slot[0], int32(i+1)), append(n[0], int32(r.n)), append(start[0], int32(packed))
		for j, v := range []int{r.origin, r.h, r.src, r.dst} {
			cursor[j] = append(cursor[j], int32(v))
		}
		packed += r.n
		tokens += t
	}
	rowsOf := func(side int) kernels.Rows { return kernels.Rows{} }
	slotMem, nMem, startMem := w.ints(slot[0]), w.ints(n[0]), w.ints(start[0])
	stateElements := check.HP.Heads * check.HP.Rows * check.HP.Cols
	scratchMem := w.floats(w.normal((stateElements+64)/64*64*2, 0.5))
	scratch, stage := w.ints([]int32{-1, 0, 1, -1, -1, -1, -1, -1}), w.ints([]int32{0, 0, kernels.Publish, 0, 0, 0, 0, 0})
	if op == "step" {
		rowsOf = func(side int) kernels.Rows {
			return kernels.Rows{Count: len(rows), Tokens: tokens, T: t, MaxLen: t, Slot: slotMem.buf[side], N: nMem.buf[side]}
		}
	} else {
		tokens = packed
		rowsOf = func(side int) kernels.Rows {
			r := kernels.Rows{Count: len(rows), Tokens: tokens, MaxLen: 40, Slot: slotMem.buf[side], N: nMem.buf[side], Start: startMem.buf[side]}
			if p.Scratch() {
				r.Scratch, r.Stage = scratch.buf[side], stage.buf[side]
			}
			return r
		}
	}
	cursors := [4]pair{w.ints(cursor[0]), w.ints(cursor[1]), w.ints(cursor[2]), w.ints(cursor[3])}
	cur := func(side int) kernels.Cursors {
		return kernels.Cursors{Origin: cursors[0].buf[side], H: cursors[1].buf[side], Src: cursors[2].buf[side], Dst: cursors[3].buf[side]}
	}
	state := func(side int) kernels.State {
		return kernels.State{Blocks: blockMem.buf[side], BlockStride: int64(share), Rings: ringMem.buf[side], RingStride: layout.Bytes, Layout: layout, Window: win,
			Precision: p, Layer: 3, Scratch: scratchMem.buf[side], ScratchStride: int64((stateElements + 63) / 64 * 256)}
	}
	var out pair
	outMat := func(cols int) func(side int) kernels.Mat {
		out = w.put(make([]byte, tokens*cols*act.Size()))
		return func(side int) kernels.Mat { return kernels.NewMat(out.buf[side], act, tokens, cols) }
	}
	do := func(o kernels.Ops, step, scan, fold func()) {
		switch op {
		case "step":
			step()
		case "scan":
			fold()
			scan()
		}
	}
	if m != nil {
		convW, convB := w.floats(w.normal(m.Conv()*m.Taps, 0.5)), w.floats(w.normal(m.Conv(), 0.5))
		a, dd, bias, norm := w.floats(w.between(m.Heads, -1.5, -0.05)), w.floats(w.normal(m.Heads, 1)), w.floats(w.normal(m.Heads, 1)), w.floats(w.normal(m.Inner(), 1))
		z, x, dt, y := w.mat(tokens, m.Inner(), 1), w.mat(tokens, m.Conv(), 1), w.mat(tokens, m.Heads, 1), outMat(m.Inner())
		w.run(func(o kernels.Ops, s int) {
			q := kernels.Mamba2{Rows: rowsOf(s), Cursors: cur(s), State: state(s), Dims: *m, Z: z(s), XBC: x(s), Dt: dt(s), ConvW: convW.buf[s], ConvB: convB.buf[s],
				A: a.buf[s], D: dd.buf[s], DtBias: bias.buf[s], NormW: norm.buf[s], Eps: 1e-5, Out: y(s)}
			do(o, func() { o.Mamba2Step(q) }, func() { o.Mamba2Scan(q) }, func() { o.Mamba2Fold(q) })
		})
	} else {
		convW, a, bias, norm := w.floats(w.normal(d.Conv()*d.Taps, 0.5)), w.floats(w.between(d.ValueHeads, -1.5, -0.05)), w.floats(w.normal(d.ValueHeads, 1)), w.floats(w.normal(d.ValueDim, 1))
		x, z, b, al, y := w.mat(tokens, d.Conv(), 1), w.mat(tokens, d.Values(), 1), w.mat(tokens, d.ValueHeads, 1), w.mat(tokens, d.ValueHeads, 1), outMat(d.Values())
		w.run(func(o kernels.Ops, s int) {
			q := kernels.Delta{Rows: rowsOf(s), Cursors: cur(s), State: state(s), Dims: *d, QKV: x(s), Z: z(s), B: b(s), A: al(s), ConvW: convW.buf[s], DecayA: a.buf[s],
				DtBias: bias.buf[s], NormW: norm.buf[s], Eps: 1e-6, Out: y(s)}
			do(o, func() { o.DeltaStep(q) }, func() { o.DeltaScan(q) }, func() { o.DeltaFold(q) })
		})
	}
	outs := w.get(out)
	w.near("out", widened(act, outs[0]), widened(act, outs[1]), map[kernels.DType]float64{kernels.F32: 2e-5, kernels.BF16: 6e-3}[act])
	rings := w.get(ringMem)
	for _, f := range []struct {
		name string
		kernels.Field
	}{{"x", layout.X}, {"b", layout.B}, {"decay", layout.Decay}, {"conv", layout.Conv}, {"v", layout.V}, {"beta", layout.Beta}} {
		if f.Rows == 0 || op == "scan" {
			continue
		}
		for i := range rows {
			at, size := int64(i+1)*layout.Bytes+f.Offset, int64(f.Rows*f.Cols*f.DType.Size())
			w.near(fmt.Sprintf("ring %s of row %d", f.name, i), widened(f.DType, rings[0][at:at+size]), widened(f.DType, rings[1][at:at+size]), map[kernels.DType]float64{kernels.F32: 1e-5, kernels.BF16: 6e-3, kernels.F16: 2e-3}[f.DType])
		}
	}
	mem := w.get(blockMem)
	for i, r := range rows {
		for k, a := range []kernels.StateArray{check.HP, check.LP} {
			differ := 0
			for h := range a.Heads {
				var v [2][]float64
				for side := range v {
					x := make([]float32, a.Rows*a.Cols)
					a.DecodeRows(x, mem[side][r.dst*share:], h, 0)
					v[side] = widened(kernels.F32, numbers(kernels.F32, x))
				}
				for j := range v[0] {
					if math.Abs(v[0][j]-v[1][j]) > 1e-4*math.Abs(v[1][j]) { // scales differ by roundings of float32
						differ++
					}
				}
				w.near(fmt.Sprintf("row %d copy %d head %d", i, k, h), v[0], v[1], lowLimits[a.Format])
			}
			if total := a.Heads * a.Rows * a.Cols; a.Format >= kernels.StateF8 && differ > total/16+3 {
				w.Errorf("row %d copy %d: %d of %d differ", i, k, differ, total)
			}
		}
	}
	if op == "scan" && p.Scratch() {
		s := w.get(scratchMem)
		w.near("scratch", widened(kernels.F32, s[0]), widened(kernels.F32, s[1]), map[kernels.DType]float64{kernels.F32: 1e-5, kernels.BF16: 1e-3}[act])
	}
}

func lowPrecisions() []kernels.Precision {
	f32, f16, bf16, f8, f4 := kernels.StateF32, kernels.StateF16, kernels.StateBF16, kernels.StateF8, kernels.StateNVFP4
	return []kernels.Precision{
		{HP: f16}, {HP: f16, Rounding: kernels.Stochastic}, {HP: bf16}, {HP: bf16, Rounding: kernels.Stochastic}, {HP: f8}, {HP: f8, Rounding: kernels.Stochastic},
		{HP: f4}, {HP: f4, Rounding: kernels.Stochastic}, {HP: f32, LP: f16}, {HP: f32, LP: bf16}, {HP: f32, LP: f8}, {HP: f32, LP: f4}, {HP: f16, LP: f8, Rounding: kernels.Stochastic},
		{HP: f16, LP: f4, Rounding: kernels.Stochastic}, {HP: f8, LP: f4, Rounding: kernels.Stochastic}, {HP: bf16, LP: f4},
	}
}

func lowCases(t *testing.T, act kernels.DType) {
	small, small2 := kernels.Mamba2Dims{Heads: 4, HeadDim: 5, State: 21, Groups: 2, Taps: 4}, kernels.DeltaDims{KeyHeads: 2, ValueHeads: 4, KeyDim: 20, ValueDim: 7, Taps: 4}
	nano, super := kernels.Mamba2Dims{Heads: 8, HeadDim: 80, State: 128, Groups: 2, Taps: 4}, kernels.Mamba2Dims{Heads: 4, HeadDim: 64, State: 128, Groups: 1, Taps: 4}
	q4b := kernels.DeltaDims{KeyHeads: 2, ValueHeads: 4, KeyDim: 128, ValueDim: 128, Taps: 4}
	for _, p := range lowPrecisions() {
		run := func(name string, m *kernels.Mamba2Dims, d *kernels.DeltaDims, l, n int, op string) {
			t.Run(strings.ReplaceAll(fmt.Sprintf("%v %s L%d T%d %s", p, name, l, n, op), "/", "-"), func(t *testing.T) {
				w := &twins{TB: t, Rand: rand.New(rand.NewPCG(7, 8)), devices: [2]kernels.Device{openFor(t, act), ref.New()}}
				defer w.devices[0].Close()
				w.low(m, d, p, kernels.Window{L: l, T: n}, n, op)
			})
		}
		run("small mamba2", &small, nil, 8, 4, "step")
		run("small mamba2", &small, nil, 8, 4, "scan")
		run("small delta", nil, &small2, 8, 4, "step")
		run("small delta", nil, &small2, 8, 4, "scan")
		if act == kernels.F32 {
			continue
		}
		for _, w := range [][2]int{{16, 1}, {16, 4}, {32, 8}} {
			run("nano", &nano, nil, w[0], w[1], "step")
			run("super", &super, nil, w[0], w[1], "step")
			run("q4b", nil, &q4b, w[0], w[1], "step")
		}
	}
}

func TestLowBF16(t *testing.T) { lowCases(t, kernels.BF16) }
func TestLowF32(t *testing.T)  { lowCases(t, kernels.F32) }
