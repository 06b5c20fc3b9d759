package engine

import (
	"fmt"
	"strings"

	"reprise/attention"
	"reprise/kernels"
	"reprise/model"
	"reprise/sampler"
	"reprise/ssm"
)

// Limits asked for in Options that are 0 take these.
const (
	defaultSeqsCPU   = 64
	defaultSeqs      = 256
	defaultTokens    = 2048
	defaultPageCPU   = 16
	defaultTile      = 64
	defaultQueue     = 4096
	defaultWindow    = 16 // records, up to T = 3
	defaultWindowT   = 32 // records, above
	largestLen       = 1 << 22
	largestSeqs      = 1 << 14
	largestTokens    = 1 << 20
	largestPoolCount = 1 << 30
)

// Plan is where the memory goes. It is computed once, before anything is allocated, from the same layout functions that
// the pools allocate by.
type Plan struct {
	MaxLen, MaxSeqs, MaxTokens int
	Window                     kernels.Window
	SSM                        ssm.PoolConfig
	KV                         attention.PoolConfig
	Sampler                    sampler.Config
	Warnings                   []string

	Weights, Activations, StateBytes, RingBytes, KVBytes, SamplerBytes int64
}

// makePlan sizes the pools for a model. free is the memory that may still be taken.
func makePlan(config model.Config, o Options, act kernels.DType, free int64) (*Plan, error) {
	spec := config.Spec()
	p := &Plan{MaxLen: o.MaxLen, MaxSeqs: o.MaxSeqs, MaxTokens: o.MaxTokens}
	p.Weights, p.Activations = tensorBytes(config.Want()), config.ActivationBytes(act, o.MaxTokens)
	if err := p.limits(spec, o); err != nil {
		return nil, err
	}
	p.SSM = ssm.PoolConfig{
		Mamba2: spec.Mamba2, Mamba2Layers: spec.Mamba2Layers, Delta: spec.Delta, DeltaLayers: spec.DeltaLayers,
		Window: p.Window, Activations: act, StateDType: stateDType(spec, o),
	}
	p.KV = attention.PoolConfig{
		Layers: spec.AttentionLayers, KVHeads: spec.KVHeads, HeadDim: spec.HeadDim,
		DType: kvDType(spec, o, act), PageTokens: o.PageTokens,
	}
	if spec.MTP != nil && o.Drafts > 0 {
		p.KV.MTPLayers = spec.MTP.AttentionLayers
	}
	p.Sampler = sampler.Config{
		Slots: p.MaxSeqs + 1, Vocab: spec.Vocab, Drafts: o.Drafts,
		MaxTop:  max(o.MaxLogProbs, 1), // even a request for none needs the token's own
		MaxRows: p.MaxTokens, TileRows: min(defaultTile, p.MaxTokens),
	}
	p.SamplerBytes = p.Sampler.Bytes()
	budget := int64(float64(free)*o.MemoryFraction) - p.Weights - p.Activations - p.SamplerBytes
	if err := p.split(o, budget); err != nil {
		return nil, err
	}
	p.Sampler.Slots = p.MaxSeqs + 1 // fewer sequences may have been left
	p.SamplerBytes = p.Sampler.Bytes()
	return p, p.SSM.Validate()
}

// limits fills in and bounds the counts that do not depend on memory.
func (p *Plan) limits(spec model.Spec, o Options) error {
	for _, c := range []struct {
		flag     string
		n, limit int
	}{
		{"--max-model-len", o.MaxLen, largestLen},
		{"--max-num-seqs", o.MaxSeqs, largestSeqs},
		{"--max-num-batched-tokens", o.MaxTokens, largestTokens},
		{"--block-size", o.PageTokens, 1 << 12},
		{"--num-kv-blocks", o.KVBlocks, largestPoolCount},
		{"--num-state-blocks", o.StateBlocks, largestPoolCount},
		{"--replayssm-buffer-len", o.Window, 1 << 12},
	} {
		if c.n < 0 || c.n > c.limit {
			return fmt.Errorf("%s %d is outside of [1, %d]", c.flag, c.n, c.limit)
		}
	}
	if p.MaxLen == 0 {
		p.MaxLen = spec.MaxLen
	} else if p.MaxLen > spec.MaxLen {
		p.warn("--max-model-len %d is more than the %d positions the model was made for", p.MaxLen, spec.MaxLen)
	}
	p.Window = kernels.Window{L: o.Window, T: 1 + o.Drafts}
	if p.Window.L == 0 {
		p.Window.L = defaultWindow
		if p.Window.T > 3 {
			p.Window.L = defaultWindowT
		}
	}
	return nil
}

