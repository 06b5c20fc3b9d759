package kerneltest

import (
	"math"
	"math/rand/v2"

	"reprise/kernels"
)

// launch is one of the three operations of an SSM layer.
type launch int

const (
	step launch = iota
	scan
	fold
)

// call is what the operations of both kinds of layer have in common.
type call struct {
	rows    kernels.Rows
	cursors kernels.Cursors
	state   kernels.State
	in      []kernels.Mat
	out     kernels.Mat
}

// recurrence is a kind of SSM layer with its parameters.
type recurrence interface {
	layout(w kernels.Window, act kernels.DType, p kernels.Precision) kernels.RingLayout
	checkpoint(p kernels.Precision) kernels.CheckpointLayout
	block() int    // elements of a state
	inputs() []int // columns of the projections, in the order of call.in
	conv() int     // which of them goes into the convolution ring
	outputs() int
	taps() int
	record(r *rand.Rand) (x, b, decay []float32) // a made-up record
	launch(o kernels.Ops, s side, op launch, c call)
}

// uniform is n numbers between low and high.
func uniform(r *rand.Rand, n int, low, high float64) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(low + (high-low)*r.Float64())
	}
	return v
}

func gaussian(r *rand.Rand, n int, deviation float64) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(deviation * r.NormFloat64())
	}
	return v
}

// decays is n numbers -exp(A_log), from nearly none to strong.
func decays(r *rand.Rand, n int) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = -float32(math.Exp(-5 + 7.5*r.Float64()))
	}
	return v
}

// biases is dt biases; one head's is beyond the guard of softplus.
func biases(r *rand.Rand, n int) []float32 {
	v := gaussian(r, n, 1.5)
	if n > 1 {
		v[n-1] = 21
	}
	return v
}

// mamba2 is a Mamba-2 layer.
type mamba2 struct {
	dims                            kernels.Mamba2Dims
	convW, convB, a, d, bias, normW *array
	dtMin, dtMax                    float32
}

func newMamba2(b *bench, d kernels.Mamba2Dims) recurrence {
	return &mamba2{
		dims: d, convW: b.floats("convW", b.normal(d.Conv()*d.Taps, 0, 0.5)), convB: b.floats("convB", b.normal(d.Conv(), 0, 0.5)),
		a: b.floats("A", decays(b.Rand, d.Heads)), d: b.floats("D", b.normal(d.Heads, 1, 0.3)),
		bias: b.floats("dtBias", biases(b.Rand, d.Heads)), normW: b.floats("normW", b.normal(d.Inner(), 1, 0.3)),
	}
}

// newClampedMamba2 has no convolution bias and clamps dt.
func newClampedMamba2(b *bench, d kernels.Mamba2Dims) recurrence {
	m := newMamba2(b, d).(*mamba2)
	m.convB, m.dtMin, m.dtMax = nil, 0.4, 0.9
	return m
}

func (m *mamba2) layout(w kernels.Window, act kernels.DType, _ kernels.Precision) kernels.RingLayout {
	return kernels.Mamba2Ring(m.dims, w, act)
}

func (m *mamba2) checkpoint(p kernels.Precision) kernels.CheckpointLayout {
	return kernels.Mamba2Checkpoint(m.dims, p)
}

func (m *mamba2) block() int    { return m.dims.Inner() * m.dims.State }
func (m *mamba2) inputs() []int { return []int{m.dims.Inner(), m.dims.Conv(), m.dims.Heads} }
func (m *mamba2) conv() int     { return 1 }
func (m *mamba2) outputs() int  { return m.dims.Inner() }
func (m *mamba2) taps() int     { return m.dims.Taps }

func (m *mamba2) record(r *rand.Rand) (x, b, decay []float32) {
	return gaussian(r, m.dims.Inner(), 0.5), gaussian(r, m.dims.Groups*m.dims.State, 0.5), uniform(r, m.dims.Heads, 0.001, 2)
}

func (m *mamba2) launch(o kernels.Ops, s side, op launch, c call) {
	d := m.dims
	p := kernels.Mamba2{
		Rows: c.rows, Cursors: c.cursors, State: c.state, Dims: d, Z: c.in[0], XBC: c.in[1], Dt: c.in[2],
		ConvW: m.convW.buf[s], A: m.a.buf[s], D: m.d.buf[s], DtBias: m.bias.buf[s], DtMin: m.dtMin, DtMax: m.dtMax,
		NormW: m.normW.buf[s], Eps: 1e-5, Out: c.out,
	}
	if m.convB != nil {
		p.ConvB = m.convB.buf[s]
	}
	switch op {
	case step:
		o.Mamba2Step(p)
	case scan:
		o.Mamba2Scan(p)
	case fold:
		o.Mamba2Fold(p)
	}
}

// delta is a Gated DeltaNet layer.
type delta struct {
	dims                      kernels.DeltaDims
	convW, decay, bias, normW *array
}

func newDelta(b *bench, d kernels.DeltaDims) recurrence {
	return &delta{
		dims: d, convW: b.floats("convW", b.normal(d.Conv()*d.Taps, 0, 0.5)), decay: b.floats("decayA", decays(b.Rand, d.ValueHeads)),
		bias: b.floats("dtBias", biases(b.Rand, d.ValueHeads)), normW: b.floats("normW", b.normal(d.ValueDim, 1, 0.3)),
	}
}

func (m *delta) layout(w kernels.Window, act kernels.DType, p kernels.Precision) kernels.RingLayout {
	return kernels.DeltaRing(m.dims, w, act, p)
}

func (m *delta) checkpoint(p kernels.Precision) kernels.CheckpointLayout {
	return kernels.DeltaCheckpoint(m.dims, p)
}

func (m *delta) block() int { return m.dims.Values() * m.dims.KeyDim }
func (m *delta) inputs() []int {
	return []int{m.dims.Conv(), m.dims.Values(), m.dims.ValueHeads, m.dims.ValueHeads}
}
func (m *delta) conv() int    { return 0 }
func (m *delta) outputs() int { return m.dims.Values() }
func (m *delta) taps() int    { return m.dims.Taps }

func (m *delta) record(r *rand.Rand) (x, b, decay []float32) {
	k := gaussian(r, m.dims.Keys(), 1/math.Sqrt(float64(m.dims.KeyDim)))
	return gaussian(r, m.dims.Values(), 0.5), k, uniform(r, m.dims.ValueHeads, -2, -0.001)
}

func (m *delta) launch(o kernels.Ops, s side, op launch, c call) {
	p := kernels.Delta{
		Rows: c.rows, Cursors: c.cursors, State: c.state, Dims: m.dims, QKV: c.in[0], Z: c.in[1], B: c.in[2], A: c.in[3],
		ConvW: m.convW.buf[s], DecayA: m.decay.buf[s], DtBias: m.bias.buf[s], NormW: m.normW.buf[s], Eps: 1e-6, Out: c.out,
	}
	switch op {
	case step:
		o.DeltaStep(p)
	case scan:
		o.DeltaScan(p)
	case fold:
		o.DeltaFold(p)
	}
}
