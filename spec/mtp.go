package spec

import (
	"fmt"

	"reprise/kernels"
	"reprise/model"
	"reprise/sampler"
)

// MTPConfig sizes an MTP drafter.
type MTPConfig struct {
	Slots  int // the null one included
	Rows   int // of a step
	Tokens int // of a step
	Vocab  int // drafts are among the first so many tokens
}

// Bytes is the device memory of the drafter, without the head's KV cache and activations.
func (c MTPConfig) Bytes() int64 {
	return int64(c.Slots)*3*4 + int64(c.Tokens)*4 + int64(c.Rows)*5*4
}

// mtp drafts with the model's own head: once over the pairs that a step added, with the hidden rows of the model, then
// once for each further draft, with the head's own hidden row and draft. What the latter leave in the head's cache
// is overwritten by the next step's pairs.
type mtp struct {
	head  model.MTP
	top   model.Head // of the vocab first tokens
	vocab int
	logit *sampler.Tables
	kv    []kernels.KV
	state kernels.Drafting

	next                   kernels.Buffer // i32 [tokens]
	n, last, left, id, pos kernels.Buffer // i32 [rows]
	pairs, later           model.Batch
}

// NewMTP makes a drafter of the model's MTP head, whose attention layers have the given caches.
func NewMTP(dev kernels.Device, m model.Model, kv []kernels.KV, t *sampler.Tables, c MTPConfig) (Drafter, error) {
	d := &mtp{head: m.MTP(), vocab: c.Vocab, logit: t, kv: kv}
	if d.head == nil {
		return nil, fmt.Errorf("the checkpoint has no weights for its MTP head (mtp.*): drafts by method %q are not possible", MTPHead)
	}
	d.top = m.Top(c.Vocab)
	for _, a := range []struct {
		dst   *kernels.Buffer
		bytes int64
	}{
		{&d.state.Pairs, int64(c.Slots) * 4}, {&d.state.Base, int64(c.Slots) * 4}, {&d.state.Ahead, int64(c.Slots) * 4},
		{&d.next, int64(c.Tokens) * 4},
		{&d.n, int64(c.Rows) * 4}, {&d.last, int64(c.Rows) * 4}, {&d.left, int64(c.Rows) * 4},
		{&d.id, int64(c.Rows) * 4}, {&d.pos, int64(c.Rows) * 4},
	} {
		b, err := dev.Alloc(a.bytes)
		if err != nil {
			return nil, fmt.Errorf("memory of the drafter: %w", err)
		}
		*a.dst = b
	}
	return d, nil
}

// Draft reads the step's pairs and drafts Depth times.
func (d *mtp) Draft(o kernels.Ops, s *Step) {
	rows := s.Step.Count + s.Prefill.Count
	o.DraftBegin(kernels.DraftBegin{
		Committed: s.Committed, Drafting: d.state, Following: s.Following,
		Next: d.next, N: ints(d.n, 0, rows), Last: ints(d.last, 0, rows), Left: ints(d.left, 0, rows),
	})
	hidden := d.head.Forward(o, d.pairsOf(s), s.Hidden, ints(d.next, 0, s.Batch.Tokens), ints(d.last, 0, rows))
	for i := range s.Depth {
		if i > 0 {
			hidden = d.head.Forward(o, d.laterOf(s, rows), hidden, ints(d.id, 0, rows), kernels.Buffer{})
		}
		d.take(o, s, hidden, i)
	}
}

// pairsOf is the step's batch with the pairs as its tokens.
func (d *mtp) pairsOf(s *Step) *model.Batch {
	d.pairs = *s.Batch
	d.pairs.Cursors, d.pairs.MTPKV = d.state.Cursors(false), d.kv
	steps := d.pairs.Step.Count
	d.pairs.Step.N = ints(d.n, 0, steps)
	d.pairs.Prefill.N = ints(d.n, steps, d.pairs.Prefill.Count)
	return &d.pairs
}

// laterOf is a batch of one draft a row.
func (d *mtp) laterOf(s *Step, rows int) *model.Batch {
	d.later = model.Batch{
		Tokens: rows, Step: kernels.Rows{Count: rows, Tokens: rows, T: 1, MaxLen: 1, Slot: s.Slot, N: ints(d.n, 0, rows)},
		IDs: ints(d.id, 0, rows), Pos: ints(d.pos, 0, rows), Cursors: d.state.Cursors(true), MTPKV: d.kv,
	}
	return &d.later
}

// take turns hidden rows into draft number i, a tile of logits at a time.
func (d *mtp) take(o kernels.Ops, s *Step, hidden kernels.Mat, i int) {
	tile := d.logit.TileRows(d.vocab)
	for first := 0; first < hidden.Rows; first += tile {
		n := min(tile, hidden.Rows-first)
		logits := d.logit.Tile(n, d.vocab)
		d.top.Logits(o, hidden.RowRange(first, n), logits)
		o.DraftNext(kernels.DraftNext{
			Logits: logits, Index: i, Slot: ints(s.Slot, first, n), Last: ints(d.last, first, n), Left: ints(d.left, first, n),
			Pos: s.Pos, Slots: s.Slots, Drafting: d.state,
			N: ints(d.n, first, n), Next: ints(d.id, first, n), NextPos: ints(d.pos, first, n),
		})
	}
}

// Open empties the head's cache of a slot unless it was loaded.
func (d *mtp) Open(o kernels.Ops, slot int, _ []int32, loaded bool) {
	if !loaded {
		o.Zero(ints(d.state.Pairs, slot, 1))
	}
}

// Follows is false: pairs that were left out are missing in the cache, which only makes drafts worse.
func (d *mtp) Follows() bool { return false }

// Lookahead is one pair less than drafts: the first needs the last committed token's.
func (d *mtp) Lookahead(depth int) int { return max(0, depth-1) }

// SlotBytes is the number of pairs.
func (d *mtp) SlotBytes() int64 { return 4 }

func (d *mtp) Save(o kernels.Ops, slot int, dst []byte) {
	o.Download(dst, ints(d.state.Pairs, slot, 1))
}

func (d *mtp) Load(o kernels.Ops, slot int, src []byte) { o.Upload(ints(d.state.Pairs, slot, 1), src) }

// ints is n entries of an i32 array from the given one on.
func ints(b kernels.Buffer, from, n int) kernels.Buffer { return b.Slice(int64(from)*4, int64(n)*4) }
