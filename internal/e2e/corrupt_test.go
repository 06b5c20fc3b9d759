package e2e

import (
	"encoding/binary"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"reprise/engine"
	"reprise/kernels/cpu"
	"reprise/weights"
)

const (
	endWithin  = 30 * time.Second // of a machine that does much else; alone it is a fraction of a second
	peakMemory = 256 << 20        // a program that has read a tiny checkpoint has about 60 MB
)

// corrupt is a broken model folder.
type corrupt struct {
	name  string
	files files
	args  []string
	want  []string // all of these are in the one line
	text  bool     // found while tokenizer, template and defaults are read, which engine.Open has no part in
}

// TestCorruptCheckpoints: whatever is wrong with a folder, serve ends with one line that names file and field, soon,
// and without the memory that a lying header asks for.
func TestCorruptCheckpoints(t *testing.T) {
	var all []corrupt
	all = append(all, corruptTensors(t)...)
	all = append(all, corruptIndexes(t)...)
	all = append(all, corruptConfigs(t)...)
	all = append(all, corruptText(t)...)
	for _, c := range all {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := c.files.write(t)
			if !c.text {
				c.open(t, dir)
			}
			c.serve(t, dir)
		})
	}
}

// open checks the error of engine.Open.
func (c corrupt) open(t *testing.T, dir string) {
	dev, err := cpu.Open(cpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	folder, err := weights.OpenFolder(dir)
	if err == nil {
		var e *engine.Opened
		if e, err = engine.Open(dev, engine.Source{Folder: folder}, engine.Options{}); err == nil {
			e.Close()
		}
	}
	if err == nil {
		t.Fatal("engine.Open takes it")
	}
	c.check(t, err.Error())
}

// serve checks how the program ends.
func (c corrupt) serve(t *testing.T, dir string) {
	args := []string{"--model", dir, "--port", "0"}
	if !c.text {
		args = append(args, "--skip-tokenizer-init")
	}
	p := start(t, "serve", append(args, c.args...)...)
	code := p.end(endWithin)
	text := p.stderr.String()
	if code != 1 || p.stdout.String() != "" {
		t.Errorf("exit code %d, want 1; it says %q and %q", code, p.stdout.String(), text)
	}
	c.check(t, strings.TrimSuffix(text, "\n"))
	if peak := p.peakBytes(); peak > peakMemory && !racing {
		t.Errorf("it took %d MB", peak>>20)
	}
}

func (c corrupt) check(t *testing.T, line string) {
	if len(line) > 1200 || strings.ContainsAny(line, "\n\r") || strings.Contains(line, "goroutine") {
		t.Errorf("not one short line: %q", line)
	}
	for _, want := range c.want {
		if !strings.Contains(line, want) {
			t.Errorf("%q does not say %q", line, want)
		}
	}
}

// tensors is a safetensors file taken apart.
type tensors struct {
	header map[string]map[string]any
	data   []byte
}

func takeApart(t *testing.T, file []byte) tensors {
	t.Helper()
	size := binary.LittleEndian.Uint64(file)
	var s tensors
	decode(t, file[8:8+size], &s.header)
	s.data = file[8+size:]
	return s
}

func (s tensors) join(t *testing.T) []byte {
	t.Helper()
	text, err := json.Marshal(s.header)
	if err != nil {
		t.Fatal(err)
	}
	return withHeader(string(text), s.data)
}

func withHeader(header string, data []byte) []byte {
	out := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(out, header...), data...)
}

