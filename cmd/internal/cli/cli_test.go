package cli

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"reprise/kernels"
	"reprise/kernels/cpu"
	"reprise/spec"
)

func parse(args ...string) (*Model, error) {
	m := &Model{}
	fs := NewFlags("test", "usage")
	m.Register(fs)
	rest, err := Parse(fs, args)
	if err != nil {
		return m, err
	}
	return m, m.Positional(rest)
}

func TestWrongCommandLines(t *testing.T) {
	for line, words := range map[string]string{
		"--max-mdel-len 5":              "--max-model-len",
		"--tempreature 1":               "unknown flag --tempreature",
		"--max-num-seqs x":              "whole number",
		"--max-num-seqs 0":              "from 1",
		"--max-num-seqs 99999999999":    "2147483647",
		"--device tpu":                  "auto, cpu, cuda",
		"--kv-cache-dtype int4":         "one of",
		"--ssm-read-dtype float32":      "one of",
		"--ssm-rounding up":             "nearest, stochastic",
		"--tensor-parallel-size 2":      "only 1",
		"-tp 2":                         "only 1",
		"-tp=4":                         "only 1",
		"--pipeline-parallel-size 2":    "only 1",
		"--enable-lora":                 "adapters",
		"a b":                           "only one model",
		"a --model b":                   "two models",
		"--seed":                        "needs an argument",
		"--enable-prefix-caching=maybe": "invalid",
	} {
		_, err := parse(strings.Fields(line)...)
		var usage *UsageError
		if !errors.As(err, &usage) || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v, want a usage error with %q", line, err, words)
		}
	}
	for line, words := range map[string]string{
		"--gpu-memory-utilization 1.5": "(0, 1]", "--gpu-memory-utilization NaN": "(0, 1]", "--max-logprobs -2": "-1", "--max-step-ratio 1": "1.1", "--max-step-ratio NaN": "1.1", "--swap-space -1": "GiB",
		"--speculative-config {": "speculative", `--speculative-config {"method":"medusa","num_speculative_tokens":1}`: "medusa",
		`--speculative-config {"method":"mtp"}`: "num_speculative_tokens", `--speculative-config {"method":"mtp","num_speculative_tokens":8}`: "from 0 to 7",
		`--speculative-config {"method":"mtp","num_speculative_tokens":1,"typo":1}`:    "typo",
		`--speculative-config {"num_speculative_tokens":1}`:                            "method must be given",
		`--speculative-config {"method":"mtp","num_speculative_tokens":1}{}`:           "more behind",
		`--speculative-config {"method":"mtp","num_speculative_tokens":1.5}`:           "num_speculative_tokens must be a whole number, not 1.5",
		`--speculative-config {"method":"mtp","model":"x","num_speculative_tokens":1}`: "draft model",

		`--speculative-config {"method":"mtp","num_speculative_tokens":1,"draft_vocab_size":0}`:   "draft_vocab_size 0",
		`--speculative-config {"method":"ngram","num_speculative_tokens":1,"draft_vocab_size":9}`: "draft_vocab_size 9: only method mtp",
		`--speculative-config {"method":"mtp","num_speculative_tokens":1,"draft_vocab_size":"x"}`: "draft_vocab_size must be a whole number, not a string",
	} {
		m, err := parse(strings.Fields(line)...)
		if err == nil {
			_, err = m.options()
		}
		if err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v, want an error with %q", line, err, words)
		}
	}
}

