package ssm

import (
	"reprise/kernels"
	"reprise/layers"
	"reprise/model"
)

// Mamba2Config is what a family knows of its Mamba-2 layers.
type Mamba2Config struct {
	Dims     kernels.Mamba2Dims
	Hidden   int
	Eps      float32
	ConvBias bool
	DtMin    float32
	DtMax    float32 // 0 or +Inf = no upper clamp of dt
}

// Mamba2 is the mixer of a Mamba-2 layer.
type Mamba2 struct {
	in, out layers.Linear
	fixed   kernels.Mamba2 // dims and parameters; rows, state and matrices are filled in by a step
}

// LoadMamba2 reads the tensors of models.md 1.b under prefix ("backbone.layers.3.mixer."). With a recording loader it
// lists them instead.
func LoadMamba2(l *layers.Loader, prefix string, c Mamba2Config) Mamba2 {
	d := c.Dims
	m := Mamba2{fixed: kernels.Mamba2{Dims: d, DtMin: c.DtMin, DtMax: c.DtMax, Eps: c.Eps}}
	m.in = l.Linear(c.Hidden, layers.Part{Name: prefix + "in_proj.weight", Rows: d.Inner() + d.Conv() + d.Heads})
	m.out = l.Linear(d.Inner(), layers.Part{Name: prefix + "out_proj.weight", Rows: c.Hidden})
	m.fixed.ConvW = l.Vector(prefix+"conv1d.weight", layers.Conv, d.Conv(), 1, d.Taps)
	if c.ConvBias {
		m.fixed.ConvB = l.Vector(prefix+"conv1d.bias", layers.Bias, d.Conv())
	}
	m.fixed.A = l.Vector(prefix+"A_log", layers.NegExp, d.Heads)
	m.fixed.D = l.Vector(prefix+"D", layers.Plain, d.Heads)
	m.fixed.DtBias = l.Vector(prefix+"dt_bias", layers.DtBias, d.Heads)
	m.fixed.NormW = l.Vector(prefix+"norm.weight", layers.Plain, d.Inner())
	return m
}

// Add is y += mixer(x) for all rows of b; x and y are [tokens, hidden], and y may be what x is the norm of. layer counts SSM
// layers.
func (m *Mamba2) Add(o kernels.Ops, s *layers.Scratch, b *model.Batch, layer int, x layers.Input, y kernels.Mat) {
	defer s.Release(s.Mark())
	d := m.fixed.Dims
	in := s.Mat(y.Rows, m.in.Rows())
	m.in.Forward(o, x, in)
	p := m.fixed
	p.Z = in.ColRange(0, d.Inner())
	p.XBC = in.ColRange(d.Inner(), d.Conv())
	p.Dt = in.ColRange(d.Inner()+d.Conv(), d.Heads)
	p.Out = s.Mat(y.Rows, d.Inner())
	p.Cursors, p.State = b.Cursors, b.SSM[layer]
	m.mix(o, b, p)
	m.out.Add(o, p.Out, y)
}

func (m *Mamba2) mix(o kernels.Ops, b *model.Batch, p kernels.Mamba2) {
	if !b.Step.Empty() {
		p.Rows = b.Step
		o.Mamba2Step(p)
	}
	if !b.Prefill.Empty() {
		p.Rows = b.Prefill
		o.Mamba2Fold(p)
		o.Mamba2Scan(p)
	}
}