// corruptTensors are faults of model.safetensors.
func corruptTensors(t *testing.T) []corrupt {
	base := golden(t, "qwen35-dense")
	file := base["model.safetensors"]
	const embedding = "model.language_model.embed_tokens.weight"
	const file1 = "model.safetensors"
	if takeApart(t, file).header[embedding] == nil {
		t.Fatalf("no tensor %s", embedding)
	}
	whole := func(content []byte) files {
		f := base.clone()
		f[file1] = content
		return f
	}
	edit := func(change func(tensors)) files {
		s := takeApart(t, file)
		change(s)
		return whole(s.join(t))
	}
	length := func(n uint64) files {
		content := append([]byte(nil), file...)
		binary.LittleEndian.PutUint64(content, n)
		return whole(content)
	}
	missing := base.clone()
	delete(missing, file1)
	return []corrupt{
		{name: "no weights", files: missing, want: []string{"neither model.safetensors nor model.safetensors.index.json"}},
		{name: "empty file", files: whole(nil), want: []string{file1, "0 bytes"}},
		{name: "seven bytes", files: whole(file[:7]), want: []string{file1, "7 bytes"}},
		{name: "truncated in the header", files: whole(file[:100]), want: []string{file1, "truncated"}},
		{name: "truncated in the data", files: whole(file[:len(file)-1]), want: []string{file1, "truncated"}},
		{name: "half a file", files: whole(file[:len(file)/2]), want: []string{file1, "tensor", "truncated"}},
		{name: "one byte too many", files: whole(append(append([]byte(nil), file...), 0)), want: []string{file1, "1 bytes of data that no tensor covers"}},
		{name: "header of 99 MB that is not there", files: length(99_000_000), want: []string{file1, "header of 99000000 bytes"}},
		{name: "header of 16 EB", files: length(1<<64 - 1), want: []string{file1, "header of 18446744073709551615 bytes"}},
		{name: "header one too long", files: length(binary.LittleEndian.Uint64(file) + 1), want: []string{file1, "header"}},
		{name: "empty header", files: length(0), want: []string{file1, "header"}},
		{name: "header is not JSON", files: whole(withHeader(strings.Repeat("x", 64), nil)), want: []string{file1, "header is not a JSON object"}},
		{name: "a pickle", files: whole([]byte("\x80\x02}q\x00(X\x05\x00\x00\x00modelq\x01")), want: []string{file1, "header"}},
		{name: "deep header", files: whole(withHeader(`{"x":{"y":`+strings.Repeat("[", 1<<20), nil)), want: []string{file1, `tensor "x"`}},
		{name: "tensor twice", files: whole(withHeader(`{"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"x":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}`, []byte{1, 2})), want: []string{file1, `tensor "x"`, "twice"}},
		{name: "shape that overflows", files: whole(withHeader(`{"x":{"dtype":"F32","shape":[4294967296,4294967296,4294967296],"data_offsets":[0,4]}}`, make([]byte, 4))), want: []string{file1, `tensor "x"`, "too large"}},
		{name: "shape of 1 TB", files: whole(withHeader(`{"x":{"dtype":"F32","shape":[250000000000],"data_offsets":[0,1000000000000]}}`, make([]byte, 4))), want: []string{file1, `tensor "x"`, "exceed"}},
		{name: "negative shape", files: whole(withHeader(`{"x":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}`, make([]byte, 4))), want: []string{file1, `tensor "x"`, "shape"}},
		{name: "overlapping tensors", files: edit(func(s tensors) { s.overlap(t) }), want: []string{file1, "tensor", "overlap"}},
		{name: "unknown dtype", files: edit(func(s tensors) { s.header[embedding]["dtype"] = "F99" }), want: []string{file1, embedding, "F99"}},
		{name: "integers for weights", files: edit(func(s tensors) { s.header[embedding]["dtype"] = "I16" }), want: []string{file1, embedding, "int16"}},
		{name: "another shape", files: edit(func(s tensors) { s.header[embedding]["shape"] = []int{64, 192} }), want: []string{file1, embedding, "[64 192]", "[192 64]"}},
		{name: "missing tensor", files: edit(func(s tensors) { s.rename(embedding, "x") }), want: []string{"missing tensor", "embed_tokens.weight"}},
		{name: "missing deep tensor", files: edit(func(s tensors) {
			s.rename("model.language_model.layers.2.linear_attn.dt_bias", "model.language_model.layers.2.linear_attn.dt_bia")
		}), want: []string{"missing tensor", "layers.2.linear_attn.dt_bias"}},
		{name: "name of control characters", files: edit(func(s tensors) { s.header["\n\x1b[31m"] = map[string]any{"dtype": "U8"} }), want: []string{file1, `tensor "\n`}},
	}
}

// overlap moves some tensor onto the one before it.
func (s tensors) overlap(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(s.header)) {
		e := s.header[name]
		at, ok := e["data_offsets"].([]any)
		if !ok {
			continue // the metadata
		}
		if begin := at[0].(float64); begin > 0 {
			e["data_offsets"] = []float64{begin - 8, at[1].(float64) - 8}
			return
		}
	}
	t.Fatal("only one tensor")
}

func (s tensors) rename(from, to string) {
	s.header[to] = s.header[from]
	delete(s.header, from)
}

