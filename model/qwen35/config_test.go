package qwen35

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"reprise/attention"
	"reprise/kernels"
	"reprise/kernels/ref"
	"reprise/layers"
	"reprise/model"
)

func readFile(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil && !(errors.Is(err, os.ErrNotExist) && strings.HasSuffix(name, ".quant.json")) {
		t.Fatal(err)
	}
	return text
}

func parseFile(t *testing.T, name string) *Config {
	t.Helper()
	c, err := Parse(readFile(t, name+".json"), readFile(t, name+".quant.json"))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return c
}

// counts is the numbers and tensors of the model and of its MTP head.
func counts(specs []model.TensorSpec) (numbers, tensors, mtpNumbers, mtpTensors int) {
	for _, s := range specs {
		n := 1
		for _, d := range s.Shape {
			n *= d
		}
		if strings.HasPrefix(s.Name, "mtp.") {
			mtpNumbers, mtpTensors = mtpNumbers+n, mtpTensors+1
		} else {
			numbers, tensors = numbers+n, tensors+1
		}
	}
	return numbers, tensors, mtpNumbers, mtpTensors
}

func TestReleasedConfigs(t *testing.T) {
	type moe = moeConfig
	cases := []struct {
		name                  string
		hidden, delta, full   int
		q, kv, values         int
		dense                 int
		moe                   moe
		fp8                   bool
		numbers, tensors, mtp int // published, or by the formula; 0 = unknown
	}{
		{"qwen3.5-27b", 5120, 48, 16, 24, 4, 48, 17408, moe{}, false, 26895998464, 0, 424699392},
		{"qwen3.5-35b", 2048, 30, 10, 16, 2, 32, 0, moe{256, 8, 512, 512}, false, 34660610688, 0, 844640768},
		{"qwen3.5-122b", 3072, 36, 12, 32, 2, 64, 0, moe{256, 8, 1024, 1024}, false, 122111526912, 831, 2523679232},
		{"qwen3.5-122b-nvfp4", 3072, 36, 12, 32, 2, 64, 0, moe{256, 8, 1024, 1024}, true, 122111526912, 831, 2523679232},
		{"qwen3.5-397b", 4096, 45, 15, 32, 2, 64, 0, moe{512, 10, 1024, 1024}, false, 0, 0, 0},
		{"qwen3.5-397b-nvfp4", 4096, 45, 15, 32, 2, 64, 0, moe{512, 10, 1024, 1024}, true, 0, 0, 0},
		{"qwen3.6-27b-nvfp4", 5120, 48, 16, 24, 4, 48, 17408, moe{}, true, 26895998464, 0, 424699392},
		{"qwen3.6-35b-nvfp4", 2048, 30, 10, 16, 2, 32, 0, moe{256, 8, 512, 512}, true, 34660610688, 0, 844640768},
		{"qwen3.5-25b-reap", 2048, 30, 10, 16, 2, 32, 0, moe{180, 8, 512, 512}, false, 25091371648, 0, 0},
		{"qwen3.5-9b-mlx8", 4096, 24, 8, 16, 4, 32, 12288, moe{}, false, 0, 0, 0},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			config := parseFile(t, c.name)
			want := model.Spec{
				Family: "qwen3_5", Hidden: c.hidden, Vocab: 248320, MaxLen: 262144,
				Delta:       kernels.DeltaDims{KeyHeads: 16, ValueHeads: c.values, KeyDim: 128, ValueDim: 128, Taps: 4},
				DeltaLayers: c.delta, State: kernels.StateF32, QHeads: c.q, KVHeads: c.kv, HeadDim: 256,
				AttentionLayers: c.full, FP8KV: c.fp8, MTP: &model.MTPSpec{AttentionLayers: 1, Depths: 1}, EOS: []int32{248044},
				Experts: c.moe.experts, TopK: c.moe.topK,
			}
			if g, w := must(json.Marshal(config.Spec())), must(json.Marshal(want)); string(g) != string(w) {
				t.Errorf("spec\n %s, want\n %s", g, w)
			}
			if config.dense != c.dense || config.moe != c.moe || config.tied {
				t.Errorf("MLP %d, %+v, tied %v", config.dense, config.moe, config.tied)
			}
			if r := *config.attention.Rope; r != (attention.Rope{Rotary: 64, Theta: 1e7}) {
				t.Errorf("rope %+v", r)
			}
			numbers, tensors, mtp, _ := counts(config.Want())
			if c.numbers != 0 && numbers != c.numbers || c.tensors != 0 && tensors != c.tensors || c.mtp != 0 && mtp != c.mtp {
				t.Errorf("%d numbers in %d tensors, %d in MTP; want %d in %d, %d", numbers, tensors, mtp, c.numbers, c.tensors, c.mtp)
			}
		})
	}
}

