package cli

import (
	"log/slog"
	"math"
	"os"
	"strings"

	"reprise/engine"
	"reprise/internal/plainjson"
	"reprise/kernels"
	"reprise/spec"
)

// Logger writes structured lines to standard error.
func (m *Model) Logger() *slog.Logger {
	level := map[string]slog.Level{
		"debug": slog.LevelDebug, "info": slog.LevelInfo, "warning": slog.LevelWarn, "warn": slog.LevelWarn, "error": slog.LevelError,
	}[m.LogLevel]
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
}

// dtypes of the KV cache.
var dtypes = map[string]kernels.DType{
	"auto": kernels.Invalid, "float32": kernels.F32, "bfloat16": kernels.BF16, "fp8": kernels.F8E4M3, "fp8_e4m3": kernels.F8E4M3,
}

// options translates the flags; end-of-sequence ids are added when the model is known.
func (m *Model) options() (engine.Options, error) {
	o := engine.Options{
		MaxLen: m.maxLen, MaxSeqs: m.maxSeqs, MaxTokens: m.maxTokens, PageTokens: m.blockSize, Window: m.window,
		KVBlocks: m.kvBlocks, StateBlocks: m.stateBlocks, MaxLogProbs: m.maxLogProbs, Seed: uint64(m.seed),
		KVDType: dtypes[m.kvDType], StateDType: m.stateDType, ReadDType: m.readDType, Log: m.Logger(),
		StepRatio: m.stepRatio,
	}
	if m.rounding == kernels.Stochastic.String() {
		o.Rounding = kernels.Stochastic
	}
	if m.set.Changed("gpu-memory-utilization") {
		o.MemoryFraction = m.memory
	}
	o.SwapBytes = int64(m.swap * (1 << 30))
	switch {
	case !(m.memory > 0 && m.memory <= 1):
		return o, Usagef("--gpu-memory-utilization %g is outside of (0, 1]", m.memory)
	case m.stepRatio != 0 && !(m.stepRatio >= 1.1 && m.stepRatio <= 1000):
		return o, Usagef("--max-step-ratio %g must be 0 or from 1.1 to 1000", m.stepRatio)
	case !(m.swap >= 0 && m.swap < 1<<20):
		return o, Usagef("--swap-space %g is outside of [0, 1048576] GiB", m.swap)
	case m.maxLogProbs < -1 || m.maxLogProbs > math.MaxInt32:
		return o, Usagef("--max-logprobs %d must be -1 or more", m.maxLogProbs)
	}
	return o, m.speculation(&o)
}

// OptionsWith are the options with some flags set otherwise, by name: for programs that run a model in several ways.
func (m *Model) OptionsWith(flags map[string]string) (engine.Options, error) {
	for name, text := range flags {
		v := m.set.Lookup(name).Value
		old := v.String()
		if err := v.Set(text); err != nil {
			return engine.Options{}, Usagef("--%s %q: %v", name, text, err)
		}
		defer func() { _ = v.Set(old) }() // what it was before
	}
	return m.options()
}

// speculativeConfig is the JSON of --speculative-config.
type speculativeConfig struct {
	Method   string `json:"method"`
	Tokens   *int   `json:"num_speculative_tokens"`
	Model    string `json:"model"`
	Adaptive *bool  `json:"adaptive"`
	Vocab    *int   `json:"draft_vocab_size"`
	MinMatch int    `json:"prompt_lookup_min"`
	MaxMatch int    `json:"prompt_lookup_max"`
}

func (m *Model) speculation(o *engine.Options) error {
	const flag = "--speculative-config"
	if m.speculative == "" || m.speculative == "null" {
		return nil
	}
	var c speculativeConfig
	if err := plainjson.Decode([]byte(m.speculative), &c, true); err != nil {
		return Usagef("%s: %v", flag, err)
	}
	switch {
	case c.Method == "":
		return Usagef("%s: method must be given (supported: mtp, ngram)", flag)
	case c.Method == "ngram":
		o.DraftMethod = spec.NGram
	case c.Method == "mtp" || strings.HasSuffix(c.Method, "_mtp"): // vLLM has a name for each family
		o.DraftMethod = spec.MTPHead
	default:
		return Usagef("%s: method %q is not supported (supported: mtp, ngram)", flag, c.Method)
	}
	if c.Model != "" {
		return Usagef("%s: a draft model is not supported; mtp is part of the checkpoint", flag)
	}
	if c.Tokens == nil || *c.Tokens < 0 || *c.Tokens > spec.MaxDepth {
		return Usagef("%s: num_speculative_tokens must be given, from 0 to %d", flag, spec.MaxDepth)
	}
	if c.MinMatch < 0 || c.MaxMatch < 0 {
		return Usagef("%s: prompt_lookup_min and prompt_lookup_max must not be negative", flag)
	}
	if c.Vocab != nil && o.DraftMethod != spec.MTPHead {
		return Usagef("%s: draft_vocab_size %d: only method mtp can draft among fewer tokens than all", flag, *c.Vocab)
	}
	if c.Vocab != nil && (*c.Vocab < 1 || *c.Vocab > math.MaxInt32) {
		return Usagef("%s: draft_vocab_size %d: must be 1 or more tokens", flag, *c.Vocab)
	}
	if c.Vocab != nil {
		o.DraftVocab = *c.Vocab
	}
	o.Drafts, o.MinMatch, o.MaxMatch = *c.Tokens, c.MinMatch, c.MaxMatch
	o.FixedDepth = c.Adaptive != nil && !*c.Adaptive
	return nil
}
