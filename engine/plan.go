package engine

import (
	"fmt"
	"strings"
	"time"

	"reprise/attention"
	"reprise/kernels"
	"reprise/model"
	"reprise/sampler"
	"reprise/spec"
	"reprise/ssm"
)

// Limits asked for in Options that are 0 take these.
const (
	defaultSeqsCPU     = 64
	defaultSeqs        = 256
	defaultTokens      = 2048
	defaultPageCPU     = 16
	tileCPU            = 64  // rows of logits at once: they stay in a cache
	tile               = 256 // the head's weights are read once for so many,
	tileMost           = 512 // or for so many where steps sample as many: 7 % less time a row (H200, 248,320 tokens)
	defaultQueue       = 4096
	defaultStepTimeout = 5 * time.Minute
	defaultWindow      = 16 // records, up to T = 4
	defaultWindowT     = 32 // records, above
	defaultMinMatch    = 2  // tokens of a look-up
	defaultMaxMatch    = 5
	largestLen         = 1 << 22
	largestSeqs        = 1 << 14
	largestTokens      = 1 << 20
	largestPoolCount   = 1 << 30
)

// Plan is where the memory goes. It is computed once, before anything is allocated, from the same layout functions that
// the pools allocate by.
type Plan struct {
	MaxLen, MaxSeqs, MaxTokens int
	Window                     kernels.Window
	DraftVocab                 int // drafts of the model's head are among the first so many tokens
	SSM                        ssm.PoolConfig
	KV                         attention.PoolConfig
	Sampler                    sampler.Config
	Warnings                   []string
	Graphs                     GraphPlan

	Weights, Activations, StateBytes, ScratchBytes, RingBytes, KVBytes, SamplerBytes, DraftBytes int64

	Speculation Speculation
}

// Footprint is what one sequence takes of the caches.
type Footprint struct {
	State  int64 // checkpoints of all layers, both copies where there are two
	Replay int64 // rings of all layers
	Token  int64 // KV of a token in all layers
	Most   int   // sequences that run at once
}

// Footprint is known when the plan is.
func (p *Plan) Footprint() Footprint {
	return Footprint{p.SSM.BlockBytes(), p.SSM.SlotBytes(), p.KV.PageBytes() / int64(p.KV.PageTokens), p.MaxSeqs}
}

// longest is how many sequences of the whole context the KV pages hold.
func (p *Plan) longest() int {
	return min(p.MaxSeqs, p.SSM.Blocks-1, (p.KV.Pages-1)/max(p.KV.TableStride(), 1))
}

// Speculation is what drafts add to a plan of the same L. All but the drafter's own memory (Plan.DraftBytes) is part of
// other entries.
type Speculation struct {
	SlotBytes   int64 // of the rings of each slot: T-1 records and convolution rows a layer
	HeadWeights int64
	HeadKV      int64 // a token's keys and values in the caches of the drafting head
}

// GraphPlan says which steps are captured, and what that cost.
type GraphPlan struct {
	Rows, T []int
	Count   int // graphs: two a step, and one for each depth of drafts behind it
	Bytes   int64
	Took    time.Duration
}

// makePlan sizes the pools for a model. free is the memory that may still be taken.
func makePlan(config model.Config, o Options, act kernels.DType, free int64) (*Plan, error) {
	shape := config.Spec()
	p := &Plan{MaxLen: o.MaxLen, MaxSeqs: o.MaxSeqs, MaxTokens: o.MaxTokens}
	p.Weights, p.Activations = tensorBytes(wanted(config, o)), config.ActivationBytes(act, o.MaxTokens)
	if err := p.limits(shape, o); err != nil {
		return nil, err
	}
	if err := p.caches(shape, o, act); err != nil {
		return nil, err
	}
	if err := p.drafting(shape, o); err != nil {
		return nil, err
	}
	p.Speculation = p.added(config, o)
	p.Sampler = sampler.Config{
		Slots: p.MaxSeqs + 1, Vocab: shape.Vocab, Drafts: o.Drafts,
		MaxTop:  max(o.MaxLogProbs, 1), // even a request for none needs the token's own
		MaxRows: p.MaxTokens, TileRows: min(p.tileRows(act), p.MaxTokens),
	}
	p.SamplerBytes = p.Sampler.Bytes()
	p.DraftBytes = p.draftBytes(o)
	allowed := int64(float64(free) * o.MemoryFraction)
	budget := allowed - p.Weights - p.Activations - p.SamplerBytes - p.DraftBytes
	if budget <= 0 {
		return nil, fmt.Errorf("the model does not fit: weights take %s, activations %s, sampler and drafter %s, and %s of memory may be taken (--gpu-memory-utilization %g)",
			bytesText(p.Weights), bytesText(p.Activations), bytesText(p.SamplerBytes+p.DraftBytes), bytesText(allowed), o.MemoryFraction)
	}
	if err := p.split(o, budget); err != nil {
		return nil, err
	}
	p.Sampler.Slots = p.MaxSeqs + 1 // fewer sequences may have been left
	p.SamplerBytes, p.DraftBytes = p.Sampler.Bytes(), p.draftBytes(o)
	return p, p.SSM.Validate()
}

