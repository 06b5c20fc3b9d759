package kerneltest

import (
	"fmt"

	"reprise/kernels"
)

func draftCases() []testcase {
	var list []testcase
	for _, t := range []int{1, 5} {
		list = append(list, testcase{fmt.Sprintf("draft begin T%d", t), func(b *bench) { draftBeginCase(b, t) }})
	}
	for _, vocab := range []int{1, 33, 1000} {
		for _, index := range []int{0, 2, 3} {
			list = append(list, testcase{fmt.Sprintf("draft next %d vocab %d", index, vocab), func(b *bench) { draftNextCase(b, index, vocab) }})
		}
	}
	for _, c := range []struct{ least, most, kinds int }{{1, 1, 9}, {2, 5, 2}, {2, 5, 4}, {3, 3, 90}, {4, 40, 1}} {
		list = append(list, testcase{fmt.Sprintf("draft lookup %d..%d of %d tokens", c.least, c.most, c.kinds), func(b *bench) {
			draftLookupCase(b, c.least, c.most, c.kinds)
		}})
	}
	return append(list, testcase{"draft nothing", draftNothingCase})
}

// draftStride is the drafts a slot has room for in all cases here.
const draftStride = 4

// committedStep is a step behind its commit: step rows behind three tokens of somebody else, then prefill rows. Slots
// from 1 on have a row each, of either kind; every fourth row belongs to the null slot.
type committedStep struct {
	slots *slotSet
	t     int
	rows  struct{ step, prefill int }
	in    map[string]*array

	tokens, stepTokens, vocab int
}

const committedFirst, committedSamples = 3, 2

// committedLists collects the inputs of a committedStep.
type committedLists struct {
	*bench
	t, vocab int
	slots    []slotSpec
	lists    map[string][]int
}

func newCommittedStep(b *bench, t, vocab int) *committedStep {
	l := &committedLists{bench: b, t: t, vocab: vocab, lists: map[string][]int{
		"ids": garbageInts(committedFirst), "pos": garbageInts(committedFirst), "sampled": garbageInts(committedSamples),
	}}
	c := &committedStep{t: t, vocab: vocab, in: map[string]*array{}}
	c.rows.step, c.rows.prefill, c.stepTokens = 17, 9, 17*t
	for i := range c.rows.step {
		l.stepRow(i%4 > 0)
	}
	for i := range c.rows.prefill {
		l.prefillRow(i%4 > 0)
	}
	c.tokens = len(l.lists["ids"])
	for _, name := range []string{"ids", "pos", "sampled", "slot", "n", "accepted", "want", "pslot", "pn", "start", "final", "following"} {
		c.in[name] = b.ints(name, l.lists[name]...)
	}
	c.slots = newSlotSet(b, vocab, draftStride, l.slots)
	return c
}

func (l *committedLists) add(name string, v int) { l.lists[name] = append(l.lists[name], v) }

// slot is the number of a new slot.
func (l *committedLists) slot() int {
	l.slots = append(l.slots, slotSpec{active: min(1, l.IntN(5)), last: l.IntN(l.vocab), drafts: []int{91, 92, 93, 94}, drafted: 0})
	return len(l.slots)
}

// stepRow is a row of up to t tokens of a slot of its own, or of none of the null slot.
func (l *committedLists) stepRow(own bool) {
	slot, n, a := 0, 0, 0
	if own {
		slot, n = l.slot(), l.IntN(l.t+1)
		if n > 0 {
			a = 1 + l.IntN(n)
		}
	}
	position := 1 + l.IntN(40)
	for j := range l.t {
		id, p := 0, -1
		if j < n {
			id, p = l.IntN(l.vocab), position+j
		}
		l.add("ids", id)
		l.add("pos", p)
		l.add("sampled", l.IntN(l.vocab))
	}
	l.add("slot", slot)
	l.add("n", n)
	l.add("accepted", a)
	l.add("want", l.IntN(draftStride+2)-1)
}

// prefillRow is a chunk of up to six tokens of a slot of its own, or of none of the null slot. Behind every other chunk that
// has tokens the first token is sampled.
func (l *committedLists) prefillRow(own bool) {
	slot, n := 0, 0
	if own {
		slot, n = l.slot(), l.IntN(7)
	}
	l.add("pslot", slot)
	l.add("pn", n)
	l.add("start", len(l.lists["ids"]))
	final, following, a := -1, l.IntN(l.vocab+3)-1, 0
	if l.IntN(2) == 0 && n > 0 {
		final, following, a = len(l.lists["sampled"]), garbage, 1
		l.add("sampled", l.IntN(l.vocab))
	}
	l.add("final", final)
	l.add("following", following)
	l.add("accepted", a)
	l.add("want", l.IntN(draftStride+2)-1)
	position := l.IntN(40)
	for j := range n {
		l.add("ids", l.IntN(l.vocab))
		l.add("pos", position+j)
	}
}

func (c *committedStep) of(s side) kernels.Committed {
	in := func(name string) kernels.Buffer { return c.in[name].buf[s] }
	packed := c.tokens - committedFirst - c.stepTokens
	return kernels.Committed{
		Step:    kernels.Rows{Count: c.rows.step, First: committedFirst, Tokens: c.stepTokens, T: c.t, MaxLen: c.t, Slot: in("slot"), N: in("n")},
		Prefill: kernels.Rows{Count: c.rows.prefill, First: committedFirst + c.stepTokens, Tokens: packed, MaxLen: 6, Slot: in("pslot"), N: in("pn"), Start: in("start")},
		IDs:     in("ids"), Pos: in("pos"), Sampled: in("sampled"), SampleFirst: committedSamples, Final: in("final"), Accepted: in("accepted"),
		Slots: c.slots.counted(s), Want: in("want"),
	}
}

