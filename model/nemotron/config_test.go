package nemotron

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"reprise/kernels"
	"reprise/kernels/ref"
	"reprise/layers"
	"reprise/model"
)

func parseFile(t *testing.T, name string) *Config {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	quant, err := os.ReadFile(filepath.Join("testdata", name+".quant.json"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	c, err := Parse(text, quant)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return c
}

// counts is the numbers and tensors of a checkpoint, and those of its MTP head.
func counts(specs []model.TensorSpec) (numbers, tensors, mtpNumbers int) {
	for _, s := range specs {
		n := 1
		for _, d := range s.Shape {
			n *= d
		}
		numbers += n
		if strings.HasPrefix(s.Name, "mtp.") {
			mtpNumbers += n
		}
	}
	return numbers, len(specs), mtpNumbers
}

func TestReleasedConfigs(t *testing.T) {
	mtp := &model.MTPSpec{AttentionLayers: 1, Depths: 1}
	mamba := func(heads, dim, state int) kernels.Mamba2Dims {
		return kernels.Mamba2Dims{Heads: heads, HeadDim: dim, State: state, Groups: 8, Taps: 4}
	}
	spec := func(hidden, maxLen int, m kernels.Mamba2Dims, layers, q, kv, attention int) model.Spec {
		return model.Spec{
			Family: "nemotron_h", Hidden: hidden, Vocab: 131072, MaxLen: maxLen, Mamba2: m, Mamba2Layers: layers,
			State: kernels.StateF32, QHeads: q, KVHeads: kv, HeadDim: 128, AttentionLayers: attention, EOS: []int32{2},
		}
	}
	cases := []struct {
		name                           string
		spec                           model.Spec
		fp8                            bool
		mtp                            *model.MTPSpec
		numbers, tensors               int // published, or by the formula; 0 = unknown
		withoutMTP                     int
		moe, dense, experts, topK, lat int
	}{
		{"nano-4b", spec(3136, 262144, mamba(96, 80, 128), 21, 40, 8, 4), false, nil, 3973556832, 263, 3973556832, 0, 17, 0, 0, 0},
		{"nano-30b", spec(2688, 262144, mamba(64, 64, 128), 23, 32, 2, 6), false, nil, 31577940288, 6243, 31577940288, 23, 0, 128, 6, 0},
		{"nano-30b-nvfp4", spec(2688, 262144, mamba(64, 64, 128), 23, 32, 2, 6), true, nil, 31577940288, 6243, 31577940288, 23, 0, 128, 6, 0},
		{"super-120b-fp8", spec(4096, 262144, mamba(128, 64, 128), 40, 32, 2, 8), true, mtp, 123611033088, 42683, 120668707840, 40, 0, 512, 22, 1024},
		{"super-120b-nvfp4", spec(4096, 262144, mamba(128, 64, 128), 40, 32, 2, 8), false, mtp, 123611033088, 42683, 120668707840, 40, 0, 512, 22, 1024},
		{"lightning-30b-nvfp4", spec(2688, 1048576, mamba(64, 64, 128), 23, 32, 2, 6), false, mtp, 0, 0, 31577940288, 23, 0, 128, 6, 0},
		{"ultra-550b", spec(8192, 262144, mamba(256, 64, 128), 48, 64, 2, 12), false, mtp, 0, 0, 0, 48, 0, 512, 22, 2048},
		{"h-56b", spec(8192, 8192, mamba(256, 64, 256), 54, 64, 8, 10), false, nil, 0, 0, 0, 0, 54, 0, 0, 0},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			config := parseFile(t, c.name)
			c.spec.Experts, c.spec.TopK = c.experts, c.topK
			checkSpec(t, config.Spec(), c.spec, c.fp8, c.mtp)
			moe, dense := config.count(moeLayer), config.count(denseLayer)
			if moe != c.moe || dense != c.dense || config.moe.route.TopK != c.topK || config.moe.latent != c.lat {
				t.Errorf("%d MoE layers, %d MLPs, top %d, latent %d", moe, dense, config.moe.route.TopK, config.moe.latent)
			}
			numbers, tensors, inMTP := counts(config.Want())
			if c.numbers != 0 && (numbers != c.numbers || tensors != c.tensors) {
				t.Errorf("%d numbers in %d tensors, want %d in %d", numbers, tensors, c.numbers, c.tensors)
			}
			if c.withoutMTP != 0 && numbers-inMTP != c.withoutMTP {
				t.Errorf("%d numbers without MTP, want %d", numbers-inMTP, c.withoutMTP)
			}
			if config.mamba.DtMin != 0 || config.mamba.DtMax != 0 {
				t.Errorf("dt is clamped to %g..%g", config.mamba.DtMin, config.mamba.DtMax)
			}
		})
	}
}

