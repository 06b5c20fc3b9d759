package engine

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"reprise/kernels"
	"reprise/weights"
)

// fuzzBases are configs of both families.
func fuzzBases(f *testing.F) [][]byte {
	var out [][]byte
	for _, name := range []string{"qwen35-moe-mtp", "nemotron-latent-mtp"} {
		text, err := os.ReadFile(filepath.Join("..", "model", "testdata", "goldens", name, "config.json"))
		if err != nil {
			f.Fatal(err)
		}
		out = append(out, text)
	}
	return out
}

// FuzzConfig puts strangers' values into configs of both families and plans the memory of what is left: an error of one
// line, or a plan that adds up, never a panic, an overflow, or work without a bound.
func FuzzConfig(f *testing.F) {
	for _, seed := range []string{
		`{"hidden_size":262144}`, `{"vocab_size":4194304,"eos_token_id":[0,4194303]}`, `{"max_position_embeddings":67108864}`, `{"head_dim":1024,"num_attention_heads":4096}`,
		`{"layer_types":["full_attention"]}`, `{"layer_types":["linear_attention"],"mtp_num_hidden_layers":0}`, `{"hybrid_override_pattern":"M","mtp_hybrid_override_pattern":null}`,
		`{"hybrid_override_pattern":"*-"}`, `{"n_routed_experts":131072}`, `{"num_experts":26214,"num_experts_per_tok":26214}`, `{"mamba_num_heads":16384,"n_groups":4096}`,
		`{"rope_parameters":{"rope_type":"yarn","factor":1024,"original_max_position_embeddings":65536}}`, `{"linear_conv_kernel_dim":1}`, `{"conv_kernel":16}`,
		`{"text_config":null}`, `{"time_step_limit":[0,Infinity]}`, `{"quantization_config":{"kv_cache_scheme":{"num_bits":8,"type":"float"}}}`,
	} {
		f.Add([]byte(seed))
	}
	bases := fuzzBases(f)
	f.Fuzz(func(t *testing.T, over []byte) {
		for _, base := range bases {
			checkConfig(t, graft(base, over))
		}
	})
}

// graft puts the fields of an object over those of a config, at the top and in text_config; what is no object is a config
// of its own.
func graft(base, over []byte) []byte {
	var fields map[string]json.RawMessage
	var top map[string]any
	if json.Unmarshal(over, &fields) != nil || json.Unmarshal(base, &top) != nil {
		return over
	}
	text, ok := top["text_config"].(map[string]any)
	for key, value := range fields {
		if _, inner := text[key]; ok && inner {
			text[key] = value
		} else {
			top[key] = value
		}
	}
	out, err := json.Marshal(top)
	if err != nil {
		return over
	}
	return out
}

func checkConfig(t *testing.T, text []byte) {
	folder, err := weights.NewFolder("f", fstest.MapFS{"config.json": {Data: text}}, nil)
	if err != nil {
		t.Skip(err)
	}
	var p *Plan
	config, err := ParseConfig(folder)
	if err == nil {
		p, err = makePlan(config, Options{MaxSeqs: 4, MaxTokens: 64, PageTokens: 16, MemoryFraction: 0.5}, kernels.F32, 8<<30)
	}
	if err != nil {
		if line := err.Error(); len(line) > 1000 || strings.ContainsAny(line, "\n\r") {
			t.Errorf("not one short line: %q", line)
		}
		return
	}
	total := int64(0)
	for _, n := range []int64{p.Weights, p.Activations, p.StateBytes, p.RingBytes, p.KVBytes, p.SamplerBytes, p.DraftBytes} {
		if total += n; n < 0 || n > 4<<30 {
			t.Errorf("%s plans %d bytes:\n%s", text, n, p)
		}
	}
	if total > 4<<30 || p.MaxLen < 1 || p.MaxSeqs < 1 || fmt.Sprint(p) == "" {
		t.Errorf("%s plans %d bytes of 4 GB:\n%s", text, total, p)
	}
}
