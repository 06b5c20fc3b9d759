package engine

import (
	"log/slog"
	"time"

	"reprise/kernels"
	"reprise/spec"
)

// Options configure an engine; every zero value has the documented default.
type Options struct {
	MaxLen         int              // --max-model-len; 0 = the model's
	MaxSeqs        int              // --max-num-seqs; 0 = 64 on the CPU, 256 otherwise
	MaxTokens      int              // --max-num-batched-tokens; 0 = 2048
	StepRatio      float64          // --max-step-ratio: bound of a step with prompts, in steps without; 0 = none
	PageTokens     int              // --block-size; 0 = 16
	KVDType        kernels.DType    // --kv-cache-dtype; Invalid = auto
	StateDType     string           // --mamba-ssm-cache-dtype: a kernels.StateFormat; "" and auto = the model's
	ReadDType      string           // --ssm-read-dtype: a smaller kernels.StateFormat; "" and same = no copy to read
	Rounding       kernels.Rounding // --ssm-rounding
	Window         int              // --replayssm-buffer-len; 0 = 16 for T <= 4, else 32
	KVBlocks       int              // --num-kv-blocks; 0 = by memory
	StateBlocks    int              // --num-state-blocks; 0 = one a sequence
	Drafts         int              // num_speculative_tokens: drafts a step at most; 0 = plain decoding
	DraftMethod    spec.Method      // "method" of --speculative-config; "" = mtp
	DraftVocab     int              // "draft_vocab_size": the head drafts among the first so many tokens; 0 = all
	FixedDepth     bool             // "adaptive": false: always Drafts, whatever they gain
	Synthetic      *spec.Synthetic  // accept drafts by a coin: only to measure steps on made-up weights; nil = never
	Declared       bool             // requests may declare tokens to be computed; the cache begins with made-up numbers
	MinMatch       int              // "prompt_lookup_min" of method ngram; 0 = 2
	MaxMatch       int              // "prompt_lookup_max" of method ngram; 0 = max(5, MinMatch)
	MaxLogProbs    int              // --max-logprobs; -1 = the vocabulary, 0 = only the token's own
	MaxQueue       int              // waiting requests before ErrQueueFull; 0 = 4096
	StepTimeout    time.Duration    // a step that takes longer is an error of Err; 0 = five minutes on a GPU, else none
	MemoryFraction float64          // --gpu-memory-utilization: share of the free memory that may be taken; 0 = 0.5 on the CPU, else 0.9
	SwapBytes      int64            // host memory for swapped-out sequences; 0 = a quarter of the free memory
	Seed           uint64           // of requests that bring none
	EOS            []int32          // end-of-sequence ids besides the model's
	Log            *slog.Logger     // nil = silent
}

// headDrafts reports whether the model's own head drafts.
func (o Options) headDrafts() bool { return o.Drafts > 0 && o.DraftMethod == spec.MTPHead }

func (o Options) withDefaults(dev kernels.Device, vocab int) Options {
	cpu := dev.Activations() == kernels.F32
	set := func(v *int, def int) {
		if *v == 0 {
			*v = def
		}
	}
	seqs := defaultSeqs
	if cpu {
		seqs = defaultSeqsCPU
	}
	set(&o.MaxSeqs, seqs)
	set(&o.MaxTokens, defaultTokens)
	set(&o.PageTokens, defaultPageCPU)
	set(&o.MaxQueue, defaultQueue)
	set(&o.MinMatch, defaultMinMatch)
	set(&o.MaxMatch, max(defaultMaxMatch, o.MinMatch))
	if o.DraftMethod == "" {
		o.DraftMethod = spec.MTPHead
	}
	if o.MaxLogProbs < 0 {
		o.MaxLogProbs = vocab
	}
	o.MaxLogProbs = min(o.MaxLogProbs, vocab)
	if o.MemoryFraction == 0 {
		o.MemoryFraction = 0.9
		if cpu {
			o.MemoryFraction = 0.5
		}
	}
	if o.StepTimeout == 0 && dev.Graphs() {
		o.StepTimeout = defaultStepTimeout
	}
	if o.SwapBytes == 0 {
		o.SwapBytes = dev.MemoryFree() / 4
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}