func checkSpec(t *testing.T, got, want model.Spec, fp8 bool, mtp *model.MTPSpec) {
	t.Helper()
	if (got.MTP == nil) != (mtp == nil) || mtp != nil && *got.MTP != *mtp {
		t.Errorf("MTP %+v, want %+v", got.MTP, mtp)
	}
	got.MTP, want.FP8KV = nil, fp8
	g, w := must(json.Marshal(got)), must(json.Marshal(want))
	if string(g) != string(w) {
		t.Errorf("spec\n %s, want\n %s", g, w)
	}
}

func must[V any](v V, err error) V {
	if err != nil {
		panic(err)
	}
	return v
}

// base is a small config with all kinds of layers.
func base() map[string]any {
	return map[string]any{
		"model_type": "nemotron_h", "hidden_size": 64, "vocab_size": 96, "max_position_embeddings": 512, "eos_token_id": 2,
		"hybrid_override_pattern": "ME*-", "num_hidden_layers": 52,
		"mamba_num_heads": 4, "mamba_head_dim": 16, "ssm_state_size": 32, "n_groups": 2,
		"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 48,
		"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "moe_shared_expert_intermediate_size": 40,
	}
}

func parseWith(t *testing.T, changes map[string]any) (*Config, error) {
	t.Helper()
	c := base()
	maps.Copy(c, changes)
	return Parse(must(json.Marshal(c)), nil)
}

func TestForms(t *testing.T) {
	cases := []struct {
		name    string
		changes map[string]any
		check   func(*Config) bool
	}{
		{"stale num_hidden_layers", nil, func(c *Config) bool { return len(c.pattern) == 4 }},
		{"null num_hidden_layers", map[string]any{"num_hidden_layers": nil}, func(c *Config) bool { return len(c.pattern) == 4 }},
		{"list of letters", map[string]any{"hybrid_override_pattern": []string{"M", "*"}}, func(c *Config) bool { return string(kindsOf(c)) == "M*" }},
		{"list of names", map[string]any{"hybrid_override_pattern": nil, "layers_block_type": []string{"mamba", "moe", "attention", "mlp"}},
			func(c *Config) bool { return string(kindsOf(c)) == "ME*-" }},
		{"saved names", map[string]any{"hybrid_override_pattern": nil, "layers_block_type": []string{"linear_attention", "full_attention"}},
			func(c *Config) bool { return string(kindsOf(c)) == "M*" }},
		{"attention_head_dim", map[string]any{"head_dim": nil, "attention_head_dim": 32}, func(c *Config) bool { return c.attention.HeadDim == 32 }},
		{"mamba aliases", map[string]any{"n_groups": nil, "mamba_n_groups": 4, "mamba_d_conv": 3, "mamba_conv_bias": false},
			func(c *Config) bool {
				return c.mamba.Dims.Groups == 4 && c.mamba.Dims.Taps == 3 && !c.mamba.ConvBias
			}},
		{"norm_eps", map[string]any{"norm_eps": 1e-3}, func(c *Config) bool { return c.eps == 1e-3 }},
		{"eos list", map[string]any{"eos_token_id": []int{2, 11}}, func(c *Config) bool { return len(c.eos) == 2 && c.eos[1] == 11 }},
		{"no eos", map[string]any{"eos_token_id": nil}, func(c *Config) bool { return c.eos == nil }},
		{"dt limit", map[string]any{"time_step_limit": []float64{0.001, 0.5}}, func(c *Config) bool { return c.mamba.DtMin == 0.001 && c.mamba.DtMax == 0.5 }},
		{"dt init is no limit", map[string]any{"time_step_min": 0.001, "time_step_max": 0.1}, func(c *Config) bool { return c.mamba.DtMin == 0 && c.mamba.DtMax == 0 }},
		{"no shared expert", map[string]any{"n_shared_experts": 0}, func(c *Config) bool { return c.moe.shared == 0 }},
		{"tied", map[string]any{"tie_word_embeddings": true}, func(c *Config) bool { return c.tied }},
		{"expand is ignored", map[string]any{"expand": 2}, func(c *Config) bool { return c.mamba.Dims.Inner() == 64 }},
		{"float16 state", map[string]any{"mamba_ssm_cache_dtype": "float16"}, func(c *Config) bool { return c.state == kernels.StateF16 }},
		{"only mamba", map[string]any{"hybrid_override_pattern": "MM", "num_attention_heads": nil, "n_routed_experts": nil}, func(c *Config) bool {
			return c.Spec().AttentionLayers == 0
		}},
	}
	for _, c := range cases {
		config, err := parseWith(t, c.changes)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		} else if !c.check(config) {
			t.Errorf("%s: %+v", c.name, config)
		}
	}
}

