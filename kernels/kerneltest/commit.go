package kerneltest

import (
	"fmt"
	"slices"

	"reprise/kernels"
)

func commitCases() []testcase {
	list := []testcase{{"commit random T1", func(b *bench) { commitRandomCase(b, 1) }}, {"commit random T5", func(b *bench) { commitRandomCase(b, 5) }}}
	for _, c := range commitTable() {
		list = append(list, testcase{"commit " + c.name, c.run})
	}
	return append(list,
		testcase{"begin T1", func(b *bench) { beginCase(b, 1) }},
		testcase{"begin T4", func(b *bench) { beginCase(b, 4) }},
		testcase{"begin T4 without counts", func(b *bench) { beginUncountedCase(b, 4) }},
		testcase{"begin and commit nothing", emptyCommitCase})
}

// commitWindow is the window of all commits here.
var commitWindow = kernels.Window{L: 8, T: 5}

// commitRow is one row and what it must come to. The slot stands at Origin 20, H 3 unless cursor says otherwise, so the
// first sample has index 24.
type commitRow struct {
	name            string
	samples, drafts []int // len(samples) = n
	stops           []int
	minLen, maxLen  int
	h               int
	prefill         int // tokens of a prefill row; 0 = step row
	notFinal        bool

	accepted int
	finish   kernels.Finish
	last     int
	active   int
	cursor   kernels.Cursor
}

// old is the last token of a slot before the commit.
const old = 60

func commitTable() []commitRow {
	at := func(origin, h, src int32) kernels.Cursor {
		return kernels.Cursor{Origin: origin, H: h, Src: src, Dst: 2}
	}
	r, s, l := kernels.Running, kernels.FinishStop, kernels.FinishLength
	return []commitRow{
		{name: "one", samples: []int{5}, h: 3, maxLen: 99, accepted: 1, finish: r, last: 5, active: 1, cursor: at(20, 4, 1)},
		{name: "one flushes", samples: []int{5}, h: 8, maxLen: 99, accepted: 1, finish: r, last: 5, active: 1, cursor: at(28, 1, 2)},
		{name: "all drafts", samples: []int{5, 6, 7}, drafts: []int{5, 6}, h: 3, maxLen: 99, accepted: 3, finish: r, last: 7, active: 1, cursor: at(20, 6, 1)},
		{name: "all drafts flush", samples: []int{5, 6, 7}, drafts: []int{5, 6}, h: 6, maxLen: 99, accepted: 3, finish: r, last: 7, active: 1, cursor: at(26, 3, 2)},
		{name: "first draft wrong", samples: []int{5, 6, 7}, drafts: []int{9, 6}, h: 3, maxLen: 99, accepted: 1, finish: r, last: 5, active: 1, cursor: at(20, 4, 1)},
		{name: "later draft wrong", samples: []int{5, 6, 7, 8}, drafts: []int{5, 9, 7}, h: 3, maxLen: 99, accepted: 2, finish: r, last: 6, active: 1, cursor: at(20, 5, 1)},
		{name: "stop first", samples: []int{5, 6, 7}, drafts: []int{5, 6}, stops: []int{5}, h: 3, maxLen: 99, accepted: 1, finish: s, last: 5, cursor: at(20, 4, 1)},
		{name: "stop middle", samples: []int{5, 6, 7}, drafts: []int{5, 6}, stops: []int{40, 6}, h: 3, maxLen: 99, accepted: 2, finish: s, last: 6, cursor: at(20, 5, 1)},
		{name: "stop last", samples: []int{5, 6, 7}, drafts: []int{5, 6}, stops: []int{41, 40, 42, 7}, h: 3, maxLen: 99, accepted: 3, finish: s, last: 7, cursor: at(20, 6, 1)},
		{name: "stop middle flushes", samples: []int{5, 6, 7}, drafts: []int{5, 6}, stops: []int{6}, h: 7, maxLen: 99, accepted: 2, finish: s, last: 6, cursor: at(27, 2, 2)},
		{name: "stop behind the wrong draft", samples: []int{5, 6, 7}, drafts: []int{5, 9}, stops: []int{7}, h: 3, maxLen: 99, accepted: 2, finish: r, last: 6, active: 1, cursor: at(20, 5, 1)},
		{name: "stop below min len", samples: []int{5, 6, 7}, drafts: []int{5, 6}, stops: []int{5, 6}, minLen: 25, h: 3, maxLen: 99, accepted: 2, finish: s, last: 6, cursor: at(20, 5, 1)},
		{name: "no stop below min len", samples: []int{5}, stops: []int{5}, minLen: 25, h: 3, maxLen: 99, accepted: 1, finish: r, last: 5, active: 1, cursor: at(20, 4, 1)},
		{name: "length first", samples: []int{5, 6}, drafts: []int{5}, h: 3, maxLen: 25, accepted: 1, finish: l, last: 5, cursor: at(20, 4, 1)},
		{name: "length middle", samples: []int{5, 6, 7}, drafts: []int{5, 6}, h: 3, maxLen: 26, accepted: 2, finish: l, last: 6, cursor: at(20, 5, 1)},
		{name: "length not reached", samples: []int{5, 6, 7}, drafts: []int{5, 9}, h: 3, maxLen: 27, accepted: 2, finish: r, last: 6, active: 1, cursor: at(20, 5, 1)},
		{name: "stop at the length", samples: []int{5}, stops: []int{5}, h: 3, maxLen: 25, accepted: 1, finish: s, last: 5, cursor: at(20, 4, 1)},
		{name: "inactive", h: 3, maxLen: 99, finish: r, last: old, cursor: at(20, 3, 1)},
		{name: "prefill not final", prefill: 6, notFinal: true, h: 0, maxLen: 99, finish: r, last: old, cursor: at(26, 0, 2)},
		{name: "prefill final", prefill: 6, samples: []int{5}, h: 0, maxLen: 99, accepted: 1, finish: r, last: 5, active: 1, cursor: at(26, 0, 2)},
		{name: "prefill behind records", prefill: 2, samples: []int{5}, h: 5, maxLen: 99, accepted: 1, finish: r, last: 5, active: 1, cursor: at(27, 0, 2)},
		{name: "prefill stops", prefill: 6, samples: []int{5}, stops: []int{5}, maxLen: 99, accepted: 1, finish: s, last: 5, cursor: at(26, 0, 2)},
		{name: "prefill stop below min len", prefill: 6, samples: []int{5}, stops: []int{5}, minLen: 27, maxLen: 99, accepted: 1, finish: r, last: 5, active: 1, cursor: at(26, 0, 2)},
		{name: "prefill at the length", prefill: 6, samples: []int{5}, maxLen: 27, accepted: 1, finish: l, last: 5, cursor: at(26, 0, 2)},
	}
}