// text4b is the published shape of Qwen3.5-4B.
func text4b() map[string]any {
	return map[string]any{
		"hidden_size": 2560, "vocab_size": 248320, "max_position_embeddings": 262144, "num_hidden_layers": 32, "full_attention_interval": 4,
		"num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 256, "intermediate_size": 9216,
		"linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
		"mtp_num_hidden_layers": 1, "eos_token_id": 248044,
		"rope_parameters": map[string]any{"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_section": []int{11, 11, 10}},
	}
}

func parseWith(text, top map[string]any) (*Config, error) {
	t := text4b()
	maps.Copy(t, text)
	c := map[string]any{"model_type": "qwen3_5", "tie_word_embeddings": true, "text_config": t}
	maps.Copy(c, top)
	data, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	return Parse(data, nil)
}

func TestPublishedShapeOf4B(t *testing.T) {
	c := must(parseWith(nil, nil))
	numbers, tensors, mtp, mtpTensors := counts(c.Want())
	if numbers != 4205751296 || tensors != 426 || mtp != 120599552 || mtpTensors != 15 {
		t.Errorf("%d numbers in %d tensors, MTP %d in %d", numbers, tensors, mtp, mtpTensors)
	}
}

func must[V any](v V, err error) V {
	if err != nil {
		panic(err)
	}
	return v
}

type object = map[string]any

func TestForms(t *testing.T) {
	yarn := func(more object) object {
		r := object{"rope_type": "yarn", "rope_theta": 1e7, "partial_rotary_factor": 0.25, "factor": 4.0, "original_max_position_embeddings": 262144}
		maps.Copy(r, more)
		return object{"rope_parameters": r}
	}
	cases := []struct {
		name      string
		text, top object
		check     func(*Config) bool
	}{
		{"top level ties", object{"tie_word_embeddings": false}, nil, func(c *Config) bool { return c.tied }},
		{"text ties without the top", object{"tie_word_embeddings": true}, object{"tie_word_embeddings": nil}, func(c *Config) bool { return c.tied }},
		{"untied by default", nil, object{"tie_word_embeddings": nil}, func(c *Config) bool { return !c.tied }},
		{"interval", object{"full_attention_interval": 2}, nil, func(c *Config) bool { return c.attentionLayers() == 16 && c.full[1] && !c.full[0] }},
		{"list beats the number", object{"layer_types": []string{"full_attention"}}, nil, func(c *Config) bool { return len(c.full) == 1 }},
		{"eos list", object{"eos_token_id": []int{248046, 248044}}, nil, func(c *Config) bool { return len(c.eos) == 2 }},
		{"eos at the top", object{"eos_token_id": nil}, object{"eos_token_id": 7}, func(c *Config) bool { return len(c.eos) == 1 && c.eos[0] == 7 }},
		{"flat rope keys", object{"rope_parameters": nil, "rope_theta": 1e4, "partial_rotary_factor": 0.5}, nil, func(c *Config) bool {
			return *c.attention.Rope == attention.Rope{Rotary: 128, Theta: 1e4}
		}},
		{"yarn", yarn(nil), nil, func(c *Config) bool { return c.attention.Rope.Yarn.Factor == 4 && c.maxLen == 1048576 }},
		{"no MTP", object{"mtp_num_hidden_layers": 0}, nil, func(c *Config) bool { return c.Spec().MTP == nil }},
		{"no experts", object{"num_experts": 0}, nil, func(c *Config) bool { return c.dense == 9216 }},
		{"3.6 output gate", object{"output_gate_type": "swish"}, nil, func(c *Config) bool { return true }},
		{"vision is ignored", nil, object{"vision_config": object{"hidden_act": "gelu"}}, func(c *Config) bool { return true }},
	}
	for _, c := range cases {
		if config, err := parseWith(c.text, c.top); err != nil {
			t.Errorf("%s: %v", c.name, err)
		} else if !c.check(config) {
			t.Errorf("%s: %+v", c.name, config)
		}
	}
}