func kindsOf(c *Config) []byte {
	out := make([]byte, len(c.pattern))
	for i, k := range c.pattern {
		out[i] = byte(k)
	}
	return out
}

func TestErrorsNameTheKey(t *testing.T) {
	cases := []struct {
		key   string
		value any
	}{
		{"model_type", "llama"}, {"hidden_size", nil}, {"hidden_size", 0}, {"hidden_size", 1 << 40}, {"hidden_size", "64"}, {"hidden_size", -3},
		{"vocab_size", 1 << 30}, {"max_position_embeddings", 0}, {"hybrid_override_pattern", ""}, {"hybrid_override_pattern", "M?"},
		{"hybrid_override_pattern", strings.Repeat("M", 5000)}, {"hybrid_override_pattern", []any{"mamba", 3}}, {"hybrid_override_pattern", nil},
		{"mamba_num_heads", 3}, {"mamba_num_heads", nil}, {"mamba_head_dim", 1 << 20}, {"ssm_state_size", 0}, {"n_groups", 3}, {"conv_kernel", 100},
		{"num_key_value_heads", 3}, {"head_dim", nil}, {"head_dim", 1 << 12},
		{"n_routed_experts", 1 << 20}, {"num_experts_per_tok", 9}, {"num_experts_per_tok", 0}, {"moe_intermediate_size", nil}, {"n_group", 3},
		{"intermediate_size", nil}, {"attention_bias", true}, {"mlp_bias", true}, {"use_bias", true}, {"mamba_proj_bias", true},
		{"mlp_hidden_act", "silu"}, {"mamba_hidden_act", "gelu"}, {"sliding_window", 4096}, {"layer_norm_epsilon", -1},
		{"time_step_limit", []float64{0.5, 0.1}}, {"time_step_limit", []float64{1}}, {"mamba_ssm_cache_dtype", "int8"},
		{"num_nextn_predict_layers", 1}, {"num_nextn_predict_layers", 2}, {"eos_token_id", 96}, {"routed_scaling_factor", -1},
		{"mtp_hybrid_override_pattern", "M"}, {"tie_word_embeddings", "no"},
	}
	also := map[string]string{ // the key that the message may name instead
		"mamba_num_heads": "n_groups", "n_group": "topk_group", "num_nextn_predict_layers": "mtp_hybrid_override_pattern",
	}
	for _, c := range cases {
		changes := map[string]any{c.key: c.value}
		if c.key == "mtp_hybrid_override_pattern" {
			changes["num_nextn_predict_layers"] = 1
		}
		_, err := parseWith(t, changes)
		if err == nil {
			t.Errorf("%s = %v: accepted", c.key, c.value)
			continue
		}
		if msg := err.Error(); !strings.Contains(msg, c.key) && !strings.Contains(msg, also[c.key]) || strings.Contains(msg, "\n") || len(msg) > 300 {
			t.Errorf("%s = %v: error %q", c.key, c.value, msg)
		}
	}
}

// quantisedSource has a scale beside every matrix.
type quantisedSource struct{ suffix string }

func (q quantisedSource) Has(name string) bool {
	return strings.HasSuffix(name, ".weight") || strings.HasSuffix(name, q.suffix)
}

func (q quantisedSource) Get(name string, _ ...int) (kernels.HostTensor, error) {
	return kernels.HostTensor{}, errors.New("read " + name)
}

func TestQuantisedIsNamed(t *testing.T) {
	for suffix, format := range map[string]string{
		".weight_scale_2": "NVFP4", ".weight_scale": "FP8", ".weight_scale_inv": "block FP8", ".scales": "MLX", ".weight_packed": "compressed-tensors",
	} {
		for _, name := range []string{"nano-30b-nvfp4", "super-120b-fp8"} {
			_, err := parseFile(t, name).Load(ref.New(), quantisedSource{suffix}, 8)
			if !errors.Is(err, layers.ErrQuantised) || !strings.Contains(err.Error(), "backbone.embeddings.weight is stored as "+format) {
				t.Errorf("%s with %s: %v", name, suffix, err)
			}
		}
	}
	c, err := parseWith(t, map[string]any{"quantization_config": map[string]any{"quant_method": "gptq"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Load(ref.New(), quantisedSource{}, 8); err == nil || !strings.Contains(err.Error(), `quant_method "gptq" is not supported`) {
		t.Errorf("gptq: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(must(json.Marshal(base())))
	text, _ := os.ReadFile("testdata/super-120b-fp8.json")
	f.Add(text)
	f.Fuzz(func(t *testing.T, data []byte) {
		if c, err := Parse(data, nil); err == nil {
			if n := len(c.Want()); n > 1<<22 {
				t.Errorf("%d tensors", n)
			}
		}
	})
}