// corruptIndexes are faults of model.safetensors.index.json.
func corruptIndexes(t *testing.T) []corrupt {
	const index = "model.safetensors.index.json"
	base := golden(t, "nemotron-dense")
	shard := base["model.safetensors"]
	delete(base, "model.safetensors")
	base["a.safetensors"] = shard
	with := func(text string) files {
		f := base.clone()
		f[index] = []byte(text)
		return f
	}
	one := func(name string) files { return with(`{"weight_map":{"backbone.embeddings.weight":` + name + `}}`) }
	two := one(`"a.safetensors"`)
	two["b.safetensors"] = shard
	two[index] = []byte(`{"weight_map":{"backbone.embeddings.weight":"a.safetensors","lm_head.weight":"b.safetensors"}}`)
	return []corrupt{
		{name: "index is garbage", files: with("garbage"), want: []string{index, "not a shard index"}},
		{name: "index is cut", files: with(`{"weight_map":{"a":"a.safe`), want: []string{index, "unfinished"}},
		{name: "index without weight_map", files: with(`{"metadata":{}}`), want: []string{index, "weight_map"}},
		{name: "index leads up", files: one(`"../a.safetensors"`), want: []string{index, "backbone.embeddings.weight", "not a file inside"}},
		{name: "index leads to the root", files: one(`"/etc/passwd"`), want: []string{index, "/etc/passwd", "not a file inside"}},
		{name: "index leads up in disguise", files: one(`"x/\u002e\u002e/../a.safetensors"`), want: []string{index, "not a file inside"}},
		{name: "index names a missing shard", files: one(`"c.safetensors"`), want: []string{index, "c.safetensors", "not there"}},
		{name: "index names a folder", files: one(`"."`), want: []string{index}},
		{name: "index names config.json", files: one(`"config.json"`), want: []string{"config.json", "header"}},
		{name: "index names a tensor that is not there", files: with(`{"weight_map":{"backbone.x":"a.safetensors"}}`), want: []string{index, "backbone.x"}},
		{name: "index holds numbers", files: with(`{"weight_map":{"backbone.x":7}}`), want: []string{index}},
		{name: "tensor in two shards", files: two, want: []string{"b.safetensors", "is in", "a.safetensors", "tensor"}},
		{name: "deep index", files: with(`{"x":` + strings.Repeat("[", 1<<20)), want: []string{index, "nest"}},
		{name: "only shards", files: base, want: []string{"a.safetensors", index}},
	}
}

// absurd are values that no whole number or length in a config may have.
var absurd = []struct{ name, value string }{
	{"negative", "-1"}, {"zero", "0"}, {"1e18", "1e18"}, {"1e400", "1e400"}, {"NaN", "NaN"}, {"infinite", "Infinity"}, {"text", `"64"`}, {"list", "[64]"}, {"half", "64.5"},
}

// corruptConfigs are faults of config.json.
func corruptConfigs(t *testing.T) []corrupt {
	qwen, nemotron := golden(t, "qwen35-moe-mtp"), golden(t, "nemotron-latent-mtp")
	var out []corrupt
	sweep := func(family string, base files, keys ...string) {
		for i, key := range keys {
			for j, a := range absurd {
				if i > 0 && testing.Short() && (i+j)%4 > 0 {
					continue // the first key with everything, the others with something
				}
				out = append(out, corrupt{name: family + " " + key + " " + a.name, files: base.config(t, key, a.value), want: []string{"config.json", key}})
			}
		}
	}
	sweep("qwen", qwen, "hidden_size", "vocab_size", "head_dim", "num_attention_heads", "num_key_value_heads", "max_position_embeddings",
		"linear_num_key_heads", "linear_key_head_dim", "linear_value_head_dim", "moe_intermediate_size", "num_experts_per_tok")
	sweep("nemotron", nemotron, "hidden_size", "vocab_size", "mamba_num_heads", "ssm_state_size", "conv_kernel", "n_groups",
		"max_position_embeddings", "n_routed_experts", "moe_intermediate_size", "num_experts_per_tok")
	return append(append(out, oddConfigs(t, qwen, nemotron)...), tooLarge(t, qwen, nemotron)...)
}