// draftState is kernels.Drafting of a set of slots.
type draftState struct{ pairs, base, ahead *array }

func newDraftState(b *bench, slots int) draftState {
	list := func() []int {
		v := b.Perm(90)[:slots]
		return v
	}
	d := draftState{b.ints("pairs", list()...), b.ints("base", list()...), b.ints("ahead", list()...)}
	for _, a := range []*array{d.pairs, d.base, d.ahead} {
		a.allow(4, 4*(slots-1)) // not the null slot
	}
	return d
}

func (d draftState) of(s side) kernels.Drafting {
	return kernels.Drafting{Pairs: d.pairs.buf[s], Base: d.base.buf[s], Ahead: d.ahead.buf[s]}
}

func draftBeginCase(b *bench, t int) {
	for range 10 {
		c := newCommittedStep(b, t, 60)
		d := newDraftState(b, len(c.slots.active.before)/4)
		rows := c.rows.step + c.rows.prefill
		next, n, last, left := b.outInts("next", c.tokens+1), b.outInts("n", rows), b.outInts("last", rows), b.outInts("left", rows)
		next.fixed()
		next.allow(4*committedFirst, 4*(c.tokens-committedFirst))
		b.run(func(o kernels.Ops, s side) {
			o.DraftBegin(kernels.DraftBegin{
				Committed: c.of(s), Drafting: d.of(s), Following: c.in["following"].buf[s],
				Next: next.buf[s], N: n.buf[s], Last: last.buf[s], Left: left.buf[s],
			})
		})
		b.same(next, n, last, left, d.pairs, d.base, d.ahead)
	}
}

// draftNextCase drafts from logits with ties, for rows that want fewer drafts, just as many, and more.
func draftNextCase(b *bench, index, vocab int) {
	const rows, slots = 21, 30
	var specs []slotSpec
	for range slots {
		specs = append(specs, slotSpec{active: 1, drafts: []int{91, 92, 93, 94}, drafted: index})
	}
	set, d := newSlotSet(b, vocab, draftStride, specs), newDraftState(b, slots+1)
	slot, last, left := b.Perm(slots)[:rows], make([]int, rows), make([]int, rows)
	logits := make([]float32, rows*vocab)
	for r := range rows {
		slot[r]++
		last[r], left[r] = b.IntN(40), b.IntN(draftStride+1)
		if r%5 == 0 {
			slot[r], last[r], left[r] = 0, -1, 0
		}
		for i := range vocab {
			logits[r*vocab+i] = float32(b.IntN(1+vocab/2)) - 20
		}
	}
	set.drafts.allow(0, len(set.drafts.before))
	set.drafted.allow(4, 4*slots)
	x := b.floats("logits", logits)
	in := []*array{b.ints("slot", slot...), b.ints("last", last...), b.ints("left", left...), b.ints("pos", b.Perm(90)[:40]...)}
	n, next, nextPos := b.outInts("n", rows), b.outInts("next", rows), b.outInts("next pos", rows)
	b.run(func(o kernels.Ops, s side) {
		o.DraftNext(kernels.DraftNext{
			Logits: kernels.NewMat(x.buf[s], kernels.F32, rows, vocab), Index: index,
			Slot: in[0].buf[s], Last: in[1].buf[s], Left: in[2].buf[s], Pos: in[3].buf[s],
			Slots: set.counted(s), Drafting: d.of(s), N: n.buf[s], Next: next.buf[s], NextPos: nextPos.buf[s],
		})
	})
	b.same(n, next, nextPos, set.drafts, set.drafted, d.ahead)
}

// draftLookupCase looks repetitions up in histories of few kinds of tokens.
func draftLookupCase(b *bench, least, most, kinds int) {
	const stride = 52
	for range 10 {
		c := newCommittedStep(b, 5, kinds)
		slots := len(c.slots.active.before) / 4
		tokens := make([]int, slots*stride)
		for i := range tokens {
			tokens[i] = b.IntN(kinds)
		}
		history := b.ints("history", tokens...)
		history.allow(4*stride, 4*(slots-1)*stride)
		c.slots.drafts.allow(0, len(c.slots.drafts.before))
		c.slots.drafted.allow(4, 4*(slots-1))
		b.run(func(o kernels.Ops, s side) {
			o.DraftLookup(kernels.DraftLookup{Committed: c.of(s), History: history.buf[s], HistoryStride: stride, MinMatch: least, MaxMatch: most})
		})
		b.same(history, c.slots.drafts, c.slots.drafted)
	}
}

// draftNothingCase has no rows at all.
func draftNothingCase(b *bench) {
	set := newSlotSet(b, 8, 1, []slotSpec{{active: 1, drafted: 1}})
	d := newDraftState(b, 2)
	history := b.ints("history", b.Perm(8)...)
	b.run(func(o kernels.Ops, s side) {
		c := kernels.Committed{Slots: set.counted(s)}
		o.DraftBegin(kernels.DraftBegin{Committed: c, Drafting: d.of(s)})
		o.DraftLookup(kernels.DraftLookup{Committed: c, History: history.buf[s], HistoryStride: 4, MinMatch: 1, MaxMatch: 2})
	})
	b.same(set.drafted, d.pairs)
}