// run commits the row between a null row and another slot that must not change.
func (c commitRow) run(b *bench) {
	n := len(c.samples)
	if c.prefill > 0 {
		n = c.prefill
	}
	spec := slotSpec{
		SlotParams: kernels.SlotParams{MinLen: int32(c.minLen), MaxLen: int32(c.maxLen), Flags: kernels.UsePenalties}, counts: map[int]int{5: 1},
		last: old, drafts: c.drafts, drafted: 3, stops: c.stops, cursor: kernels.Cursor{Origin: 20, H: int32(c.h), Src: 1, Dst: 2},
	}
	if c.prefill == 0 && n > 0 {
		spec.active = 1
	}
	other := slotSpec{active: 1, last: 9, cursor: kernels.Cursor{Origin: 4, H: 2, Src: 3, Dst: 3}}
	slots := newSlotSet(b, 64, 4, []slotSpec{other, spec})
	x := &commitBatch{slots: slots, t: 5, sampleFirst: 2}
	if c.prefill > 0 {
		x.prefill = []commitItem{{slot: 0}, {slot: 2, n: n, position: 20 + c.h, samples: c.samples}}
	} else {
		x.step = []commitItem{{slot: 0}, {slot: 2, n: n, position: 20 + c.h, samples: c.samples}, {slot: 1}}
	}
	accepted, finish := x.run(b)
	got := kernels.Cursor{}
	for i, v := range []*int32{&got.Origin, &got.H, &got.Src, &got.Dst} {
		*v = int32(slots.cursor[i].intsOf(device)[2])
	}
	drafted := 3
	if n > 0 {
		drafted = 0
	}
	if d := slots.drafted.intsOf(device)[2]; d != drafted {
		b.Errorf("%d drafts are left, want %d", d, drafted)
	}
	count := slots.counts.intsOf(device)[2*64 : 3*64]
	if accepted[1] != c.accepted || finish[1] != int(c.finish) || slots.last.intsOf(device)[2] != c.last || slots.active.intsOf(device)[2] != c.active || got != c.cursor {
		b.Errorf("accepted %d finish %d last %d active %d cursor %+v, want %+v", accepted[1], finish[1], slots.last.intsOf(device)[2], slots.active.intsOf(device)[2], got, c)
	}
	for id := range count {
		want := 0
		if i := slices.Index(c.samples[:min(c.accepted, len(c.samples))], id); i >= 0 {
			want = 1
		}
		if id == 5 {
			want++
		}
		if count[id] != want {
			b.Errorf("token %d is counted %d times, want %d", id, count[id], want)
		}
	}
}