// oddConfigs are single faults.
func oddConfigs(t *testing.T, qwen, nemotron files) []corrupt {
	whole := func(text string) files {
		f := qwen.clone()
		f["config.json"] = []byte(text)
		return f
	}
	missing := qwen.clone()
	delete(missing, "config.json")
	quant := func(f files, text string) files {
		f = f.clone()
		f["hf_quant_config.json"] = []byte(text)
		return f
	}
	const config = "config.json"
	return []corrupt{
		{name: "no config", files: missing, want: []string{config}},
		{name: "empty config", files: whole(""), want: []string{config}},
		{name: "config is a list", files: whole("[]"), want: []string{config}},
		{name: "config is null", files: whole("null"), want: []string{config}},
		{name: "config is cut", files: whole(string(qwen[config][:200])), want: []string{config}},
		{name: "deep config", files: whole(strings.Repeat(`{"a":`, 200_000)), want: []string{config}},
		{name: "deep value", files: whole(`{"model_type":"qwen3_5","x":` + strings.Repeat("[", 9_000) + strings.Repeat("]", 9_000) + `}`), want: []string{config}},
		{name: "config of 5 MB", files: whole(`{"x":"` + strings.Repeat("x", 5<<20) + `"}`), want: []string{config, "larger than"}},
		{name: "unknown model_type", files: whole(`{"model_type":"llama"}`), want: []string{config, "model_type", "llama", "qwen3_5"}},
		{name: "long model_type", files: whole(`{"model_type":"` + strings.Repeat("x", 1<<20) + `"}`), want: []string{config, "model_type"}},
		{name: "no model_type", files: whole(`{}`), want: []string{config, "model_type"}},
		{name: "model_type is a number", files: whole(`{"model_type":7}`), want: []string{config, "model_type"}},
		{name: "unknown layer type", files: qwen.config(t, "layer_types", `["linear_attention","sliding_attention"]`), want: []string{config, "layer_types", "sliding_attention"}},
		{name: "a million layers", files: qwen.config(t, "layer_types", "").config(t, "num_hidden_layers", "1000000"), want: []string{config, "num_hidden_layers"}},
		{name: "layer list of a million", files: qwen.config(t, "layer_types", `["`+strings.Repeat(`linear_attention","`, 200_000)+`x"]`), want: []string{config, "layer_types"}},
		{name: "another activation", files: qwen.config(t, "hidden_act", `"gelu"`), want: []string{config, "hidden_act", "gelu"}},
		{name: "eps is text", files: qwen.config(t, "rms_norm_eps", `"1e-6"`), want: []string{config, "rms_norm_eps"}},
		{name: "eps is NaN", files: qwen.config(t, "rms_norm_eps", `NaN`), want: []string{config, "rms_norm_eps"}},
		{name: "eos beyond the vocabulary", files: qwen.config(t, "eos_token_id", `192`), want: []string{config, "eos_token_id"}},
		{name: "rope is a number", files: qwen.config(t, "rope_parameters", `7`), want: []string{config, "rope_parameters"}},
		{name: "rope theta is NaN", files: qwen.config(t, "rope_parameters", `{"rope_type":"default","rope_theta":NaN}`), want: []string{config, "rope_theta"}},
		{name: "rope theta is negative", files: qwen.config(t, "rope_parameters", `{"rope_type":"default","rope_theta":-1}`), want: []string{config, "rope_theta"}},
		{name: "unknown rope", files: qwen.config(t, "rope_parameters", `{"rope_type":"longrope"}`), want: []string{config, "rope_type", "longrope"}},
		{name: "pattern with a stranger", files: nemotron.config(t, "hybrid_override_pattern", `"MEX*EM"`), want: []string{config, "hybrid_override_pattern"}},
		{name: "pattern is empty", files: nemotron.config(t, "hybrid_override_pattern", `""`), want: []string{config, "hybrid_override_pattern"}},
		{name: "pattern of a million", files: nemotron.config(t, "hybrid_override_pattern", `"`+strings.Repeat("M", 1_000_000)+`"`), want: []string{config, "hybrid_override_pattern"}},
		{name: "time step limit is NaN", files: nemotron.config(t, "time_step_limit", `[NaN, 1]`), want: []string{config, "time_step_limit"}},
		{name: "scaling factor is infinite", files: nemotron.config(t, "routed_scaling_factor", `Infinity`), want: []string{config, "routed_scaling_factor"}},
		{name: "state type", files: nemotron.config(t, "mamba_ssm_cache_dtype", `"int4"`), want: []string{config, "mamba_ssm_cache_dtype", "int4"}},
		{name: "gptq", files: qwen.config(t, "quantization_config", `{"quant_method":"gptq","bits":4}`), want: []string{config, "quant_method", "gptq"}},
		{name: "awq", files: qwen.config(t, "quantization_config", `{"quant_method":"awq"}`), want: []string{config, "quant_method", "awq"}},
		{name: "unnamed quantisation", files: qwen.config(t, "quantization", `{"bits":8,"group_size":64}`), want: []string{config, "quant"}},
		{name: "quantisation is a number", files: qwen.config(t, "quantization_config", `8`), want: []string{config, "quantization_config"}},
		{name: "hf_quant_config is garbage", files: quant(qwen, "garbage"), want: []string{"hf_quant_config.json"}},
		{name: "NVFP4", files: quantised(t, qwen, ".weight_scale", ".weight_scale_2"), want: []string{"lm_head.weight", "NVFP4"}},
		{name: "scaled FP8", files: quantised(t, qwen, ".weight_scale"), want: []string{"lm_head.weight", "FP8"}},
		{name: "block FP8", files: quantised(t, qwen, ".weight_scale_inv"), want: []string{"lm_head.weight", "block FP8"}},
		{name: "compressed-tensors", files: quantised(t, qwen, ".weight_packed", ".weight_scale"), want: []string{"lm_head.weight", "compressed-tensors"}},
	}
}

