package nemotron

import (
	"fmt"
	"math"

	"reprise/attention"
	"reprise/kernels"
	"reprise/layers"
	"reprise/model"
	"reprise/model/configjson"
	"reprise/ssm"
)

// Limits of what a config may ask for; the largest release has about a tenth of each.
const (
	maxWidth   = 1 << 18 // hidden size and widths
	maxInner   = 1 << 20 // products of heads and head dims
	maxVocab   = 1 << 22
	maxLen     = 1 << 26
	maxExperts = 1 << 17 // experts of all layers together
)

// Config is a validated config.json.
type Config struct {
	hidden, vocab, maxLen int
	eps                   float32
	tied                  bool
	pattern               []kind
	mtpPattern            []kind // nil: no MTP head
	dense                 int    // width of dense MLPs
	mamba                 ssm.Mamba2Config
	state                 kernels.StateFormat
	attention             attention.Dims
	moe                   moeConfig
	eos                   []int32
	quant                 configjson.Quant
}

type moeConfig struct {
	experts, width int
	shared         int // width of the shared expert, or 0
	latent         int // width that routed experts work on, or 0: the hidden size
	route          kernels.Route
}

var _ model.Config = (*Config)(nil)

// Parse reads config.json and, if there is one, hf_quant_config.json (else nil). Errors name the key.
func Parse(config, hfQuant []byte) (*Config, error) {
	o, err := configjson.Parse(config)
	if err != nil {
		return nil, err
	}
	if t := o.StringOr("", "model_type"); t != "nemotron_h" {
		return nil, fmt.Errorf("config.json: model_type %.60q is not supported", t)
	}
	c := &Config{
		hidden: o.Int(1, maxWidth, "hidden_size"),
		vocab:  o.Int(1, maxVocab, "vocab_size"),
		maxLen: o.Int(1, maxLen, "max_position_embeddings"),
		eps:    float32(o.FloatOr(1e-5, 0, 1, "layer_norm_epsilon", "norm_eps", "rms_norm_eps")),
		tied:   o.BoolOr(false, "tie_word_embeddings"),
		quant:  o.Quant(hfQuant),
	}
	c.eos = o.IDs(64, c.vocab, "eos_token_id")
	c.unsupported(o)
	c.patterns(o)
	c.mixers(o)
	if err := o.Err(); err != nil {
		return nil, err
	}
	return c, nil
}

// unsupported refuses what no release has and nothing here computes. Positions are not used, whatever rope_theta says.
func (c *Config) unsupported(o *configjson.Object) {
	o.Refuse("mamba_proj_bias", "use_bias", "mlp_bias", "attention_bias")
	o.OneOf("mamba_hidden_act", "silu", "swish")
	o.OneOf("mlp_hidden_act", "relu2")
	if o.Has("sliding_window") {
		o.Fail("sliding_window", "is not supported")
	}
}

// mixers reads the keys of the kinds of layers that occur.
func (c *Config) mixers(o *configjson.Object) {
	if c.count(mambaLayer) > 0 {
		c.parseMamba(o)
	}
	if c.count(attentionLayer)+c.countMTP(attentionLayer) > 0 {
		c.parseAttention(o)
	}
	if n := c.count(moeLayer) + c.countMTP(moeLayer); n > 0 {
		c.parseMoE(o, n)
	}
	if c.count(denseLayer)+c.countMTP(denseLayer) > 0 {
		c.dense = o.Int(1, maxWidth, "intermediate_size")
	}
}

func (c *Config) parseMamba(o *configjson.Object) {
	d := kernels.Mamba2Dims{
		Heads:   o.Int(1, 1<<14, "mamba_num_heads"),
		HeadDim: o.Int(1, 1<<12, "mamba_head_dim"),
		State:   o.Int(1, 1<<12, "ssm_state_size"),
		Groups:  o.IntOr(8, 1, 1<<12, "n_groups", "mamba_n_groups"),
		Taps:    o.IntOr(4, 1, 16, "conv_kernel", "mamba_d_conv"),
	}
	if d.Heads%d.Groups != 0 {
		o.Fail("n_groups", "%d does not divide mamba_num_heads %d", d.Groups, d.Heads)
	}
	if d.Inner() > maxInner || d.Groups*d.State > maxInner {
		o.Fail("mamba_head_dim", "%d heads of %d, %d groups of %d: at most %d channels", d.Heads, d.HeadDim, d.Groups, d.State, maxInner)
	}
	c.mamba = ssm.Mamba2Config{Dims: d, Hidden: c.hidden, Eps: c.eps, ConvBias: o.BoolOr(true, "use_conv_bias", "mamba_conv_bias")}
	c.mamba.DtMin, c.mamba.DtMax = dtLimit(o)
	c.state, _ = kernels.ParseStateFormat(o.OneOf("mamba_ssm_cache_dtype", "float32", "float16", "bfloat16")) // one of these, or o has failed
}

