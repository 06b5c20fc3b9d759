package engine

import (
	"fmt"

	"reprise/kernels"
	"reprise/model"
	"reprise/sampler"
	"reprise/spec"
)

// Texts are what forced runs read, all at the same time, a sequence each.
type Texts struct {
	IDs    [][]int32
	Prompt int // tokens of each text that are computed as its prompt, at least 1; steps read the rest
	Tokens int // of a text that a step reads: 1 decodes; more verifies, and every draft is right
}

// mostPrefill is the tokens of a step of forced runs while prompts are computed.
const mostPrefill = 1024

// maxTokens is the tokens of the largest step.
func (t Texts) maxTokens() int {
	return max(len(t.IDs)*t.Tokens, min(len(t.IDs)*t.Prompt, mostPrefill))
}

func (t Texts) longest() int {
	n := 0
	for _, ids := range t.IDs {
		n = max(n, len(ids))
	}
	return n
}

func (t Texts) validate(vocab int) error {
	if len(t.IDs) == 0 || t.Prompt < 1 || t.Tokens < 1 || t.Tokens > spec.MaxDepth+1 {
		return fmt.Errorf("%d texts, prompts of %d tokens, %d tokens a step: want at least one each, and %d tokens a step at most", len(t.IDs), t.Prompt, t.Tokens, spec.MaxDepth+1)
	}
	for i, ids := range t.IDs {
		if len(ids) <= t.Prompt {
			return fmt.Errorf("text %d has %d tokens: that leaves nothing behind a prompt of %d", i, len(ids), t.Prompt)
		}
		for _, id := range ids {
			if id < 0 || int(id) >= vocab {
				return fmt.Errorf("text %d has the token id %d, outside of the vocabulary of %d", i, id, vocab)
			}
		}
	}
	return nil
}

// Forced is a model that reads texts instead of generating: engines made from it take every next token from the text,
// whatever they would have sampled. Runs of different options then differ in what they compute alone, not in what they read.
type Forced struct {
	dev     kernels.Device
	config  model.Config
	model   model.Model
	tensors tensors
	texts   Texts
}

// OpenForced loads a model onto dev to read texts.
func OpenForced(dev kernels.Device, src Source, t Texts, seed uint64) (*Forced, error) {
	config, err := ParseConfig(src.Folder)
	if err != nil {
		return nil, err
	}
	if err := t.validate(config.Spec().Vocab); err != nil {
		return nil, err
	}
	m, tensors, err := src.load(dev, config, t.maxTokens(), Options{Seed: seed})
	if err != nil {
		return nil, err
	}
	return &Forced{dev, config, m, tensors, t}, nil
}

// Close releases the weights, behind all runs. What runs took on the device stays until that is closed.
func (f *Forced) Close() error { return f.tensors.Close() }

// Run makes an engine that reads the texts with options of its own; counts and lengths follow from the texts. Several runs
// share the model and the device's stream: they may be launched in any order, from one goroutine.
func (f *Forced) Run(o Options) (*ForcedRun, error) {
	shape := f.config.Spec()
	o.MaxSeqs, o.MaxTokens, o.MaxLen = len(f.texts.IDs), f.texts.maxTokens(), f.texts.longest()+1
	o.KVBlocks, o.StateBlocks, o.MaxLogProbs, o.EOS = 0, 0, 0, nil
	o.Drafts, o.DraftMethod = f.texts.Tokens-1, spec.NGram
	o = o.withDefaults(f.dev, shape.Vocab)
	act := f.dev.Activations()
	taken := f.model.WeightBytes() + f.config.ActivationBytes(act, o.MaxTokens) // the plan counts them once more
	p, err := makePlan(f.config, o, act, f.dev.MemoryFree()+taken)
	if err != nil {
		return nil, err
	}
	if p.MaxSeqs < o.MaxSeqs || p.MaxLen < o.MaxLen {
		return nil, fmt.Errorf("memory is left for %d texts of %d tokens, not for %d of %d", p.MaxSeqs, p.MaxLen-1, o.MaxSeqs, o.MaxLen-1)
	}
	if err := supported(f.dev, p); err != nil {
		return nil, err
	}
	e, err := build(f.dev, f.model, shape, p, o)
	if err != nil {
		return nil, err
	}
	return newForcedRun(e, f.texts)
}

// ForcedRun is one engine that reads the texts, a step at a time.
type ForcedRun struct {
	engine *Engine
	texts  Texts
	lane   *lane // of the step that was launched last

	// Host memory that device work reads and writes.
	logits  []byte // f32 [step rows x T, vocab]
	sampled []byte // i32 [sampled rows]: what the texts say
	drafts  []byte // i32 [slots, DraftStride], as on the device
	counts  []byte // i32 [slots], likewise
	rows    []ForcedRow
}

// ForcedRow is what the engine answered to the first Read tokens of a text: logits of the next one, vocabulary wide. They
// stay valid until the run's next Launch.
type ForcedRow struct {
	Text, Read int
	Logits     []float32
}