// commitItem is a row of a commit; position is the index of its first token.
type commitItem struct {
	slot, n, position int
	samples           []int
}

// commitBatch is the rows of a commit: step rows behind two tokens of somebody else, then packed prefill rows.
type commitBatch struct {
	slots         *slotSet
	t             int
	step, prefill []commitItem
	sampleFirst   int
}

// run commits, compares everything with the oracle and returns accepted counts and finish reasons.
func (x *commitBatch) run(b *bench) (accepted, finish []int) {
	const before = 2
	var slot, n, pslot, pn, pstart, final []int
	pos, sampled := garbageInts(before), garbageInts(x.sampleFirst)
	for _, r := range x.step {
		slot, n = append(slot, r.slot), append(n, r.n)
		for j := range x.t {
			p, s := -1, -1
			if j < r.n {
				p, s = r.position+j, r.samples[j]
			}
			pos, sampled = append(pos, p), append(sampled, s)
		}
	}
	stepTokens := len(pos) - before
	for _, r := range x.prefill {
		pslot, pn, pstart = append(pslot, r.slot), append(pn, r.n), append(pstart, len(pos))
		for j := range r.n {
			pos = append(pos, r.position+j)
		}
		if len(r.samples) == 0 {
			final = append(final, -1)
			continue
		}
		final, sampled = append(final, len(sampled)), append(sampled, r.samples[0])
	}
	in := map[string]*array{"slot": b.ints("slot", slot...), "n": b.ints("n", n...), "pslot": b.ints("pslot", pslot...), "pn": b.ints("pn", pn...),
		"start": b.ints("start", pstart...), "final": b.ints("final", final...), "pos": b.ints("pos", pos...), "sampled": b.ints("sampled", sampled...)}
	rows := len(x.step) + len(x.prefill)
	acc, fin := b.outInts("accepted", rows), b.outInts("finish", rows)
	changes := []*array{x.slots.active, x.slots.last, x.slots.counts, x.slots.drafted, x.slots.cursor[0], x.slots.cursor[1], x.slots.cursor[2], x.slots.cursor[3]}
	for _, a := range changes {
		a.allow(0, len(a.before))
	}
	b.run(func(o kernels.Ops, s side) {
		c := kernels.Commit{Cursors: x.slots.cursors(s), Slots: x.slots.counted(s), Tables: x.slots.tables(s), Window: commitWindow,
			Pos: in["pos"].buf[s], Sampled: in["sampled"].buf[s], SampleFirst: x.sampleFirst, Final: in["final"].buf[s], Accepted: acc.buf[s], Finish: fin.buf[s]}
		if len(x.step) > 0 {
			c.Step = kernels.Rows{Count: len(x.step), First: before, Tokens: stepTokens, T: x.t, MaxLen: x.t, Slot: in["slot"].buf[s], N: in["n"].buf[s]}
		}
		if len(x.prefill) > 0 {
			tokens := len(pos) - before - stepTokens
			c.Prefill = kernels.Rows{Count: len(x.prefill), First: before + stepTokens, Tokens: tokens, MaxLen: tokens, Slot: in["pslot"].buf[s], N: in["pn"].buf[s], Start: in["start"].buf[s]}
		}
		o.Commit(c)
	})
	b.same(append(changes, acc, fin)...)
	return acc.intsOf(device), fin.intsOf(device)
}

