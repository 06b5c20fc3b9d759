package ssm

import (
	"reprise/kernels"
	"reprise/layers"
	"reprise/model"
)

// DeltaConfig is what a family knows of its Gated DeltaNet layers.
type DeltaConfig struct {
	Dims   kernels.DeltaDims
	Hidden int
	Eps    float32
}

// Delta is the mixer of a Gated DeltaNet layer.
type Delta struct {
	in, out layers.Linear // in is the group qkv, z, b, a
	fixed   kernels.Delta // dims and parameters; rows, state and matrices are filled in by a step
}

// LoadDelta reads the tensors of models.md 2.b under prefix ("model.layers.0.linear_attn."). With a recording loader
// it lists them instead.
func LoadDelta(l *layers.Loader, prefix string, c DeltaConfig) Delta {
	d := c.Dims
	m := Delta{fixed: kernels.Delta{Dims: d, Eps: c.Eps}}
	m.in = l.Linear(c.Hidden,
		layers.Part{Name: prefix + "in_proj_qkv.weight", Rows: d.Conv()},
		layers.Part{Name: prefix + "in_proj_z.weight", Rows: d.Values()},
		layers.Part{Name: prefix + "in_proj_b.weight", Rows: d.ValueHeads},
		layers.Part{Name: prefix + "in_proj_a.weight", Rows: d.ValueHeads})
	m.out = l.Linear(d.Values(), layers.Part{Name: prefix + "out_proj.weight", Rows: c.Hidden})
	m.fixed.ConvW = l.Vector(prefix+"conv1d.weight", layers.Conv, d.Conv(), 1, d.Taps)
	m.fixed.DecayA = l.Vector(prefix+"A_log", layers.NegExp, d.ValueHeads)
	m.fixed.DtBias = l.Vector(prefix+"dt_bias", layers.DtBias, d.ValueHeads)
	m.fixed.NormW = l.Vector(prefix+"norm.weight", layers.PlainF32, d.ValueDim)
	return m
}

// Add is y += mixer(x) for all rows of b; x and y are [tokens, hidden], and y may be what x is the norm of. layer counts SSM
// layers.
func (m *Delta) Add(o kernels.Ops, s *layers.Scratch, b *model.Batch, layer int, x layers.Input, y kernels.Mat) {
	defer s.Release(s.Mark())
	in := s.Mat(y.Rows, m.in.Rows())
	m.in.Forward(o, x, in)
	p := m.fixed
	p.QKV, p.Z, p.B, p.A = m.in.Part(in, 0), m.in.Part(in, 1), m.in.Part(in, 2), m.in.Part(in, 3)
	p.Out = s.Mat(y.Rows, p.Dims.Values())
	p.Cursors, p.State = b.Cursors, b.SSM[layer]
	m.mix(o, b, p)
	m.out.Add(o, p.Out, y)
}

func (m *Delta) mix(o kernels.Ops, b *model.Batch, p kernels.Delta) {
	if !b.Step.Empty() {
		p.Rows = b.Step
		o.DeltaStep(p)
	}
	if !b.Prefill.Empty() {
		p.Rows = b.Prefill
		o.DeltaFold(p)
		o.DeltaScan(p)
	}
}
