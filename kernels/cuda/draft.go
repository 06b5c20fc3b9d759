//go:build cuda

package cuda

import (
	"reprise/kernels"
	"reprise/kernels/cuda/driver"
)

// draftKernels are those of src/draft.cu.
type draftKernels struct{ begin, next, lookup driver.Function }

func (k *draftKernels) load(l *loader) error {
	l.open("draft")
	k.begin, k.next, k.lookup = l.kernel("draft_begin", 0), l.kernel("draft_next", 0), l.kernel("draft_lookup", 0)
	return nil
}

// committed is struct Committed of src/draft.cu.
type committed struct {
	step, prefill                            rows
	ids, pos, sampled, final, accepted, want uint64
	slots                                    slots
	sampleFirst                              int64
}

func committedOf(c kernels.Committed) committed {
	return committed{rowsOf(c.Step), rowsOf(c.Prefill), addr(c.IDs), addr(c.Pos), addr(c.Sampled), addr(c.Final), addr(c.Accepted), addr(c.Want),
		slotsOf(c.Slots), int64(c.SampleFirst)}
}

// DraftBegin prepares a drafting head's launch over the pairs of a step.
func (o *ops) DraftBegin(p kernels.DraftBegin) {
	o.enter("DraftBegin")
	must(p.Validate())
	type params struct {
		committed                      committed
		pairs, base, ahead             uint64
		following, next, n, last, left uint64
	}
	launch(o, o.drafting.begin, line(p.Step.Count+p.Prefill.Count, 128), params{committedOf(p.Committed),
		addr(p.Pairs), addr(p.Base), addr(p.Ahead), addr(p.Following), addr(p.Next), addr(p.N), addr(p.Last), addr(p.Left)})
}

// DraftNext takes one draft a row from the head's logits.
func (o *ops) DraftNext(p kernels.DraftNext) {
	o.enter("DraftNext")
	must(p.Validate())
	type params struct {
		logits                                                             mat
		slot, last, left, pos, drafts, draftCount, ahead, n, next, nextPos uint64
		vocab, index, draftStride                                          int32
		_                                                                  int32
	}
	launch(o, o.drafting.next, line(p.Logits.Rows*bestBlocks, 128), params{logits: matOf(p.Logits), slot: addr(p.Slot), last: addr(p.Last), left: addr(p.Left), pos: addr(p.Pos),
		drafts: addr(p.Slots.Drafts), draftCount: addr(p.Slots.DraftCount), ahead: addr(p.Drafting.Ahead), n: addr(p.N), next: addr(p.Next), nextPos: addr(p.NextPos),
		vocab: int32(p.Logits.Cols), index: int32(p.Index), draftStride: int32(p.Slots.DraftStride)})
}

// DraftLookup drafts what followed the last tokens where they occurred before.
func (o *ops) DraftLookup(p kernels.DraftLookup) {
	o.enter("DraftLookup")
	must(p.Validate())
	type params struct {
		committed   committed
		history     uint64
		stride      int64
		least, most int32
	}
	launch(o, o.drafting.lookup, line(p.Step.Count+p.Prefill.Count, 1024), params{committedOf(p.Committed), addr(p.History), int64(p.HistoryStride), int32(p.MinMatch), int32(p.MaxMatch)})
}
