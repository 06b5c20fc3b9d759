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
	config      *Config
	vocabulary  layers.Vocabulary
	layers      []layer
	norm        layers.Norm
	mtp         *mtp
	scratch     *layers.Scratch
	hidden      kernels.Mat // [max tokens, hidden], outlives a forward pass
	base        int64       // depth of the scratch memory above what outlives a pass
	weightBytes int64
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

// keep takes the matrices that outlive a forward pass from the bottom of the scratch memory.
func (m *Model) keep(maxTokens int) {
	m.hidden = m.scratch.Mat(maxTokens, m.config.hidden)
	if m.mtp != nil {
		m.mtp.hidden = m.scratch.Mat(maxTokens, m.config.hidden)
	}
	m.base = m.scratch.Mark()
}

// measure finds out the activation memory of the largest batch by running it against operations that do nothing.
func (m *Model) measure(act kernels.DType, maxTokens int) {
	m.scratch = layers.NewScratch(act)
	m.keep(maxTokens)
	largest := layers.LargestBatch(maxTokens, m.config.Spec())
	m.Forward(layers.Discard{}, largest)
	if m.mtp != nil {
		m.mtp.measure(largest)
	}
}

// allocate takes the activation memory.
func (m *Model) allocate(dev kernels.Device, maxTokens int) error {
	m.measure(dev.Activations(), maxTokens)
	if err := m.scratch.Alloc(dev); err != nil {
		return err
	}
	m.keep(maxTokens)
	return nil
}

// Forward runs all layers and the final norm.
func (m *Model) Forward(o kernels.Ops, b *model.Batch) kernels.Mat {
	m.scratch.Release(m.base)
	x := m.scratch.Mat(b.Tokens, m.config.hidden)
	m.vocabulary.Embed(o, b.IDs, x)
	out := m.hidden.RowRange(0, b.Tokens)
	r := m.scratch.Residual(x)
	for i := range m.layers {
		m.mix(o, b, &m.layers[i], b.KV, r.Input(o, m.layers[i].norm), &r)
	}
	r.End(o, m.norm, out)
	return out
}

// mix adds a layer's mixer to the residual.
func (m *Model) mix(o kernels.Ops, b *model.Batch, l *layer, kv []kernels.KV, in layers.Input, r *layers.Residual) {
	switch l.kind {
	case mambaLayer:
		l.mamba.Add(o, m.scratch, b, l.state, in, r.X)
	case attentionLayer:
		l.attention.Add(o, m.scratch, b, kv[l.state], in, r.X)
	case moeLayer:
		l.moe.Forward(o, m.scratch, in.Rows(o), r.Later())
	case denseLayer:
		l.mlp.Add(o, m.scratch, in, r.X)
	default:
		panic(fmt.Sprintf("nemotron: layer kind %q", l.kind))
	}
}

// Logits multiplies hidden rows by the head.
func (m *Model) Logits(o kernels.Ops, hidden, out kernels.Mat) { m.vocabulary.Logits(o, hidden, out) }

// Top is the head of the first tokens.
func (m *Model) Top(tokens int) model.Head { return m.vocabulary.Top(tokens) }

// MTP is the drafting head, or nil.
func (m *Model) MTP() model.MTP {
	if m.mtp == nil {
		return nil
	}
	return m.mtp
}

// WeightBytes is the memory of all weights.
func (m *Model) WeightBytes() int64 { return m.weightBytes }
