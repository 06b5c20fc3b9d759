//go:build cuda

package cuda

import (
	"reprise/kernels"
	"reprise/kernels/cuda/driver"
)

// stepKernels are those of src/step.cu.
type stepKernels struct{ begin, commit driver.Function }

func (k *stepKernels) load(l *loader) error {
	l.open("step")
	k.begin, k.commit = l.kernel("begin", 0), l.kernel("commit", 0)
	return nil
}

// rows, cursors and slots as kernels take them (src/step.cu).
type rows struct {
	slot, n, start          uint64
	count, first, tokens, t int32
}

func rowsOf(r kernels.Rows) rows {
	return rows{addr(r.Slot), addr(r.N), addr(r.Start), int32(r.Count), int32(r.First), int32(r.Tokens), int32(r.T)}
}

type cursors struct{ origin, h, src, dst uint64 }

func cursorsOf(c kernels.Cursors) cursors {
	return cursors{addr(c.Origin), addr(c.H), addr(c.Src), addr(c.Dst)}
}

type slots struct {
	active, last, drafts, draftCount, params, stops uint64
	draftStride, maxStops                           int32
}

func slotsOf(s kernels.Slots) slots {
	return slots{addr(s.Active), addr(s.Last), addr(s.Drafts), addr(s.DraftCount), addr(s.Params), addr(s.Stops), int32(s.DraftStride), int32(s.MaxStops)}
}

// stepThreads is the threads of a block of begin and commit: a row each of begin, a row a warp of commit.
const stepThreads = 128

// Begin derives token ids, positions and row lengths from the slots.
func (o *ops) Begin(p kernels.Begin) {
	o.enter("Begin")
	must(p.Validate())
	type params struct {
		step, prefill    rows
		want, prefillIDs uint64
		cursors          cursors
		slots            slots
		ids, pos         uint64
	}
	launch(o, o.step.begin, line(ceil(p.Step.Count, stepThreads)+p.Prefill.Count, stepThreads), params{
		rowsOf(p.Step), rowsOf(p.Prefill), addr(p.Want), addr(p.PrefillIDs), cursorsOf(p.Cursors), slotsOf(p.Slots), addr(p.IDs), addr(p.Pos)})
}

// Commit accepts drafts, applies the stops, writes cursors and slots, and reports.
func (o *ops) Commit(p kernels.Commit) {
	o.enter("Commit")
	must(p.Validate())
	type params struct {
		step, prefill                                 rows
		cursors                                       cursors
		slots                                         slots
		counts, pos, sampled, final, accepted, finish uint64
		vocab, window, sampleFirst                    int32
		_                                             int32
	}
	launch(o, o.step.commit, line(ceil(p.Step.Count+p.Prefill.Count, stepThreads/32), stepThreads), params{
		step: rowsOf(p.Step), prefill: rowsOf(p.Prefill), cursors: cursorsOf(p.Cursors), slots: slotsOf(p.Slots),
		counts: addr(p.Tables.Counts), pos: addr(p.Pos), sampled: addr(p.Sampled), final: addr(p.Final), accepted: addr(p.Accepted), finish: addr(p.Finish),
		vocab: int32(p.Tables.Vocab), window: int32(p.Window.L), sampleFirst: int32(p.SampleFirst)})
}
