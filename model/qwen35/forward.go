package qwen35

import (
	"reprise/attention"
	"reprise/kernels"
	"reprise/layers"
	"reprise/model"
	"reprise/ssm"
)

// Model is a loaded checkpoint.
type Model struct {
	layers.Frame
	layers []layer
}

// layer is a mixer, delta or attention, and an MLP, moe or mlp; state is its number among the layers of its kind.
type layer struct {
	inputNorm layers.Norm
	delta     *ssm.Delta
	attention *attention.Mixer
	mlpNorm   layers.Norm
	moe       *layers.MoE
	mlp       layers.MLP
	state     int
}

// Forward runs all layers and the final norm.
func (m *Model) Forward(o kernels.Ops, b *model.Batch) kernels.Mat {
	r := m.Begin(o, b)
	for i := range m.layers {
		l := &m.layers[i]
		if in := r.Input(o, l.inputNorm); l.delta != nil {
			l.delta.Add(o, m.Scratch, b, l.state, in, r.X)
		} else {
			l.attention.Add(o, m.Scratch, b, b.KV[l.state], in, r.X)
		}
		l.feed(o, m.Scratch, &r)
	}
	return m.End(o, &r)
}

// feed adds a layer's MLP to the residual.
func (l *layer) feed(o kernels.Ops, s *layers.Scratch, r *layers.Residual) {
	if in := r.Input(o, l.mlpNorm); l.moe != nil {
		l.moe.Forward(o, s, in.Rows(o), r.Later())
	} else {
		l.mlp.Add(o, s, in, r.X)
	}
}
