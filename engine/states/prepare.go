package states

import (
	"reprise/engine/states/internal/ledger"
	"reprise/kernels"
)

// Need asks for the memory of one row of a step: Tokens in the sequence's state after it, in the worst case (sched's
// Upper). A sequence without a slot gets one: fresh, from a snapshot if From is given, or, if it was swapped out, as it
// was. The caller writes its own per-slot fields for fresh sequences; for the others Extra.Load does.
type Need struct {
	ID     ID
	Tokens int
	From   *Snapshot
	Prefill
}

// Prefill says whether a row is a chunk of a prompt: one that ends it, or one that more will follow. It matters where there
// are scratch blocks: the rows that use one are told by Staged.
type Prefill = ledger.Prefill

// Kinds of rows.
const (
	NoChunk   = ledger.NoChunk
	Chunk     = ledger.Chunk
	LastChunk = ledger.LastChunk
)

// Prepare makes room for all needs, each of a different sequence, and records what the device must do before the step:
// blocks zeroed, cursors and page table written, images loaded, shared pages copied. Its error is a *Shortage; then
// nothing has changed and nothing is recorded. It does not allocate in steady state.
func (s *States) Prepare(w *Work, needs []Need) error {
	s.needs = s.needs[:0]
	for _, n := range needs {
		from := (*ledger.Snapshot)(nil)
		if n.From != nil {
			from = n.From.books
		}
		s.needs = append(s.needs, ledger.Need{ID: n.ID, Tokens: n.Tokens, From: from, Prefill: n.Prefill})
	}
	c := &s.changes
	if err := s.books.Prepare(s.needs, c); err != nil {
		return err
	}
	for i := range c.Opened {
		s.open(w, &c.Opened[i], &needs[c.Opened[i].Row])
	}
	for _, p := range c.Copies {
		w.add(command{kind: copyPage, a: p.From, b: p.To})
	}
	for _, e := range c.Table {
		w.scatter(tableTarget, e.Slot*int32(s.stride)+e.Index, e.Page)
	}
	for _, r := range c.Reserved {
		w.scatter(dstTarget, r.Slot, r.Block)
	}
	return nil
}

// Staged is the scratch block of a row of the last Prepare and its stage, as kernels.Rows has them; row counts needs.
func (s *States) Staged(row int) (scratch, stage int32) {
	for _, c := range s.changes.Staged {
		if c.Row != row {
			continue
		}
		if c.Before {
			stage |= kernels.Resume
		}
		if !c.After {
			stage |= kernels.Publish
		}
		return c.Scratch - 1, stage
	}
	return -1, 0
}

// open records how a slot begins. Its table row is cleared first, so that no old page can be read through it.
func (s *States) open(w *Work, o *ledger.Opened, n *Need) {
	w.add(command{kind: clearTable, a: o.Slot})
	switch o.How {
	case ledger.Fresh:
		w.add(command{kind: zeroBlock, a: o.Dst})
		w.add(command{kind: setCursor, a: o.Slot, cursor: kernels.Cursor{Src: o.Src, Dst: o.Dst}})
	case ledger.Restored:
		s.load(w, &n.From.image, o)
	case ledger.SwappedIn:
		im := s.images[n.ID]
		delete(s.images, n.ID)
		if o.Scratch == 0 {
			w.add(command{kind: loadBlock, a: o.Dst, host: im.block})
		}
		for i, page := range o.Pages {
			w.add(command{kind: loadPage, a: page, host: im.page(i, s.pageBytes)})
		}
		s.load(w, im, o)
		s.arena.Free(im.at) // whoever gets it next writes it later in the stream
	}
}

// load records the part that snapshots and swapped-out sequences have in common.
func (s *States) load(w *Work, im *image, o *ledger.Opened) {
	c := im.cursor
	c.Src, c.Dst = o.Src, o.Dst
	w.add(command{kind: setCursor, a: o.Slot, cursor: c})
	w.add(command{kind: loadTail, a: o.Slot, cursor: c, host: im.tail})
	if o.Scratch != 0 {
		w.add(command{kind: loadScratch, a: o.Scratch - 1, host: im.scratch})
	}
	if s.extra != nil {
		w.add(command{kind: loadExtra, a: o.Slot, host: im.extra})
	}
}