func TestErrorsNameTheKey(t *testing.T) {
	rope := func(key string, v any) object {
		return object{"rope_parameters": object{"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 1024, key: v}}
	}
	cases := []struct {
		key       string
		text, top object
	}{
		{"hidden_size", object{"hidden_size": nil}, nil}, {"hidden_size", object{"hidden_size": 1 << 30}, nil},
		{"vocab_size", object{"vocab_size": -1}, nil}, {"num_hidden_layers", object{"num_hidden_layers": 1 << 20}, nil},
		{"num_hidden_layers", object{"num_hidden_layers": nil}, nil}, {"layer_types", object{"layer_types": []string{"sliding_attention"}}, nil},
		{"full_attention_interval", object{"full_attention_interval": 0}, nil}, {"num_key_value_heads", object{"num_key_value_heads": 3}, nil},
		{"head_dim", object{"head_dim": nil}, nil}, {"linear_num_key_heads", object{"linear_num_key_heads": 5}, nil},
		{"linear_num_value_heads", object{"linear_num_value_heads": nil}, nil}, {"linear_key_head_dim", object{"linear_key_head_dim": 1 << 20}, nil},
		{"linear_num_value_heads", object{"linear_num_value_heads": 4096, "linear_value_head_dim": 1024}, nil},
		{"intermediate_size", object{"intermediate_size": 0}, nil}, {"num_experts_per_tok", object{"num_experts": 4, "num_experts_per_tok": 5}, nil},
		{"num_experts", object{"num_experts": 1 << 20}, nil}, {"shared_expert_intermediate_size", object{"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}, nil},
		{"attention_bias", object{"attention_bias": true}, nil}, {"attn_output_gate", object{"attn_output_gate": false}, nil},
		{"hidden_act", object{"hidden_act": "gelu"}, nil}, {"mlp_only_layers", object{"mlp_only_layers": []int{3}}, nil},
		{"mtp_use_dedicated_embeddings", object{"mtp_use_dedicated_embeddings": true}, nil}, {"mtp_num_hidden_layers", object{"mtp_num_hidden_layers": 2}, nil},
		{"rope_type", object{"rope_parameters": object{"rope_type": "longrope"}}, nil}, {"factor", rope("factor", nil), nil}, {"factor", rope("factor", 0.5), nil},
		{"original_max_position_embeddings", rope("original_max_position_embeddings", nil), nil}, {"beta_fast", rope("beta_fast", 0.5), nil}, {"mscale", rope("mscale", 1), nil},
		{"partial_rotary_factor", object{"rope_parameters": object{"partial_rotary_factor": 0}}, nil}, {"text_config", nil, object{"text_config": 3}},
		{"rms_norm_eps", object{"rms_norm_eps": 2}, nil}, {"mamba_ssm_dtype", object{"mamba_ssm_dtype": "int8"}, nil}, {"eos_token_id", object{"eos_token_id": 1 << 30}, nil},
	}
	for _, c := range cases {
		_, err := parseWith(c.text, c.top)
		if err == nil {
			t.Errorf("%v %v: accepted", c.text, c.top)
		} else if msg := err.Error(); !strings.Contains(msg, c.key) || strings.Contains(msg, "\n") || len(msg) > 300 {
			t.Errorf("%v %v: error %q", c.text, c.top, msg)
		}
	}
}

func TestOtherFamiliesAreRefused(t *testing.T) {
	for name, want := range map[string]string{"qwen3-0.6b": `model_type "qwen3" is not supported`, "qwen3-30b": `model_type "qwen3_moe" is not supported`} {
		if _, err := Parse(readFile(t, name+".json"), nil); err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// quantisedSource has a companion beside every matrix.
type quantisedSource struct{ suffix string }

func (q quantisedSource) Has(name string) bool {
	return strings.HasSuffix(name, ".weight") || strings.HasSuffix(name, q.suffix)
}

func (q quantisedSource) Get(name string, _ ...int) (kernels.HostTensor, error) {
	return kernels.HostTensor{}, errors.New("read " + name)
}

func TestQuantisedIsNamed(t *testing.T) {
	for suffix, format := range map[string]string{".weight_scale_2": "NVFP4", ".weight_scale": "FP8", ".weight_scale_inv": "block FP8"} {
		for _, name := range []string{"qwen3.5-122b-nvfp4", "qwen3.6-27b-nvfp4", "qwen3.6-35b-nvfp4"} {
			_, err := parseFile(t, name).Load(ref.New(), quantisedSource{suffix}, 8)
			if !errors.Is(err, layers.ErrQuantised) || !strings.Contains(err.Error(), "embed_tokens.weight is stored as "+format) {
				t.Errorf("%s with %s: %v", name, suffix, err)
			}
		}
	}
	if _, err := parseFile(t, "qwen3.5-9b-mlx8").Load(ref.New(), quantisedSource{}, 8); err == nil || !strings.Contains(err.Error(), "is not supported") {
		t.Errorf("mlx: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(must(json.Marshal(object{"model_type": "qwen3_5", "text_config": text4b()})))
	text, _ := os.ReadFile("testdata/qwen3.5-122b.json")
	f.Add(text)
	f.Fuzz(func(t *testing.T, data []byte) {
		if c, err := Parse(data, nil); err == nil {
			if n := len(c.Want()); n > 1<<22 {
				t.Errorf("%d tensors", n)
			}
		}
	})
}
