package qwen35

import (
	"fmt"

	"reprise/attention"
	"reprise/kernels"
	"reprise/layers"
	"reprise/model"
	"reprise/model/configjson"
	"reprise/ssm"
)

// Limits of what a config may ask for; the largest release has about a tenth of each.
const (
	maxLayers  = 1024
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
	full                  []bool // by layer: attention, not Gated DeltaNet
	mtp                   bool
	delta                 ssm.DeltaConfig
	state                 kernels.StateFormat
	attention             attention.Dims
	dense                 int // width of the MLP, or 0 with experts
	moe                   moeConfig
	eos                   []int32
	quant                 configjson.Quant
}

type moeConfig struct{ experts, topK, width, shared int }

var _ model.Config = (*Config)(nil)

// Parse reads config.json and, if there is one, hf_quant_config.json (else nil). Errors name the key.
func Parse(config, hfQuant []byte) (*Config, error) {
	o, err := configjson.Parse(config)
	if err != nil {
		return nil, err
	}
	switch t := o.StringOr("", "model_type"); t {
	case "qwen3_5", "qwen3_5_moe", "qwen3_5_text", "qwen3_5_moe_text":
	default:
		return nil, fmt.Errorf("config.json: model_type %.60q is not supported", t)
	}
	text := o.Object("text_config") // absent in text-only exports, which are flat
	if text == nil {
		text = o
	}
	c := &Config{quant: o.Quant(hfQuant)}
	// The top level decides whether the head is tied; text_config may lack the key or be stale.
	c.tied = o.BoolOr(text.BoolOr(false, "tie_word_embeddings"), "tie_word_embeddings")
	c.parse(text)
	if c.eos == nil {
		c.eos = o.IDs(64, c.vocab, "eos_token_id")
	}
	if err := o.Err(); err != nil {
		return nil, err
	}
	return c, nil
}

func (c *Config) parse(o *configjson.Object) {
	c.hidden = o.Int(1, maxWidth, "hidden_size")
	c.vocab = o.Int(1, maxVocab, "vocab_size")
	c.maxLen = o.Int(1, maxLen, "max_position_embeddings")
	c.eps = float32(o.FloatOr(1e-6, 0, 1, "rms_norm_eps"))
	c.eos = o.IDs(64, c.vocab, "eos_token_id")
	unsupported(o)
	c.parseLayers(o)
	c.parseDelta(o)
	c.parseAttention(o)
	c.parseMLP(o)
}

// unsupported refuses what no release has and nothing here computes.
func unsupported(o *configjson.Object) {
	o.Refuse("attention_bias", "mtp_use_dedicated_embeddings")
	o.OneOf("hidden_act", "silu", "swish")
	o.OneOf("output_gate_type", "swish", "silu", "sigmoid")
	if !o.BoolOr(true, "attn_output_gate") {
		o.Fail("attn_output_gate", "false is not supported")
	}
	o.Strings(0, "mlp_only_layers")
}

// parseLayers reads the kinds of layers from the list, or else from the interval; the list decides the number.
func (c *Config) parseLayers(o *configjson.Object) {
	if list := o.Strings(maxLayers, "layer_types"); list != nil {
		for i, name := range list {
			if name != "full_attention" && name != "linear_attention" {
				o.Fail("layer_types", "layer %d: %.40q is not supported", i, name)
			}
			c.full = append(c.full, name == "full_attention")
		}
	} else {
		interval := o.IntOr(4, 1, maxLayers, "full_attention_interval")
		for i := range o.Int(1, maxLayers, "num_hidden_layers") {
			c.full = append(c.full, (i+1)%interval == 0)
		}
	}
	c.mtp = o.IntOr(0, 0, 1, "mtp_num_hidden_layers") == 1
}

func (c *Config) parseDelta(o *configjson.Object) {
	d := kernels.DeltaDims{
		KeyHeads:   o.Int(1, 1<<12, "linear_num_key_heads"),
		ValueHeads: o.Int(1, 1<<12, "linear_num_value_heads"),
		KeyDim:     o.Int(1, 1<<10, "linear_key_head_dim"),
		ValueDim:   o.Int(1, 1<<10, "linear_value_head_dim"),
		Taps:       o.IntOr(4, 1, 16, "linear_conv_kernel_dim"),
	}
	if d.ValueHeads%d.KeyHeads != 0 {
		o.Fail("linear_num_key_heads", "%d does not divide linear_num_value_heads %d", d.KeyHeads, d.ValueHeads)
	}
	if d.Conv() > maxInner {
		o.Fail("linear_num_value_heads", "%d heads of %d and %d of %d: at most %d channels", d.KeyHeads, d.KeyDim, d.ValueHeads, d.ValueDim, maxInner)
	}
	c.delta = ssm.DeltaConfig{Dims: d, Hidden: c.hidden, Eps: c.eps}
	c.state, _ = kernels.ParseStateFormat(o.OneOf("mamba_ssm_dtype", "float32", "float16", "bfloat16")) // one of these, or o has failed
}

func (c *Config) parseAttention(o *configjson.Object) {
	d := attention.Dims{
		Hidden:  c.hidden,
		QHeads:  o.Int(1, 1<<12, "num_attention_heads"),
		KVHeads: o.Int(1, 1<<12, "num_key_value_heads"),
		HeadDim: o.Int(2, 1<<10, "head_dim"),
		Gated:   true, QKNorm: true, Eps: c.eps,
	}
	if d.QHeads%d.KVHeads != 0 {
		o.Fail("num_key_value_heads", "%d does not divide num_attention_heads %d", d.KVHeads, d.QHeads)
	}
	d.Rope = parseRope(o, d.HeadDim)
	if y := d.Rope.Yarn; y != nil {
		c.maxLen = max(c.maxLen, min(maxLen, int(y.Factor*float64(y.OriginalMaxLen))))
	}
	c.attention = d
}

func (c *Config) parseMLP(o *configjson.Object) {
	experts := o.IntOr(0, 0, maxExperts/(len(c.full)+1), "num_experts")
	if experts == 0 {
		c.dense = o.Int(1, maxWidth, "intermediate_size")
		return
	}
	c.moe = moeConfig{
		experts: experts,
		topK:    o.Int(1, experts, "num_experts_per_tok"),
		width:   o.Int(1, maxWidth, "moe_intermediate_size"),
		shared:  o.Int(1, maxWidth, "shared_expert_intermediate_size"),
	}
	if !o.BoolOr(true, "norm_topk_prob") {
		o.Fail("norm_topk_prob", "false is not supported")
	}
}

func (c *Config) attentionLayers() int {
	n := 0
	for _, full := range c.full {
		if full {
			n++
		}
	}
	return n
}

// Spec is what the engine needs to know.
func (c *Config) Spec() model.Spec {
	s := model.Spec{
		Family: "qwen3_5", Hidden: c.hidden, Vocab: c.vocab, MaxLen: c.maxLen,
		Delta: c.delta.Dims, DeltaLayers: len(c.full) - c.attentionLayers(), State: c.state,
		QHeads: c.attention.QHeads, KVHeads: c.attention.KVHeads, HeadDim: c.attention.HeadDim,
		AttentionLayers: c.attentionLayers(), FP8KV: c.quant.FP8KV, EOS: c.eos,
		Experts: c.moe.experts, TopK: c.moe.topK,
	}
	if c.mtp {
		s.MTP = &model.MTPSpec{AttentionLayers: 1, Depths: 1}
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