// caches says what a sequence's states and pages are; how many there are follows from the memory.
func (p *Plan) caches(shape model.Spec, o Options, act kernels.DType) error {
	state, err := precision(shape, o)
	if err != nil {
		return err
	}
	p.SSM = ssm.PoolConfig{
		Mamba2: shape.Mamba2, Mamba2Layers: shape.Mamba2Layers, Delta: shape.Delta, DeltaLayers: shape.DeltaLayers,
		Window: p.Window, Activations: act, State: state,
	}
	if state.Scratch() {
		p.SSM.Scratch = scratchBlocks
	}
	p.KV = attention.PoolConfig{
		Layers: shape.AttentionLayers, KVHeads: shape.KVHeads, HeadDim: shape.HeadDim,
		DType: kvDType(shape, o, act), PageTokens: o.PageTokens,
	}
	return nil
}

// limits fills in and bounds the counts that do not depend on memory.
func (p *Plan) limits(shape model.Spec, o Options) error {
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
		{"--replayssm-buffer-len", o.Window, ssm.MaxWindow},
		{"--speculative-config num_speculative_tokens", o.Drafts, spec.MaxDepth},
	} {
		if c.n < 0 || c.n > c.limit {
			return fmt.Errorf("%s %d is outside of [1, %d]", c.flag, c.n, c.limit)
		}
	}
	if p.MaxLen == 0 {
		p.MaxLen = shape.MaxLen
	} else if p.MaxLen > shape.MaxLen {
		p.warn("--max-model-len %d is more than the %d positions the model was made for", p.MaxLen, shape.MaxLen)
	}
	p.Window = kernels.Window{L: o.Window, T: 1 + o.Drafts}
	if p.Window.L == 0 {
		p.Window.L = AutoWindow(p.Window.T)
	}
	return nil
}

// AutoWindow is the replay window of --replayssm-buffer-len auto, in records, for steps of up to t tokens.
func AutoWindow(t int) int {
	if t > 4 {
		return defaultWindowT
	}
	return defaultWindow
}

// drafting checks the drafting method and counts the caches of the model's head.
func (p *Plan) drafting(s model.Spec, o Options) error {
	switch {
	case o.Drafts == 0:
	case o.DraftMethod == spec.NGram:
		if o.MinMatch < 1 || o.MinMatch > o.MaxMatch {
			return fmt.Errorf("--speculative-config prompt_lookup_min %d and prompt_lookup_max %d: want 1 <= min <= max", o.MinMatch, o.MaxMatch)
		}
	case o.DraftMethod != spec.MTPHead:
		return fmt.Errorf("--speculative-config method %q is not supported (supported: %s, %s)", o.DraftMethod, spec.MTPHead, spec.NGram)
	case s.MTP == nil:
		return fmt.Errorf("--speculative-config method %q: the model has no MTP head", o.DraftMethod)
	case o.DraftVocab < 0 || o.DraftVocab > s.Vocab:
		return fmt.Errorf("--speculative-config draft_vocab_size %d is outside of [1, %d], the tokens of the model", o.DraftVocab, s.Vocab)
	default:
		p.KV.MTPLayers = s.MTP.AttentionLayers
		if p.DraftVocab = o.DraftVocab; p.DraftVocab == 0 {
			p.DraftVocab = s.Vocab
		}
	}
	return nil
}

// added is what the plan has because of drafts.
func (p *Plan) added(config model.Config, o Options) (s Speculation) {
	plain, kv := p.SSM, p.KV
	plain.Window.T, kv.MTPLayers = 1, 0
	s.SlotBytes = p.SSM.SlotBytes() - plain.SlotBytes()
	s.HeadKV = (p.KV.PageBytes() - kv.PageBytes()) / int64(p.KV.PageTokens)
	s.HeadWeights = tensorBytes(wanted(config, o)) - tensorBytes(wanted(config, Options{}))
	return s
}

// among says which tokens drafts are chosen from, if not from all.
func (p *Plan) among() string {
	if p.DraftVocab == 0 || p.DraftVocab == p.Sampler.Vocab {
		return ""
	}
	return fmt.Sprintf(", among the first %d of %d tokens", p.DraftVocab, p.Sampler.Vocab)
}

// mtp and lookup size the drafters.
func (p *Plan) mtp() spec.MTPConfig {
	return spec.MTPConfig{Slots: p.MaxSeqs + 1, Rows: p.rows(), Tokens: p.MaxTokens, Vocab: p.DraftVocab}
}

func (p *Plan) lookup(o Options) spec.LookupConfig {
	return spec.LookupConfig{Slots: p.MaxSeqs + 1, MaxLen: p.MaxLen, MinMatch: o.MinMatch, MaxMatch: o.MaxMatch}
}

// rows is the most rows of a step: each sequence has one, of one token at least.
func (p *Plan) rows() int { return min(p.MaxSeqs, p.MaxTokens) }

