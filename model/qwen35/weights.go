package qwen35

import (
	"fmt"

	"reprise/attention"
	"reprise/kernels"
	"reprise/layers"
	"reprise/model"
	"reprise/ssm"
)

// Prefixes of the layer stack: releases, text-only exports, other trees of multimodal models.
var prefixes = []string{"model.language_model.", "model.", "language_model.model.", "language_model."}

// Prefixes of what lies at the top level.
var topPrefixes = []string{"", "language_model.", "model."}

// read reads every tensor of the model, or lists them.
func (c *Config) read(l *layers.Loader) *Model {
	p := l.Prefix("embed_tokens.weight", prefixes...)
	m := &Model{Frame: layers.Frame{Width: c.hidden}}
	head := ""
	if !c.tied {
		head = l.Prefix("lm_head.weight", topPrefixes...) + "lm_head.weight"
	}
	m.Vocabulary = l.Vocabulary(p+"embed_tokens.weight", head, c.vocab, c.hidden)
	state := map[bool]int{}
	for i, full := range c.full {
		m.layers = append(m.layers, c.readLayer(l, fmt.Sprintf("%slayers.%d.", p, i), full, state[full]))
		state[full]++
	}
	m.Norm = c.readNorm(l, p+"norm.weight")
	if c.mtp {
		c.readMTP(l, m)
	}
	return m
}

func (c *Config) readNorm(l *layers.Loader, name string) layers.Norm {
	return l.Norm(name, layers.OnePlus, c.hidden, c.eps)
}

// readLayer reads one layer; state is its number among the layers of its kind.
func (c *Config) readLayer(l *layers.Loader, prefix string, full bool, state int) layer {
	out := layer{
		inputNorm: c.readNorm(l, prefix+"input_layernorm.weight"),
		mlpNorm:   c.readNorm(l, prefix+"post_attention_layernorm.weight"),
		state:     state,
	}
	if full {
		out.attention = attention.Load(l, prefix+"self_attn.", c.attention)
	} else {
		delta := ssm.LoadDelta(l, prefix+"linear_attn.", c.delta)
		out.delta = &delta
	}
	if c.moe.experts > 0 {
		out.moe = c.readMoE(l, prefix+"mlp.")
	} else {
		out.mlp = c.readMLP(l, prefix+"mlp.", c.dense)
	}
	return out
}

func (c *Config) readMLP(l *layers.Loader, prefix string, width int) layers.MLP {
	return l.MLP(kernels.SiLUMul, c.hidden, width, prefix+"down_proj.weight", prefix+"gate_proj.weight", prefix+"up_proj.weight")
}

func (c *Config) readMoE(l *layers.Loader, prefix string) *layers.MoE {
	e, x := c.moe, prefix+"experts."
	return &layers.MoE{
		Router: l.Linear(c.hidden,
			layers.Part{Name: prefix + "gate.weight", Rows: e.experts},
			layers.Part{Name: prefix + "shared_expert_gate.weight", Rows: 1}),
		Route: kernels.Route{Score: kernels.Softmax, TopK: e.topK, Groups: 1, TopGroups: 1, Normalize: true, Scale: 1},
		Up: l.Experts(e.experts, c.hidden,
			layers.ExpertForm{Stacked: true, Parts: []layers.Part{{Name: x + "gate_up_proj", Rows: 2 * e.width}}},
			layers.ExpertForm{Parts: []layers.Part{{Name: x + "{e}.gate_proj.weight", Rows: e.width}, {Name: x + "{e}.up_proj.weight", Rows: e.width}}}),
		Down: l.Experts(e.experts, e.width,
			layers.ExpertForm{Stacked: true, Parts: []layers.Part{{Name: x + "down_proj", Rows: c.hidden}}},
			layers.ExpertForm{Parts: []layers.Part{{Name: x + "{e}.down_proj.weight", Rows: c.hidden}}}),
		Act:    kernels.SiLUMul,
		Shared: c.readMLP(l, prefix+"shared_expert.", e.shared),
	}
}

// readMTP reads the MTP head, unless the checkpoint was saved without it, whatever its config says.
func (c *Config) readMTP(l *layers.Loader, m *Model) {
	p := l.Prefix("mtp.fc.weight", topPrefixes...) + "mtp."
	if !l.Recording() && !l.Has(p+"fc.weight") {
		return
	}
	m.Head = &mtp{
		DraftFrame: layers.DraftFrame{
			Model:         &m.Frame,
			EmbeddingNorm: c.readNorm(l, p+"pre_fc_norm_embedding.weight"),
			HiddenNorm:    c.readNorm(l, p+"pre_fc_norm_hidden.weight"),
			Project:       l.Linear(2*c.hidden, layers.Part{Name: p + "fc.weight", Rows: c.hidden}),
			Norm:          c.readNorm(l, p+"norm.weight"),
		},
		layer: c.readLayer(l, p+"layers.0.", true, 0),
	}
}

// Load reads the weights and takes activation memory for batches of up to maxTokens tokens.
func (c *Config) Load(dev kernels.Device, src model.Tensors, maxTokens int) (model.Model, error) {
	if err := c.quant.Check(); err != nil {
		return nil, err
	}
	l := layers.NewLoader(dev, src)
	m := c.read(l)
	if err := m.Finish(m, l, c.Spec(), maxTokens); err != nil {
		return nil, err
	}
	return m, nil
}
