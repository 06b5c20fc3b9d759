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
		l := &m.layers[i]
		if in := r.Input(o, l.inputNorm); l.delta != nil {
			l.delta.Add(o, m.scratch, b, l.state, in, x)
		} else {
			l.attention.Add(o, m.scratch, b, b.KV[l.state], in, x)
		}
		l.feed(o, m.scratch, &r)
	}
	r.End(o, m.norm, out)
	return out
}

// feed adds a layer's MLP to the residual.
func (l *layer) feed(o kernels.Ops, s *layers.Scratch, r *layers.Residual) {
	if in := r.Input(o, l.mlpNorm); l.moe != nil {
		l.moe.Forward(o, s, in.Rows(o), r.Later())
	} else {
		l.mlp.Add(o, s, in, r.X)
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