func TestOptions(t *testing.T) {
	m, err := parse("--max-model-len", "32k", "--max_num_seqs", "8", "--max-num-batched-tokens", "1K", "--kv-cache-dtype", "fp8",
		"--mamba-ssm-cache-dtype=float16", "--ssm-read-dtype", "fp8", "--ssm-rounding", "stochastic", "--replayssm-buffer-len", "8", "--seed", "-1", "--swap-space", "0.5", "--max-logprobs", "-1",
		"--speculative-config", `{"method":"qwen3_5_mtp","num_speculative_tokens":3,"adaptive":false,"draft_vocab_size":32768}`, "--gpu-memory-utilization", "0.4")
	if err != nil {
		t.Fatal(err)
	}
	o, err := m.options()
	if err != nil {
		t.Fatal(err)
	}
	if o.MaxLen != 32000 || o.MaxSeqs != 8 || o.MaxTokens != 1024 || o.KVDType != kernels.F8E4M3 || o.StateDType != "float16" || o.ReadDType != "fp8" || o.Rounding != kernels.Stochastic || o.Window != 8 {
		t.Errorf("%+v", o)
	}
	if o.Seed != ^uint64(0) || o.SwapBytes != 1<<29 || o.MaxLogProbs != -1 || o.Drafts != 3 || o.DraftVocab != 32768 || !o.FixedDepth || o.DraftMethod != spec.MTPHead || o.MemoryFraction != 0.4 {
		t.Errorf("%+v", o)
	}
	m, err = parse("--max-model-len", "auto", "--replayssm-buffer-len", "auto", "--speculative-config", `{"method":"ngram","num_speculative_tokens":2,"prompt_lookup_max":4}`)
	if err != nil {
		t.Fatal(err)
	}
	if o, err = m.options(); err != nil || o.MaxLen != 0 || o.Window != 0 || o.MemoryFraction != 0 || o.MaxLogProbs != 20 || o.DraftMethod != spec.NGram || o.MaxMatch != 4 {
		t.Errorf("%+v %v", o, err)
	}
}

// recipesSeen are command lines in the manner of published ones; none may fail, and each flag without effect is named.
var recipesSeen = map[string][]string{
	"nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-FP8 --trust-remote-code --max-num-seqs 8 --tensor-parallel-size 1 --max-model-len 262144 --enable-auto-tool-choice " +
		"--tool-call-parser qwen3_coder --reasoning-parser-plugin nano_v3_reasoning_parser.py --reasoning-parser nano_v3 --kv-cache-dtype fp8 --async-scheduling": {
		"--trust-remote-code", "--enable-auto-tool-choice", "--tool-call-parser", "--reasoning-parser-plugin", "--reasoning-parser has", "--async-scheduling"},
	"Qwen/Qwen3.5-35B-A3B --port-x 1": nil,
	"Qwen/Qwen3.5-4B -tp 1 --language-model-only --mm-encoder-tp-mode data --mm-processor-cache-type shm --enable-prefix-caching --mamba-cache-mode align " +
		`--hf-overrides {"a":1} --compilation-config.cudagraph_mode FULL_DECODE_ONLY -O3 --no-enable-chunked-prefill --disable-log-requests --uvicorn-log-level info`: {
		"--language-model-only", "--mm-encoder-tp-mode", "--mm-processor-cache-type", "--enable-prefix-caching", "--mamba-cache-mode", "--hf-overrides", "--compilation-config",
		"--optimization-level", "--no-enable-chunked-prefill", "--disable-log-requests", "--uvicorn-log-level"},
	"m --enforce-eager --dtype bfloat16 --quantization modelopt --download-dir /x --revision main --distributed-executor-backend mp --limit-mm-per-prompt {} " +
		"--attention-backend FLASHINFER --generation-config vllm --swap-space 0 --no-enable-prefix-caching --load-format safetensors --max-cudagraph-capture-size 512": {
		"--enforce-eager", "--quantization", "--download-dir", "--revision", "--distributed-executor-backend", "--limit-mm-per-prompt", "--attention-backend", "--max-cudagraph-capture-size"},
}