// commitRandomCase commits many rows of all kinds at once.
func commitRandomCase(b *bench, t int) {
	for range 20 {
		x := &commitBatch{t: t, sampleFirst: b.IntN(3)}
		var specs []slotSpec
		for slot := 1; slot <= 30; slot++ {
			s := slotSpec{active: 1, last: b.IntN(9), drafted: b.IntN(5), stops: []int{b.IntN(9), -1, b.IntN(60)}, cursor: kernels.Cursor{Origin: int32(b.IntN(50)), H: int32(b.IntN(9)), Src: int32(slot), Dst: int32(slot + b.IntN(2))}}
			position := int(s.cursor.Origin + s.cursor.H)
			s.MinLen, s.MaxLen = int32(position+b.IntN(4)), int32(position+2+b.IntN(8))
			s.Flags = uint32(b.IntN(2)) * kernels.UsePenalties
			for range 4 {
				s.drafts = append(s.drafts, b.IntN(2))
			}
			item := commitItem{slot: slot, position: position}
			if slot%3 == 0 {
				item.n, item.samples = b.IntN(9), []int{b.IntN(9)}[:b.IntN(2)]
				if item.n == 0 {
					item.samples = nil
				}
				s.active = 0
				x.prefill = append(x.prefill, item)
			} else {
				item.n = b.IntN(t + 1)
				for range item.n {
					item.samples = append(item.samples, b.IntN(2+8*b.IntN(2)))
				}
				x.step = append(x.step, item)
			}
			specs = append(specs, s)
		}
		x.slots = newSlotSet(b, 64, 4, specs)
		x.run(b)
	}
}

// beginCase derives ids and positions of active, inactive and null slots and of prefill rows.
func beginCase(b *bench, t int) { beginRows(b, t, true) }

// beginUncountedCase is the same on slots whose drafts are all valid.
func beginUncountedCase(b *bench, t int) { beginRows(b, t, false) }

func beginRows(b *bench, t int, counted bool) {
	var specs []slotSpec
	var slot, want, pslot, pn, pstart []int
	for i := range 24 {
		s := slotSpec{active: b.IntN(4), last: b.IntN(90), drafts: b.Perm(90)[:4], drafted: b.IntN(3), cursor: kernels.Cursor{Origin: int32(b.IntN(50)), H: int32(b.IntN(9))}}
		s.active = min(s.active, 1)
		s.MaxLen = s.cursor.Origin + s.cursor.H + 1 + int32(i%(t+2))
		specs = append(specs, s)
		if i >= 16 {
			pslot, pn = append(pslot, 1+i), append(pn, b.IntN(6))
			continue
		}
		slot, want = append(slot, 1+i, 0), append(want, 1+b.IntN(t), 1)
	}
	set, first := newSlotSet(b, 90, 4, specs), 3
	stepTokens := len(slot) * t
	end := first + stepTokens
	for _, n := range pn {
		pstart = append(pstart, end)
		end += n
	}
	tokens := end - first - stepTokens
	given := b.ints("prefill ids", b.Perm(tokens + 1)[:tokens]...)
	ids, pos, n := b.outInts("ids", end+1), b.outInts("pos", end+1), b.outInts("n", len(slot))
	for _, a := range []*array{ids, pos} {
		a.fixed()
		a.allow(4*first, 4*(end-first))
	}
	in := []*array{b.ints("slot", slot...), b.ints("want", want...), b.ints("pslot", pslot...), b.ints("pn", pn...), b.ints("start", pstart...)}
	b.run(func(o kernels.Ops, s side) {
		list := set.slots(s)
		if counted {
			list = set.counted(s)
		}
		o.Begin(kernels.Begin{
			Step:    kernels.Rows{Count: len(slot), First: first, Tokens: stepTokens, T: t, MaxLen: t, Slot: in[0].buf[s], N: n.buf[s]},
			Prefill: kernels.Rows{Count: len(pslot), First: first + stepTokens, Tokens: tokens, MaxLen: 5, Slot: in[2].buf[s], N: in[3].buf[s], Start: in[4].buf[s]},
			Want:    in[1].buf[s], PrefillIDs: given.buf[s], Cursors: set.cursors(s), Slots: list, IDs: ids.buf[s], Pos: pos.buf[s],
		})
	})
	b.same(n, ids, pos)
	for i, count := range n.intsOf(device) {
		if at := slot[i]; at == 0 && count != 0 || at > 0 && specs[at-1].active == 0 && count != 0 {
			b.Errorf("row %d of slot %d: n = %d", i, at, count)
		}
	}
}

// emptyCommitCase has no rows at all.
func emptyCommitCase(b *bench) {
	set := newSlotSet(b, 8, 1, []slotSpec{{active: 1}})
	b.run(func(o kernels.Ops, s side) {
		o.Begin(kernels.Begin{Cursors: set.cursors(s), Slots: set.slots(s)})
		o.Commit(kernels.Commit{Cursors: set.cursors(s), Slots: set.slots(s), Tables: set.tables(s), Window: commitWindow})
	})
	if got := fmt.Sprint(set.active.intsOf(device)); got != "[0 1]" {
		b.Errorf("active %s", got)
	}
}