// quantised stores a matrix as bytes with companions.
func quantised(t *testing.T, base files, suffixes ...string) files {
	f := base.clone()
	s := takeApart(t, f["model.safetensors"])
	matrix := s.header["lm_head.weight"]
	if matrix == nil {
		t.Fatal("no lm_head")
	}
	matrix["dtype"], matrix["shape"] = "U8", []int{192, 128}
	for _, suffix := range suffixes {
		end := len(s.data)
		s.header["lm_head"+suffix] = map[string]any{"dtype": "F32", "shape": []int{1}, "data_offsets": []int{end, end + 4}}
		s.data = append(s.data[:end:end], 0, 0, 128, 63)
	}
	f["model.safetensors"] = s.join(t)
	return f
}

// tooLarge are configs that are within all limits and ask for more memory than there is, or for tensors that the file
// does not have.
func tooLarge(t *testing.T, qwen, nemotron files) []corrupt {
	return []corrupt{
		{name: "wide", files: qwen.config(t, "hidden_size", "262144"), want: []string{"weights take", "memory"}},
		{name: "all experts", files: qwen.config(t, "num_experts", "26000"), want: []string{"experts"}},
		{name: "largest vocabulary", files: qwen.config(t, "vocab_size", "4194304"), want: []string{"embed_tokens.weight", "[4194304 64]"}},
		{name: "largest state", files: nemotron.config(t, "ssm_state_size", "4096"), want: []string{"tensor"}},
		{name: "more layers than the file has", files: nemotron.config(t, "hybrid_override_pattern", `"MEM*EMMMMM"`).config(t, "num_hidden_layers", "10"), want: []string{"missing tensor", "layers.6."}},
	}
}

// corruptText are faults of what is read besides config and weights.
func corruptText(t *testing.T) []corrupt {
	base := golden(t, "qwen35-dense").withText(t, "demo-qwen35")
	dummy := []string{"--load-format", "dummy"}
	with := func(name, text string) files {
		f := base.clone()
		f[name] = []byte(text)
		return f
	}
	without := base.clone()
	delete(without, "tokenizer.json")
	const tokens, generation = "tokenizer.json", "generation_config.json"
	out := []corrupt{
		{name: "no tokenizer", files: without, want: []string{tokens}},
		{name: "tokenizer is empty", files: with(tokens, ""), want: []string{tokens}},
		{name: "tokenizer is garbage", files: with(tokens, "garbage"), want: []string{tokens}},
		{name: "tokenizer is cut", files: with(tokens, string(base[tokens][:len(base[tokens])/2])), want: []string{tokens}},
		{name: "tokenizer is null", files: with(tokens, "null"), want: []string{tokens}},
		{name: "tokenizer without model", files: with(tokens, "{}"), want: []string{tokens, "model"}},
		{name: "tokenizer of another kind", files: with(tokens, `{"pre_tokenizer":null,"model":{"type":"Unigram","vocab":[]}}`), want: []string{tokens}},
		{name: "deep tokenizer", files: with(tokens, `{"model":`+strings.Repeat(`{"model":`, 100_000)), want: []string{tokens}},
		{name: "tokenizer_config is garbage", files: with("tokenizer_config.json", "garbage"), want: []string{"tokenizer_config.json"}},
		{name: "generation_config is garbage", files: with(generation, "garbage"), want: []string{generation}},
		{name: "generation_config is a list", files: with(generation, "[]"), want: []string{generation}},
		{name: "temperature is text", files: with(generation, `{"temperature":"hot"}`), want: []string{generation, "temperature"}},
		{name: "temperature is negative", files: with(generation, `{"temperature":-1}`), want: []string{generation, "temperature"}},
		{name: "top_p is 1e99", files: with(generation, `{"top_p":1e99}`), want: []string{generation, "top_p"}},
		{name: "top_k is 1e18", files: with(generation, `{"top_k":1e18}`), want: []string{generation, "top_k"}},
		{name: "repetition_penalty is zero", files: with(generation, `{"repetition_penalty":0}`), want: []string{generation, "repetition_penalty"}},
		{name: "eos_token_id is text", files: with(generation, `{"eos_token_id":"</s>"}`), want: []string{generation, "eos_token_id"}},
	}
	for i := range out {
		out[i].args, out[i].text = dummy, true
	}
	return out
}
