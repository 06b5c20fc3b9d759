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

// allocate takes the activation memory that the largest batch needs.
func (m *Model) allocate(dev kernels.Device, maxTokens int) error {
	s, c := layers.NewScratch(dev.Activations()), m.config
	m.scratch = s
	if err := s.Keep(dev, &m.hidden, maxTokens, c.hidden); err != nil {
		return err
	}
	largest := layers.LargestBatch(maxTokens, c.Spec())
	m.Forward(layers.Discard{}, largest)
	if m.mtp != nil {
		if err := s.Keep(dev, &m.mtp.hidden, maxTokens, c.hidden); err != nil {
			return err
		}
		m.mtp.Forward(layers.Discard{}, largest, m.hidden, kernels.Buffer{})
	}
	return s.Alloc(dev)
}

// Forward runs all layers and the final norm.
func (m *Model) Forward(o kernels.Ops, b *model.Batch) kernels.Mat {
	m.scratch.Release(0)
	x := m.scratch.Mat(b.Tokens, m.config.hidden)
	m.vocabulary.Embed(o, b.IDs, x)
	out := m.hidden.RowRange(0, b.Tokens)
	m.stack(o, b, m.layers, b.KV, m.norm, x, out)
	return out
}

// stack runs layers over the residual x and writes the normed result to out.
func (m *Model) stack(o kernels.Ops, b *model.Batch, stack []layer, kv []kernels.KV, last layers.Norm, x, out kernels.Mat) {
	normed, y := m.scratch.Mat(x.Rows, x.Cols), m.scratch.Mat(x.Rows, x.Cols)
	var add kernels.Mat
	for i := range stack {
		l := &stack[i]
		l.inputNorm.Forward(o, x, add, normed)
		if l.delta != nil {
			l.delta.Forward(o, m.scratch, b, l.state, normed, y)
		} else {
			l.attention.Forward(o, m.scratch, b, kv[l.state], normed, y)
		}
		l.mlpNorm.Forward(o, x, y, normed)
		if l.moe != nil {
			l.moe.Forward(o, m.scratch, normed, y)
		} else {
			l.mlp.Forward(o, m.scratch, normed, y)
		}
		add = y
	}
	last.Forward(o, x, add, out)
}

// Logits multiplies hidden rows by the head.
func (m *Model) Logits(o kernels.Ops, hidden, out kernels.Mat) { m.vocabulary.Logits(o, hidden, out) }

// MTP is the drafting head, or nil.
func (m *Model) MTP() model.MTP {
	if m.mtp == nil {
		return nil
	}
	return m.mtp
}

// WeightBytes is the memory of all weights.
func (m *Model) WeightBytes() int64 { return m.weightBytes }