// split divides budget bytes between state blocks and KV pages: first every sequence gets its state, then pages for
// as many full contexts as fit.
func (p *Plan) split(o Options, budget int64) error {
	per := p.SSM.BlockBytes() + p.SSM.SlotBytes()
	if seqs := int(budget / 2 / max(per, 1)); seqs < p.MaxSeqs && o.StateBlocks == 0 {
		if seqs < 1 {
			return fmt.Errorf("%s are left for caches, and the state of one sequence alone takes %s", bytesText(budget), bytesText(per))
		}
		p.warn("--max-num-seqs lowered from %d to %d: a sequence's state takes %s and %s are left", p.MaxSeqs, seqs, bytesText(per), bytesText(budget))
		p.MaxSeqs = seqs
	}
	blocks := o.StateBlocks
	if blocks == 0 {
		blocks = p.MaxSeqs
	}
	p.SSM.Slots, p.SSM.Blocks = p.MaxSeqs+1, blocks+1
	p.StateBytes = int64(p.SSM.Blocks) * p.SSM.BlockBytes()
	p.RingBytes = int64(p.SSM.Slots) * p.SSM.SlotBytes()
	return p.pages(o, budget-p.StateBytes-p.RingBytes)
}

func (p *Plan) pages(o Options, budget int64) error {
	tokens, page := o.PageTokens, p.KV.PageBytes()
	full := (p.MaxLen + p.Window.T + tokens - 1) / tokens // of one longest sequence
	p.KV.Pages = o.KVBlocks
	if o.KVBlocks == 0 {
		p.KV.Pages = int(min(int64(full)*int64(p.MaxSeqs), max(budget, 0)/max(page, 1)))
	}
	if p.KV.Pages < 1 {
		return fmt.Errorf("no memory is left for a KV page of %s", bytesText(page))
	}
	if p.KV.Pages < full {
		fits := p.KV.Pages*tokens - p.Window.T
		if fits < 1 {
			return fmt.Errorf("%d KV pages of %d tokens hold no sequence", p.KV.Pages, tokens)
		}
		p.warn("context limited to %d tokens by %d KV pages of %d tokens", fits, p.KV.Pages, tokens)
		p.MaxLen = fits
	}
	p.KV.Pages++ // the null page
	p.KV.Slots, p.KV.MaxLen = p.MaxSeqs+1, p.MaxLen+p.Window.T
	p.KVBytes = int64(p.KV.Pages) * page
	return nil
}

func (p *Plan) warn(format string, a ...any) {
	p.Warnings = append(p.Warnings, fmt.Sprintf(format, a...))
}

func stateDType(spec model.Spec, o Options) kernels.DType {
	if o.StateDType != kernels.Invalid {
		return o.StateDType
	}
	return spec.StateDType
}

// kvDType resolves --kv-cache-dtype auto: FP8 where the checkpoint declares an FP8 cache, else the activations' type.
func kvDType(spec model.Spec, o Options, act kernels.DType) kernels.DType {
	switch {
	case o.KVDType != kernels.Invalid:
		return o.KVDType
	case spec.FP8KV:
		return kernels.F8E4M3
	}
	return act
}

// String is the table that is printed at start.
func (p *Plan) String() string {
	var b strings.Builder
	line := func(name string, bytes int64, format string, a ...any) {
		fmt.Fprintf(&b, "  %-14s %10s  %s\n", name, bytesText(bytes), fmt.Sprintf(format, a...))
	}
	fmt.Fprintf(&b, "context %d tokens, %d sequences, %d tokens a step, replay window L=%d T=%d\n", p.MaxLen, p.MaxSeqs, p.MaxTokens, p.Window.L, p.Window.T)
	line("weights", p.Weights, "")
	line("activations", p.Activations, "")
	line("state blocks", p.StateBytes, "%d x %s, %s", p.SSM.Blocks-1, bytesText(p.SSM.BlockBytes()), p.SSM.StateDType)
	line("replay rings", p.RingBytes, "%d x %s", p.SSM.Slots-1, bytesText(p.SSM.SlotBytes()))
	line("KV pages", p.KVBytes, "%d x %d tokens x %s, %s", p.KV.Pages-1, p.KV.PageTokens, bytesText(p.KV.PageBytes()/int64(p.KV.PageTokens)), p.KV.DType)
	line("sampler", p.SamplerBytes, "%d slots, %d log probabilities a token", p.Sampler.Slots-1, p.Sampler.MaxTop)
	return b.String()
}

// bytesText is a size as a person reads it.
func bytesText(n int64) string {
	switch {
	case n >= 10<<30 || n <= -10<<30:
		return fmt.Sprintf("%.1f GB", float64(n)/1e9)
	case n >= 10<<20 || n <= -10<<20:
		return fmt.Sprintf("%.1f MB", float64(n)/1e6)
	case n >= 10<<10 || n <= -10<<10:
		return fmt.Sprintf("%.1f kB", float64(n)/1e3)
	}
	return fmt.Sprintf("%d B", n)
}
