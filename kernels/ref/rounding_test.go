package ref

import (
	"math"
	"testing"

	"reprise/kernels"
)

// With bfloat16 rings a token contributes the same to its own output as to every replay: outputs and folded states must
// be those of the recorded values, not of the values before they were rounded.

func (h host) recorded(s kernels.State, f kernels.Field, token int) []float64 {
	r := ops[float64]{h.dev}.layer(s, kernels.CheckpointLayout{}).ring(1, f)
	return r.get(token)
}

// stepRow is one step row of one token in slot 1, whose state is block 1.
func (h host) stepRow() (kernels.Rows, kernels.Cursors) {
	h.Helper()
	rows, cursors := h.sequence(1)
	rows.T, rows.Start = 1, kernels.Buffer{}
	return rows, cursors
}

// foldOne folds the one record of slot 1.
func foldOne(h host, rows *kernels.Rows, c kernels.Cursors) {
	rows.T, rows.Start = 0, h.ints(0)
	h.dev.ints(c.H).set(1, 1)
}

func TestMamba2UsesRoundedRecords(t *testing.T) {
	h := newHost(t)
	d, window := kernels.Mamba2Dims{Heads: 1, HeadDim: 2, State: 3, Groups: 1, Taps: 1}, kernels.Window{L: 2, T: 1}
	layout := kernels.Mamba2Ring(d, window, kernels.BF16)
	rows, cursors := h.stepRow()
	xbc := []float64{1.2345678, -0.7654321, 0.333333, 1.111111, -2.222222, 0.5, 1.75, -0.25}
	p := kernels.Mamba2{
		Rows: rows, Cursors: cursors, State: h.state(d.Inner()*d.State, make([]float64, 6), layout, window), Dims: d,
		Z: h.mat(2, 1, 2), XBC: h.mat(d.Conv(), xbc...), Dt: h.mat(1, 0.3), ConvW: h.floats(1, 1, 1, 1, 1, 1, 1, 1), A: h.floats(-1), D: h.floats(0.7), DtBias: h.floats(0),
		NormW: h.floats(1, 1), Eps: 1e-5, Out: h.mat(2, 0, 0),
	}
	h.run(func(o kernels.Ops) { o.Mamba2Step(p) })
	x, b, dt := h.recorded(p.State, layout.X, 0), h.recorded(p.State, layout.B, 0), h.recorded(p.State, layout.Decay, 0)[0]
	h.near("dt", []float64{dt}, []float64{math.Log1p(math.Exp(float64(float32(0.3))))})
	raw := round(kernels.BF16, xbc)
	for i, v := range x {
		if want := raw[i] * logistic(raw[i]); v == want || math.Abs(v-want) > math.Abs(want)/256 {
			t.Fatalf("x %d is recorded as %v, want %v rounded to bfloat16", i, v, want)
		}
	}
	scores := 0.0
	for i := range b {
		scores += b[i] * raw[5+i] * logistic(raw[5+i])
	}
	y := []float64{(dt*scores + float64(float32(0.7))) * x[0] * logistic(1), (dt*scores + float64(float32(0.7))) * x[1] * 2 * logistic(2)}
	scale := rms(y, float64(float32(1e-5)))
	h.near("out", h.read(p.Out.Buf), []float64{y[0] / scale, y[1] / scale})

	foldOne(h, &p.Rows, cursors)
	h.run(func(o kernels.Ops) { o.Mamba2Fold(p) })
	var want []float64
	for i := range 2 {
		for j := range 3 {
			want = append(want, dt*x[i]*b[j])
		}
	}
	h.near("state", h.read(p.State.Blocks)[6:], want)
}

func TestDeltaUsesRoundedRecords(t *testing.T) {
	h := newHost(t)
	d, window := kernels.DeltaDims{KeyHeads: 1, ValueHeads: 1, KeyDim: 2, ValueDim: 2, Taps: 1}, kernels.Window{L: 2, T: 1}
	layout := kernels.DeltaRing(d, window, kernels.BF16, kernels.Precision{})
	rows, cursors := h.stepRow()
	p := kernels.Delta{
		Rows: rows, Cursors: cursors, State: h.state(4, make([]float64, 4), layout, window), Dims: d,
		QKV: h.mat(6, 1, 2, 0.37, -1.3, 1.23456, 3e5), Z: h.mat(2, 1, 2), B: h.mat(1, 0.4), A: h.mat(1, -0.2), ConvW: h.floats(1, 1, 1, 1, 1, 1),
		DecayA: h.floats(-1), DtBias: h.floats(0), NormW: h.floats(1, 1), Eps: 1e-6, Out: h.mat(2, 0, 0),
	}
	h.run(func(o kernels.Ops) { o.DeltaStep(p) })
	u, k := h.recorded(p.State, layout.X, 0), h.recorded(p.State, layout.B, 0)
	if u[1] != 65504 {
		t.Errorf("the correction is recorded as %v, want it saturated", u[1])
	}
	v := round(kernels.BF16, []float64{1.23456})[0]
	if want := logistic(0.4) * v * logistic(v); u[0] == want || math.Abs(u[0]-want) > want/2048 {
		t.Errorf("the correction is recorded as %v, want %v rounded to float16", u[0], want)
	}
	foldOne(h, &p.Rows, cursors)
	h.run(func(o kernels.Ops) { o.DeltaFold(p) })
	h.near("state", h.read(p.State.Blocks)[4:], []float64{u[0] * k[0], u[0] * k[1], u[1] * k[0], u[1] * k[1]})
	out := h.read(p.Out.Buf) // o is u times one number: its norm depends on the direction of u alone
	scale := rms(u, 0)
	h.near("out", out, []float64{math.Copysign(u[0]/scale*logistic(1), out[0]), math.Copysign(u[1]/scale*2*logistic(2), out[1])})
}