func TestRecipes(t *testing.T) {
	for line, want := range recipesSeen {
		m, err := parse(strings.Fields(line)...)
		if want == nil {
			if err == nil {
				t.Errorf("%s was accepted", line)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", line, err)
			continue
		}
		warnings := m.Warnings()
		if len(warnings) != len(want) {
			t.Errorf("%d warnings, want %d: %q", len(warnings), len(want), warnings)
		}
		all := strings.Join(warnings, "\n")
		for _, flag := range want {
			if !strings.Contains(all, flag) {
				t.Errorf("no warning about %s in %q", flag, warnings)
			}
		}
	}
}

func TestDTypeWarning(t *testing.T) {
	dev, err := cpu.Open(cpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	for dtype, warns := range map[string]bool{"auto": false, "float32": false, "float": false, "bfloat16": true, "half": true} {
		m, err := parse("--dtype", dtype)
		if err != nil {
			t.Fatal(err)
		}
		if w := m.dtypeWarning(dev); (len(w) == 1) != warns {
			t.Errorf("--dtype %s on the CPU: %q", dtype, w)
		}
	}
}

func TestEveryFlagSaysItsDefault(t *testing.T) {
	fs := NewFlags("test", "usage")
	(&Model{}).Register(fs)
	fs.VisitAll(func(f *pflag.Flag) {
		stated := strings.Contains(f.Usage, "default") || f.DefValue != "" && f.DefValue != "false" || f.Value.Type() == "bool"
		if !f.Hidden && !stated {
			t.Errorf("--%s does not say its default", f.Name)
		}
	})
}

func load(args ...string) error {
	m, err := parse(args...)
	if err != nil {
		return err
	}
	l, err := m.Load(nil)
	if err != nil {
		return err
	}
	return l.Close()
}

func TestLoadErrorsAreOneLine(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	bad := t.TempDir()
	if err := os.WriteFile(filepath.Join(bad, "config.json"), []byte(`{"model_type":"bert"}`), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		words string
		args  []string
	}{
		{"no such folder", []string{"/no/such"}}, {"no such folder", []string{"Qwen/Qwen3.5-4B"}}, {"not a folder", []string{file}},
		{"config.json", []string{dir}}, {"tokenizer.json", []string{bad}}, {"bert", []string{bad, "--skip-tokenizer-init"}},
		{"without CUDA", []string{"--device", "cuda"}}, {"--chat-template", []string{"--chat-template", "/no/such"}},
		{"--chat-template", []string{"--chat-template", "{% if %}"}}, {"--override-generation-config", []string{"--override-generation-config", "{"}},
		{"temperature", []string{"--override-generation-config", `{"temperature":5}`}}, {"object", []string{"--default-chat-template-kwargs", "5"}},
		{"--replayssm-buffer-len", []string{"--replayssm-buffer-len", "99999"}},
		{"smaller than the state", []string{"--mamba-ssm-cache-dtype", "fp8", "--ssm-read-dtype", "float16"}},
		{"--ssm-rounding stochastic", []string{"--ssm-rounding", "stochastic"}},
	} {
		err := load(c.args...)
		if err == nil || !strings.Contains(err.Error(), c.words) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v: %v, want a line about %q", c.args, err, c.words)
		}
	}
}

func TestLoadDemo(t *testing.T) {
	m, err := parse("--max-model-len", "256", "--max-num-seqs", "2", "--override-generation-config", `{"top_k":7}`, "--default-chat-template-kwargs", `{"enable_thinking":true}`)
	if err != nil {
		t.Fatal(err)
	}
	l, err := m.Load(nil)
	if err != nil {
		t.Skip(err) // built without the demo models
	}
	defer l.Close()
	if l.defaults.TopK != 7 || l.defaults.Temperature != 0.7 || l.defaults.TopP != 0.95 || l.Tokenizer == nil || l.Template == nil {
		t.Errorf("%+v", l.defaults)
	}
	if eos := l.Engine.Limits().EOS; len(eos) != 2 {
		t.Errorf("end-of-sequence ids %v, want two", eos)
	}
	call, err := l.API(nil).Chat([]byte(`{"messages":[{"role":"user","content":"hi"}],"max_tokens":3}`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := call.Answer(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestLoadLines(t *testing.T) {
	var out strings.Builder
	now := time.Unix(0, 0)
	say := loadLines(&out, func() time.Time { return now })
	for range 10 {
		now = now.Add(time.Second)
		say(5e8, 1e9)
	}
	if got := strings.Count(out.String(), "loading: 0.5 of 1.0 GB"); got != 2 {
		t.Errorf("%q", out.String())
	}
	out.Reset()
	say = loadLines(&out, func() time.Time { return now })
	if say(1, 1); out.Len() > 0 {
		t.Error("a fast load is not quiet")
	}
}

func TestOpenSaysWhatAFileIsNot(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.gz")
	if err := os.WriteFile(path, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path); err == nil || !strings.Contains(err.Error(), path+": no gzip data") {
		t.Errorf("%v", err)
	}
}
