package cli

import (
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"reprise/demo"
	"reprise/engine"
)

// Model are the flags that say which model runs how: those of vLLM where it has them.
type Model struct {
	// Change sets options that no flag of all programs has; nil = none.
	Change func(*engine.Options) error

	Model       string
	ServedNames []string
	LogLevel    string
	Interactive bool // readers wait for every token: --max-step-ratio is 2 by default; set before Register

	device, dtype, loadFormat         string
	maxLen, maxSeqs, maxTokens        int
	blockSize, window                 int
	kvBlocks, stateBlocks             int
	memory, swap, stepRatio           float64
	kvDType, stateDType               string
	readDType, rounding               string
	speculative                       string
	prefixCaching                     bool
	skipTokenizer                     bool
	tokenizer, chatTemplate           string
	templateKwargs                    string
	generationConfig, generationExtra string
	seed                              int64
	maxLogProbs                       int

	set     *pflag.FlagSet
	recipes recipes
}

// Register adds the flags to a set.
func (m *Model) Register(fs *pflag.FlagSet) {
	m.set = fs
	def := ""
	if names := demo.Names(); len(names) > 0 {
		def = names[0]
	}
	fs.StringVar(&m.Model, "model", def, "model folder, or a built-in model: "+strings.Join(demo.Names(), ", "))
	fs.StringArrayVar(&m.ServedNames, "served-model-name", nil, "name that requests use (default: what --model says); may be given several times")
	m.choice(fs, &m.device, "device", "auto", "where the model runs; auto takes a GPU if there is one", "auto", "cpu", "cuda")
	m.choice(fs, &m.dtype, "dtype", "auto", "type of activations; always float32 on the CPU", "auto", "bfloat16", "float32", "float16", "half", "float")
	m.count(fs, &m.maxLen, "max-model-len", "tokens of prompt and answer together (default: the model's, less where memory is short)")
	m.count(fs, &m.maxSeqs, "max-num-seqs", "sequences that run at once (default: 64 on the CPU, 256 on a GPU, fewer where memory is short)")
	m.count(fs, &m.maxTokens, "max-num-batched-tokens", "tokens of one step; longer prompts are computed in chunks (default: 2048)")
	ratio := 0.0
	if m.Interactive {
		ratio = 2
	}
	fs.Float64Var(&m.stepRatio, "max-step-ratio", ratio, "prompts may make a step, and so the wait of running requests, so many times as long as it is without; 0 = no bound")
	fs.Float64Var(&m.memory, "gpu-memory-utilization", 0.9, "share of the free memory that weights and caches may take (default on the CPU: 0.5)")
	m.count(fs, &m.blockSize, "block-size", "tokens of a KV page (default: 16)")
	m.choice(fs, &m.kvDType, "kv-cache-dtype", "auto", "type of the KV cache; auto: fp8 if the checkpoint declares it, else bfloat16 on a GPU and float32 on the CPU", "auto", "fp8", "fp8_e4m3", "bfloat16", "float32")
	m.choice(fs, &m.stateDType, "mamba-ssm-cache-dtype", "auto", "type of the recurrent states that are carried on; auto: what the checkpoint says, else float32", "auto", "float32", "float16", "bfloat16", "fp8", "nvfp4")
	m.choice(fs, &m.readDType, "ssm-read-dtype", "same", "type of a second, smaller copy of the states that most steps read; same: there is none", "same", "float16", "bfloat16", "fp8", "nvfp4")
	m.choice(fs, &m.rounding, "ssm-rounding", "nearest", "rounding of the states that are carried on, where they are not float32; copies to read are rounded to nearest", "nearest", "stochastic")
	m.count(fs, &m.window, "replayssm-buffer-len", "tokens that are replayed on top of a recurrent state (default: 16, or 32 with 4 drafts and more)")
	m.count(fs, &m.kvBlocks, "num-kv-blocks", "KV pages (default: by memory)")
	m.count(fs, &m.stateBlocks, "num-state-blocks", "recurrent states (default: one a sequence)")
	fs.StringVar(&m.speculative, "speculative-config", "", `speculative decoding, as JSON: {"method":"mtp","num_speculative_tokens":3}, with "adaptive":false for a fixed depth, "draft_vocab_size":65536 to draft among the first tokens only (default: none)`)
	fs.BoolVar(&m.prefixCaching, "enable-prefix-caching", false, "reuse what prompts have in common (not available yet)")
	m.choice(fs, &m.loadFormat, "load-format", "auto", "auto reads the checkpoint, dummy makes weights up", "auto", "dummy", "safetensors", "fastsafetensors", "runai_streamer")
	fs.BoolVar(&m.skipTokenizer, "skip-tokenizer-init", false, "token ids in, token ids out: no tokenizer is loaded")
	fs.StringVar(&m.tokenizer, "tokenizer", "", "folder of the tokenizer (default: the model's)")
	fs.StringVar(&m.chatTemplate, "chat-template", "", "file of the chat template (default: the model's)")
	fs.StringVar(&m.templateKwargs, "default-chat-template-kwargs", "", `variables of the chat template, as JSON: {"enable_thinking":true} (default: none)`)
	fs.StringVar(&m.generationConfig, "generation-config", "auto", "auto: sampling defaults are those of the model's generation_config.json; vllm: neutral ones")
	fs.StringVar(&m.generationExtra, "override-generation-config", "", `sampling defaults, as JSON: {"temperature":0.6} (default: none)`)
	fs.Int64Var(&m.seed, "seed", 0, "of requests that bring none, and of made-up weights")
	fs.IntVar(&m.maxLogProbs, "max-logprobs", 20, "log probabilities a token that requests may ask for; -1 = the whole vocabulary")
	fs.Float64Var(&m.swap, "swap-space", 0, "GiB of host memory for sequences that make room for others (default: a quarter of the free memory)")
	m.choice(fs, &m.LogLevel, "log-level", "warning", "least level of log lines; info logs a line a request", "debug", "info", "warning", "warn", "error")
	m.recipes.register(fs)
}

func (m *Model) count(fs *pflag.FlagSet, to *int, name, usage string) {
	fs.VarPF(&count{to, true}, name, "", usage).DefValue = ""
}

func (m *Model) choice(fs *pflag.FlagSet, to *string, name, def, usage string, allowed ...string) {
	*to = def
	fs.Var(&oneOf{to, allowed}, name, usage)
}

// Dummy reports whether the weights are made up.
func (m *Model) Dummy() bool { return m.loadFormat == "dummy" }

// Positional takes what Parse left over: at most the model.
func (m *Model) Positional(args []string) error {
	switch {
	case len(args) > 1:
		return Usagef("unexpected argument %q: only one model can be named", args[1])
	case len(args) == 1 && m.set.Changed("model") && m.Model != args[0]:
		return Usagef("two models are named: %q and --model %q", args[0], m.Model)
	case len(args) == 1:
		m.Model = args[0]
	}
	if slices.Contains(m.ServedNames, "") {
		return Usagef("--served-model-name must not be empty")
	}
	if m.Model == "" {
		return Usagef("no model: this program was built without the demo models, so --model FOLDER is needed")
	}
	return nil
}

// Names are the names that requests may use.
func (m *Model) Names() []string {
	if len(m.ServedNames) > 0 {
		return m.ServedNames
	}
	return []string{m.Model}
}

// Warnings say, a line each, what becomes of flags that were accepted without doing what they say elsewhere.
func (m *Model) Warnings() []string {
	out := m.recipes.warnings(m.set)
	if m.prefixCaching {
		out = append(out, "--enable-prefix-caching: not available yet, every prompt is computed as a whole")
	}
	return out
}
