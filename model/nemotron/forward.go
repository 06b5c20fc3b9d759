package nemotron

import (
	"fmt"

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

// layer is a norm and one mixer; state is its number among the layers of its kind.
type layer struct {
	norm      layers.Norm
	kind      kind
	state     int
	mamba     ssm.Mamba2
	attention *attention.Mixer
	moe       *layers.MoE
	mlp       layers.MLP
}

// Forward runs all layers and the final norm.
func (m *Model) Forward(o kernels.Ops, b *model.Batch) kernels.Mat {
	r := m.Begin(o, b)
	for i := range m.layers {
		l := &m.layers[i]
		l.mix(o, m.Scratch, b, b.KV, r.Input(o, l.norm), &r)
	}
	return m.End(o, &r)
}

// mix adds a layer's mixer to the residual.
func (l *layer) mix(o kernels.Ops, s *layers.Scratch, b *model.Batch, kv []kernels.KV, in layers.Input, r *layers.Residual) {
	switch l.kind {
	case mambaLayer:
		l.mamba.Add(o, s, b, l.state, in, r.X)
	case attentionLayer:
		l.attention.Add(o, s, b, kv[l.state], in, r.X)
	case moeLayer:
		l.moe.Forward(o, s, in.Rows(o), r.Later())
	case denseLayer:
		l.mlp.Add(o, s, in, r.X)
	default:
		panic(fmt.Sprintf("nemotron: layer kind %q", l.kind))
	}
}