func (p *Plan) draftBytes(o Options) int64 {
	switch {
	case o.Drafts == 0:
		return 0
	case o.DraftMethod == spec.NGram:
		return p.lookup(o).Bytes()
	}
	return p.mtp().Bytes()
}

// tileRows is the rows of logits that are held at once.
func (p *Plan) tileRows(act kernels.DType) int {
	if act == kernels.F32 {
		return tileCPU
	}
	return min(max(p.rows()*p.Window.T, tile), tileMost)
}

// split divides budget bytes between state blocks and KV pages: first every sequence gets its state, then pages for
// as many full contexts as fit.
func (p *Plan) split(o Options, budget int64) error {
	p.ScratchBytes = int64(p.SSM.Scratch) * p.SSM.ScratchBytes()
	budget -= p.ScratchBytes
	per := p.SSM.BlockBytes() + p.SSM.SlotBytes()
	if seqs := int(budget / 2 / max(per, 1)); seqs < p.MaxSeqs && o.StateBlocks == 0 {
		if seqs < 1 || budget < 0 {
			return fmt.Errorf("%s of memory are left for caches, and the state of one sequence alone takes %s", bytesText(budget), bytesText(per))
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
	tokens, page, ahead := o.PageTokens, p.KV.PageBytes(), p.ahead()
	full := (p.MaxLen + ahead + tokens - 1) / tokens // of one longest sequence
	p.KV.Pages = o.KVBlocks
	if o.KVBlocks == 0 {
		p.KV.Pages = int(min(int64(full)*int64(p.MaxSeqs), max(budget, 0)/max(page, 1)-1)) // besides the null page
	}
	if p.KV.Pages < 1 {
		return fmt.Errorf("no memory is left for a KV page of %s: state blocks take %s and replay rings %s (--num-state-blocks, --max-num-seqs)",
			bytesText(page), bytesText(p.StateBytes), bytesText(p.RingBytes))
	}
	if p.KV.Pages < full {
		fits := p.KV.Pages*tokens - ahead
		if fits < 1 {
			return fmt.Errorf("%d KV pages of %d tokens hold no sequence", p.KV.Pages, tokens)
		}
		p.warn("context limited to %d tokens by %d KV pages of %d tokens", fits, p.KV.Pages, tokens)
		p.MaxLen = fits
	}
	p.KV.Pages++ // the null page
	p.KV.Slots, p.KV.MaxLen = p.MaxSeqs+1, p.MaxLen+ahead
	p.KVBytes = int64(p.KV.Pages) * page
	return nil
}

// ahead is the tokens behind a sequence's own that the MTP head's drafts need pages for (spec.Drafter.Lookahead).
func (p *Plan) ahead() int {
	if p.KV.MTPLayers == 0 {
		return 0
	}
	return max(0, p.Window.T-2)
}

func (p *Plan) warn(format string, a ...any) {
	p.Warnings = append(p.Warnings, fmt.Sprintf(format, a...))
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
	line("state blocks", p.StateBytes, "%d x %s, %s", p.SSM.Blocks-1, bytesText(p.SSM.BlockBytes()), p.SSM.State)
	if p.ScratchBytes > 0 {
		line("scratch", p.ScratchBytes, "%d x %s, float32 states of unfinished prompts", p.SSM.Scratch, bytesText(p.SSM.ScratchBytes()))
	}
	line("replay rings", p.RingBytes, "%d x %s", p.SSM.Slots-1, bytesText(p.SSM.SlotBytes()))
	line("KV pages", p.KVBytes, "%d x %d tokens x %s, %s", p.KV.Pages-1, p.KV.PageTokens, bytesText(p.KV.PageBytes()/int64(p.KV.PageTokens)), p.KV.DType)
	if p.DraftBytes > 0 {
		s, more := p.Speculation, p.Window.T-1
		line("drafter", p.DraftBytes, "%d drafts a step at most%s", more, p.among())
		line("  of weights", s.HeadWeights, "the drafting head")
		line("  of rings", s.SlotBytes*int64(p.SSM.Slots), "%d x %s, %d more records and convolution rows a layer", p.SSM.Slots-1, bytesText(s.SlotBytes), more)
		line("  of KV pages", s.HeadKV*int64(p.KV.Pages*p.KV.PageTokens), "%d layers of the drafting head, %s a token", p.KV.MTPLayers, bytesText(s.HeadKV))
	}
	f := p.Footprint()
	line("a sequence", f.State+f.Replay, "state %s, replay %s, and %s a token; %d at once, %d of the whole context",
		bytesText(f.State), bytesText(f.Replay), bytesText(f.Token), f.Most, p.longest())
	line("sampler", p.SamplerBytes, "%d slots, %d log probabilities a token", p.Sampler.Slots-1, p.Sampler.MaxTop)
	if g := p.Graphs; len(g.Rows) > 0 {
		line("graphs", g.Bytes, "%d captured in %.1f s for T = %v and rows %v", g.Count, g.Took.Seconds(), g.T, g.Rows)
	}
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