func newForcedRun(e *Engine, t Texts) (*ForcedRun, error) {
	e.drafter = nil // drafts come from the texts
	r := &ForcedRun{engine: e, texts: t}
	slots, rows := &e.tables.Slots, int64(len(t.IDs)*t.Tokens)
	for _, m := range []struct {
		dst   *[]byte
		words int64
	}{
		{&r.logits, rows * int64(e.spec.Vocab)}, {&r.sampled, int64(e.plan.MaxTokens)},
		{&r.drafts, slots.Drafts.Size / 4}, {&r.counts, int64(e.plan.Sampler.Slots)},
	} {
		var err error
		if *m.dst, err = e.dev.AllocHost(4 * m.words); err != nil {
			return nil, fmt.Errorf("memory for the logits of %d rows: %w", rows, err)
		}
	}
	for _, l := range e.lanes {
		l.finish = kernels.ProgramFunc(func(o kernels.Ops) { r.finish(o, l) })
	}
	for _, ids := range t.IDs {
		_, err := e.Submit(Request{
			Prompt: ids[:t.Prompt], MaxTokens: len(ids) - t.Prompt + 1, IgnoreEOS: true,
			Sampling: sampler.Default(), LogProbs: -1, PromptLogProbs: -1,
		})
		if err != nil {
			return nil, err
		}
	}
	e.takeIncoming()
	return r, nil
}

// Plan is where the run's memory went.
func (r *ForcedRun) Plan() *Plan { return r.engine.plan }

// Vocab is the width of a row's logits.
func (r *ForcedRun) Vocab() int { return r.engine.spec.Vocab }

// Launch enqueues the next step; false when all texts are read. Collect must follow.
func (r *ForcedRun) Launch() bool {
	if !r.engine.launch() {
		return false
	}
	r.lane = r.engine.lanes[1-r.engine.next]
	return true
}

// Collect waits for the step and returns the answers of its step rows; prompts have none.
func (r *ForcedRun) Collect() ([]ForcedRow, error) {
	e, l := r.engine, r.lane
	if err := e.dev.Wait(l.ticket); err != nil {
		return nil, err
	}
	vocab, all := e.spec.Vocab, floats(words(r.logits))
	r.rows = r.rows[:0]
	for i, s := range l.steps {
		if got := int(l.out.accepted.host[i]); got != s.n {
			return nil, fmt.Errorf("text %d: %d tokens were accepted of %d that the text says", s.text(), got, s.n)
		}
		for j := range s.n {
			at := (s.sample + j) * vocab
			r.rows = append(r.rows, ForcedRow{s.text(), len(s.seq.tokens) + j, all[at : at+vocab : at+vocab]})
		}
	}
	e.collect(l)
	return r.rows, nil
}

// Close reports what the run still holds when all texts are read: nothing.
func (r *ForcedRun) Close() error {
	if n := len(r.engine.seqs); n > 0 {
		return fmt.Errorf("%d texts are not read to their end", n)
	}
	return r.engine.states.Idle()
}

// text is the number of the text that a row reads: the engine counts requests from 1.
func (w row) text() int { return int(w.seq.id) - 1 }

// finish stands for the sampling part of a step: logits of the step rows to the host, and the texts' tokens in the place
// of sampled ones.
func (r *ForcedRun) finish(o kernels.Ops, l *lane) {
	e, tables := r.engine, r.engine.tables
	vocab, count := int64(e.spec.Vocab)*4, len(l.steps)*l.plan.T
	for first := 0; first < count; first += tables.Config.TileRows {
		n := min(tables.Config.TileRows, count-first)
		logits := tables.Logits(o, e.model, l.hidden, l.rows, first, n)
		o.Download(r.logits[int64(first)*vocab:int64(first+n)*vocab], logits.Buf)
	}
	r.follow(l)
	if size := int64(l.rows.Count) * 4; size > 0 {
		o.Upload(tables.Out.Token.Slice(0, size), r.sampled[:size])
	}
	o.Commit(l.commit)
	if !tables.Slots.DraftCount.Nil() {
		o.Upload(tables.Slots.Drafts, r.drafts)
		o.Upload(tables.Slots.DraftCount, r.counts)
	}
}

// follow writes what the texts say to a step's rows, and the drafts that the next one verifies.
func (r *ForcedRun) follow(l *lane) {
	sampled := words(r.sampled)
	for i := range l.steps {
		s := &l.steps[i]
		from := len(s.seq.tokens)
		r.copyText(sampled[s.sample:s.sample+l.plan.T], s.text(), from)
		r.propose(s, from+s.n)
	}
	for i := range l.prefills {
		if s := &l.prefills[i]; s.final {
			r.copyText(sampled[s.sample:s.sample+1], s.text(), r.texts.Prompt)
			r.propose(s, r.texts.Prompt+1)
		}
	}
}

// propose drafts the tokens of a text from an index on.
func (r *ForcedRun) propose(s *row, from int) {
	stride := r.engine.tables.Slots.DraftStride
	n := min(r.texts.Tokens-1, max(0, len(r.texts.IDs[s.text()])-from))
	words(r.counts)[s.seq.slot] = int32(n)
	at := s.seq.slot * stride
	r.copyText(words(r.drafts)[at:at+n], s.text(), from)
}

// copyText copies the tokens of a text from an index on; behind its end they are 0.
func (r *ForcedRun) copyText(dst []int32, text, from int) {
	ids := r.texts.IDs[text]
	clear(dst)
	copy(dst, ids[min(from, len(ids)):])
}
