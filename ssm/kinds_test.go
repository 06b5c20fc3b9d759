package ssm_test

import (
	"math"
	"math/rand/v2"

	"reprise/kernels"
	"reprise/ssm"
)

// kind is a family of mixers at some dims: how to make parameters, launch its operations and read its records.
type kind struct {
	name   string
	config ssm.PoolConfig
	widths []int // of the projections
	out    int
	params func(r *rand.Rand) *params

	checkpoint func(p kernels.Precision) kernels.CheckpointLayout
	plain      func(p *params) plain
	launch     func(h *harness, o kernels.Ops, op operation, rows kernels.Rows, in []kernels.Mat, out kernels.Mat)
	// replay folds one record into a state.
	replay func(p *params, s []float64, x, b, decay []float32)
}

type operation int

const (
	step operation = iota
	scan
	fold
)

func normals(r *rand.Rand, n int, mean, deviation float64) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(mean + deviation*r.NormFloat64())
	}
	return v
}

func tokenInputs(r *rand.Rand, widths []int) [][][]float32 {
	in := make([][][]float32, len(widths))
	for i, w := range widths {
		for range 64 {
			in[i] = append(in[i], normals(r, w, 0, 1))
		}
	}
	return in
}

func negExp(r *rand.Rand, n int) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(-math.Exp(r.NormFloat64()))
	}
	return v
}

func mamba2Kind(name string, d kernels.Mamba2Dims, bias bool) kind {
	k := kind{name: name, widths: []int{d.Inner(), d.Conv(), d.Heads}, out: d.Inner()}
	k.config = ssm.PoolConfig{Mamba2: d, Mamba2Layers: 2}
	k.checkpoint = func(p kernels.Precision) kernels.CheckpointLayout { return kernels.Mamba2Checkpoint(d, p) }
	k.params = func(r *rand.Rand) *params {
		p := &params{
			convW: normals(r, d.Conv()*d.Taps, 0, 0.5), a: negExp(r, d.Heads), d: normals(r, d.Heads, 1, 0.1),
			dtBias: normals(r, d.Heads, -1, 1), norm: normals(r, d.Inner(), 1, 0.1), inputs: tokenInputs(r, k.widths),
		}
		if bias {
			p.convB = normals(r, d.Conv(), 0, 0.3)
		}
		return p
	}
	k.plain = func(p *params) plain { return &plainMamba2{d: d, p: p, s: make([]float64, d.Inner()*d.State)} }
	k.launch = func(h *harness, o kernels.Ops, op operation, rows kernels.Rows, in []kernels.Mat, out kernels.Mat) {
		p := kernels.Mamba2{
			Rows: rows, Cursors: h.pool.Cursors(), State: h.pool.Layers()[1], Dims: d, Z: in[0], XBC: in[1], Dt: in[2],
			ConvW: h.convW, ConvB: h.convB, A: h.a, D: h.d, DtBias: h.dtBias, NormW: h.norm, Eps: testEps, Out: out,
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
	k.replay = func(p *params, s []float64, x, b, dt []float32) {
		for i := range x {
			head := i / d.HeadDim
			group := head / (d.Heads / d.Groups)
			decay := math.Exp(float64(dt[head]) * float64(p.a[head]))
			for j := range d.State {
				s[i*d.State+j] = s[i*d.State+j]*decay + float64(dt[head])*float64(x[i])*float64(b[group*d.State+j])
			}
		}
	}
	return k
}

func deltaKind(name string, d kernels.DeltaDims) kind {
	k := kind{name: name, widths: []int{d.Conv(), d.Values(), d.ValueHeads, d.ValueHeads}, out: d.Values()}
	k.config = ssm.PoolConfig{Delta: d, DeltaLayers: 2}
	k.checkpoint = func(p kernels.Precision) kernels.CheckpointLayout { return kernels.DeltaCheckpoint(d, p) }
	k.params = func(r *rand.Rand) *params {
		return &params{
			convW: normals(r, d.Conv()*d.Taps, 0, 0.5), a: negExp(r, d.ValueHeads), dtBias: normals(r, d.ValueHeads, -2, 1),
			norm: normals(r, d.ValueDim, 1, 0.1), inputs: tokenInputs(r, k.widths),
		}
	}
	k.plain = func(p *params) plain { return &plainDelta{d: d, p: p, s: make([]float64, d.Values()*d.KeyDim)} }
	k.launch = func(h *harness, o kernels.Ops, op operation, rows kernels.Rows, in []kernels.Mat, out kernels.Mat) {
		p := kernels.Delta{
			Rows: rows, Cursors: h.pool.Cursors(), State: h.pool.Layers()[1], Dims: d, QKV: in[0], Z: in[1], B: in[2], A: in[3],
			ConvW: h.convW, DecayA: h.a, DtBias: h.dtBias, NormW: h.norm, Eps: testEps, Out: out,
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
	k.replay = func(p *params, s []float64, u, key, decay []float32) {
		for i := range u {
			head := i / d.ValueDim
			from := head / (d.ValueHeads / d.KeyHeads) * d.KeyDim
			for j := range d.KeyDim {
				s[i*d.KeyDim+j] = s[i*d.KeyDim+j]*math.Exp(float64(decay[head])) + float64(u[i])*float64(key[from+j])
			}
		}
	}
	return k
}

// kinds are an odd shape that no vector fits and one that vectors do, of each family.
func kinds() []kind {
	return []kind{
		mamba2Kind("mamba2-odd", kernels.Mamba2Dims{Heads: 4, HeadDim: 3, State: 5, Groups: 2, Taps: 3}, false),
		mamba2Kind("mamba2-even", kernels.Mamba2Dims{Heads: 2, HeadDim: 16, State: 32, Groups: 1, Taps: 4}, true),
		deltaKind("delta-odd", kernels.DeltaDims{KeyHeads: 2, ValueHeads: 4, KeyDim: 5, ValueDim: 3, Taps: 2}),
		deltaKind("delta-even", kernels.DeltaDims{KeyHeads: 1, ValueHeads: 2, KeyDim: 32, ValueDim: 16, Taps: 4}),
	}
}
