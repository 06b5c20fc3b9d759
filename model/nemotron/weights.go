package nemotron

import (
	"fmt"

	"reprise/attention"
	"reprise/kernels"
	"reprise/layers"
	"reprise/model"
	"reprise/ssm"
)

// Prefixes of the layer stack: releases, trees saved by transformers, and the same inside a multimodal model.
var prefixes = []string{"backbone.", "model.", "language_model.backbone.", "language_model.model.", "model.language_model."}

// Prefixes of what lies at the top level.
var topPrefixes = []string{"", "language_model.", "model."}

// read reads every tensor of the model, or lists them.
func (c *Config) read(l *layers.Loader) *Model {
	p := l.Prefix("embeddings.weight", prefixes...)
	m := &Model{Frame: layers.Frame{Width: c.hidden}}
	head := ""
	if !c.tied {
		head = l.Prefix("lm_head.weight", topPrefixes...) + "lm_head.weight"
	}
	m.Vocabulary = l.Vocabulary(p+"embeddings.weight", head, c.vocab, c.hidden)
	m.layers = c.readLayers(l, p+"layers.", c.pattern)
	m.Norm = l.Norm(p+"norm_f.weight", layers.Plain, c.hidden, c.eps)
	if c.mtpPattern != nil {
		c.readMTP(l, m)
	}
	return m
}

func (c *Config) readLayers(l *layers.Loader, prefix string, pattern []kind) []layer {
	out := make([]layer, len(pattern))
	seen := map[kind]int{}
	for i, k := range pattern {
		p := fmt.Sprintf("%s%d.", prefix, i)
		out[i] = layer{norm: l.Norm(p+"norm.weight", layers.Plain, c.hidden, c.eps), kind: k, state: seen[k]}
		c.readMixer(l, p+"mixer.", &out[i])
		seen[k]++
	}
	return out
}

func (c *Config) readMixer(l *layers.Loader, prefix string, to *layer) {
	switch to.kind {
	case mambaLayer:
		to.mamba = ssm.LoadMamba2(l, prefix, c.mamba)
	case attentionLayer:
		to.attention = attention.Load(l, prefix, c.attention)
	case moeLayer:
		to.moe = c.readMoE(l, prefix)
	case denseLayer:
		to.mlp = l.MLP(kernels.ReLU2, c.hidden, c.dense, prefix+"down_proj.weight", prefix+"up_proj.weight")
	}
}

func (c *Config) readMoE(l *layers.Loader, prefix string) *layers.MoE {
	m, work := &layers.MoE{Route: c.moe.route, Act: kernels.ReLU2}, c.hidden
	m.Router = l.Linear(c.hidden, layers.Part{Name: prefix + "gate.weight", Rows: c.moe.experts})
	m.Route.Bias = l.Vector(prefix+"gate.e_score_correction_bias", layers.BiasF32, c.moe.experts)
	if n := c.moe.latent; n > 0 {
		work = n
		m.LatentDown = l.Linear(c.hidden, layers.Part{Name: prefix + "fc1_latent_proj.weight", Rows: n})
		m.LatentUp = l.Linear(n, layers.Part{Name: prefix + "fc2_latent_proj.weight", Rows: c.hidden})
	}
	m.Up = c.readExperts(l, prefix+"experts.", "up_proj", c.moe.width, work)
	m.Down = c.readExperts(l, prefix+"experts.", "down_proj", work, c.moe.width)
	if c.moe.shared > 0 {
		p := prefix + "shared_experts."
		m.Shared = l.MLP(kernels.ReLU2, c.hidden, c.moe.shared, p+"down_proj.weight", p+"up_proj.weight")
	}
	return m
}

// readExperts reads one matrix [rows, cols] of each expert: a tensor each in releases, stacked where transformers saved.
func (c *Config) readExperts(l *layers.Loader, prefix, name string, rows, cols int) kernels.Weight {
	return l.Experts(c.moe.experts, cols,
		layers.ExpertForm{Parts: []layers.Part{{Name: prefix + "{e}." + name + ".weight", Rows: rows}}},
		layers.ExpertForm{Stacked: true, Parts: []layers.Part{{Name: prefix + name, Rows: rows}}})
}

// readMTP reads the MTP head, unless the checkpoint was saved without it, whatever its config says.
func (c *Config) readMTP(l *layers.Loader, m *Model) {
	top := l.Prefix("mtp.layers.0.eh_proj.weight", topPrefixes...) + "mtp.layers."
	if !l.Recording() && !l.Has(top+"0.eh_proj.weight") {
		return
	}
	first, last := top+"0.", fmt.Sprintf("%s%d.", top, len(c.mtpPattern)-1)
	m.Head = &mtp{
		DraftFrame: layers.DraftFrame{
			Model:         &m.Frame,
			EmbeddingNorm: l.Norm(first+"enorm.weight", layers.Plain, c.hidden, c.eps),
			HiddenNorm:    l.Norm(first+"hnorm.weight", layers.Plain, c.hidden, c.eps),
			Project:       l.Linear(2*c.hidden, layers.Part{Name: first + "eh_proj.weight", Rows: c.hidden}),
			Norm:          l.Norm(last+"final_layernorm.weight", layers.Plain, c.hidden, c.eps),
		},
		layers: c.readLayers(l, top, c.mtpPattern),
		reads:  lastOf(c.mtpPattern, attentionLayer),
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