// dtLimit is the clamp of dt after softplus; 0, 0 for none. time_step_min and time_step_max are not limits: they only
// describe how dt_bias was initialised.
func dtLimit(o *configjson.Object) (low, high float32) {
	const key = "time_step_limit"
	limit := o.Floats(2, key, "mamba_dt_limit")
	switch {
	case limit == nil:
		return 0, 0
	case len(limit) != 2 || !(limit[0] >= 0) || !(limit[1] > limit[0]) || limit[0] > math.MaxFloat32:
		o.Fail(key, "%v is not a range [low, high] of positive numbers", limit)
		return 0, 0
	case limit[1] > math.MaxFloat32:
		return float32(limit[0]), 0
	}
	return float32(limit[0]), float32(limit[1])
}

func (c *Config) parseAttention(o *configjson.Object) {
	d := attention.Dims{
		Hidden:  c.hidden,
		QHeads:  o.Int(1, 1<<12, "num_attention_heads"),
		KVHeads: o.Int(1, 1<<12, "num_key_value_heads"),
		HeadDim: o.Int(1, 1<<10, "head_dim", "attention_head_dim"),
		Eps:     c.eps,
	}
	if d.QHeads%d.KVHeads != 0 {
		o.Fail("num_key_value_heads", "%d does not divide num_attention_heads %d", d.KVHeads, d.QHeads)
	}
	c.attention = d
}

func (c *Config) parseMoE(o *configjson.Object, moeLayers int) {
	m := &c.moe
	m.experts = o.Int(1, maxExperts/moeLayers, "n_routed_experts")
	m.width = o.Int(1, maxWidth, "moe_intermediate_size")
	m.latent = o.IntOr(0, 0, maxWidth, "moe_latent_size")
	if o.IntOr(1, 0, 64, "n_shared_experts") > 0 {
		m.shared = o.Int(0, maxWidth, "moe_shared_expert_intermediate_size")
	}
	m.route = kernels.Route{
		Score: kernels.Sigmoid, TopK: o.Int(1, max(m.experts, 1), "num_experts_per_tok"),
		Groups: o.IntOr(1, 1, 1<<10, "n_group"), TopGroups: o.IntOr(1, 1, 1<<10, "topk_group"),
		Normalize: o.BoolOr(true, "norm_topk_prob"), Scale: float32(o.FloatOr(1, 0, 1e6, "routed_scaling_factor")),
	}
	r := m.route
	if m.experts%r.Groups != 0 || r.TopGroups > r.Groups || r.TopK > m.experts/r.Groups*r.TopGroups {
		o.Fail("topk_group", "%d of %d groups of %d experts do not give %d experts", r.TopGroups, r.Groups, m.experts, r.TopK)
	}
}

// Spec is what the engine needs to know.
func (c *Config) Spec() model.Spec {
	s := model.Spec{
		Family: "nemotron_h", Hidden: c.hidden, Vocab: c.vocab, MaxLen: c.maxLen,
		Mamba2: c.mamba.Dims, Mamba2Layers: c.count(mambaLayer), State: c.state,
		QHeads: c.attention.QHeads, KVHeads: c.attention.KVHeads, HeadDim: c.attention.HeadDim,
		AttentionLayers: c.count(attentionLayer), FP8KV: c.quant.FP8KV, EOS: c.eos,
		Experts: c.moe.experts, TopK: c.moe.route.TopK,
	}
	if c.mtpPattern != nil {
		s.MTP = &model.MTPSpec{AttentionLayers: c.countMTP(attentionLayer), Depths: 1}
	}
	return s
}

// Want lists the tensors of a checkpoint in the form of a release.
func (c *Config) Want() []model.TensorSpec {
	l := layers.NewRecorder()
	c.read(l)
	return l.Specs()
}

// ActivationBytes is the activation memory that Load takes for batches of up to maxTokens tokens of type act.
func (c *Config) ActivationBytes(act kernels.DType, maxTokens int) int64 {
	m := c.read(layers.NewRecorder())
	return m.ActivationBytes(m, c.Spec(), act, maxTokens)
}
