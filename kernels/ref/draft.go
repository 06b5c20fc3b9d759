package ref

import "reprise/kernels"

// committed is a step behind its Commit.
type committed struct {
	kernels.Committed
	slots
	ids, pos, sampled, final, accepted, want ints
}

func (o ops[F]) committed(p kernels.Committed) committed {
	return committed{p, o.slots(p.Slots), o.ints(p.IDs), o.ints(p.Pos), o.ints(p.Sampled), o.ints(p.Final), o.ints(p.Accepted), o.ints(p.Want)}
}

// pairs are one row's: where they lie, and the token that follows each.
type pairs struct {
	slot, first int
	next        []int
	goes        bool // the sequence may go on behind them
}

// pairs resolves all rows, whatever their Want.
func (o ops[F]) pairs(c committed, following ints) []pairs {
	var list []pairs
	none := kernels.Cursors{Origin: c.Active, H: c.Active, Src: c.Active, Dst: c.Active}
	for r, s := range o.sequences(c.Step, none) {
		p := pairs{slot: s.slot, first: s.first, goes: s.n > 0 && c.active.at(s.slot) != 0}
		for j := range c.accepted.at(r) {
			p.next = append(p.next, c.sampled.at(c.SampleFirst+r*c.Step.T+j))
		}
		list = append(list, p)
	}
	for r, s := range o.sequences(c.Prefill, none) {
		final := c.final.at(r)
		p := pairs{slot: s.slot, first: s.first, goes: s.n > 0 && final >= 0 && c.active.at(s.slot) != 0}
		for j := 1; j < s.n; j++ {
			p.next = append(p.next, c.ids.at(s.first+j))
		}
		if s.n > 0 {
			last := 0
			if final >= 0 {
				last = c.sampled.at(final)
			} else if following != nil {
				last = max(following.at(r), 0)
			}
			p.next = append(p.next, last)
		}
		list = append(list, p)
	}
	return list
}

func (o ops[F]) DraftBegin(p kernels.DraftBegin) {
	o.begin("DraftBegin", p.Validate())
	c, next := o.committed(p.Committed), o.ints(p.Next)
	n, last, left := o.ints(p.N), o.ints(p.Last), o.ints(p.Left)
	for _, rows := range []kernels.Rows{p.Step, p.Prefill} {
		for i := range rows.Tokens {
			next.set(rows.First+i, 0)
		}
	}
	for r, row := range o.pairs(c, o.ints(p.Following)) {
		if r < p.Step.Count && c.want.at(r) <= 0 {
			row.next = nil
		}
		for j, id := range row.next {
			next.set(row.first+j, id)
		}
		count := len(row.next)
		n.set(r, count)
		last.set(r, -1)
		left.set(r, 0)
		if count == 0 {
			continue
		}
		last.set(r, row.first+count-1)
		if row.goes {
			left.set(r, max(0, c.want.at(r)))
		}
		o.addPairs(p.Drafting, row.slot, count)
	}
}

// addPairs says that a slot's head reads so many pairs more.
func (o ops[F]) addPairs(d kernels.Drafting, slot, count int) {
	pairs := o.ints(d.Pairs)
	o.ints(d.Base).set(slot, pairs.at(slot))
	pairs.set(slot, pairs.at(slot)+count)
	o.ints(d.Ahead).set(slot, 0)
}

func (o ops[F]) DraftNext(p kernels.DraftNext) {
	o.begin("DraftNext", p.Validate())
	logits, slots := o.matrix(p.Logits), o.slots(p.Slots)
	slot, last, left, pos := o.ints(p.Slot), o.ints(p.Last), o.ints(p.Left), o.ints(p.Pos)
	n, next, nextPos := o.ints(p.N), o.ints(p.Next), o.ints(p.NextPos)
	for r := range p.Logits.Rows {
		n.set(r, 0)
		next.set(r, 0)
		nextPos.set(r, -1)
		if left.at(r) <= p.Index {
			continue
		}
		at, id := slot.at(r), best(logits.get(r), 1)[0]
		slots.drafts.set(at*p.Slots.DraftStride+p.Index, id)
		slots.setDrafts(at, p.Index+1)
		o.ints(p.Drafting.Ahead).set(at, p.Index)
		if left.at(r) > p.Index+1 {
			n.set(r, 1)
			next.set(r, id)
			nextPos.set(r, pos.at(last.at(r))+1+p.Index)
		}
	}
}

func (o ops[F]) DraftLookup(p kernels.DraftLookup) {
	o.begin("DraftLookup", p.Validate())
	c, history := o.committed(p.Committed), o.ints(p.History)
	for r, row := range o.pairs(c, nil) {
		want, count := c.want.at(r), len(row.next)
		if want < 0 || count == 0 {
			continue
		}
		first, from := c.pos.at(row.first), row.slot*p.HistoryStride
		if r >= p.Step.Count {
			history.set(from+first, c.ids.at(row.first))
			if c.final.at(r-p.Step.Count) < 0 {
				row.next = row.next[:count-1]
			}
		}
		for j, id := range row.next {
			history.set(from+first+1+j, id)
		}
		if want == 0 || !row.goes {
			continue
		}
		known := make([]int, first+count+1)
		for i := range known {
			known[i] = history.at(from + i)
		}
		if drafts := lookup(known, p.MinMatch, p.MaxMatch, want); drafts != nil {
			for i, id := range drafts {
				c.drafts.set(row.slot*p.Slots.DraftStride+i, id)
			}
			c.setDrafts(row.slot, want)
		}
	}
}

// lookup returns what followed the longest, latest repetition of the last tokens, or nil.
func lookup(known []int, least, most, want int) []int {
	for m := most; m >= least; m-- {
		for e := len(known) - 2; e >= m-1; e-- {
			if same(known[e+1-m:e+1], known[len(known)-m:]) {
				for range want {
					known = append(known, known[e+1])
					e++
				}
				return known[len(known)-want:]
			}
		}
	}
	return nil
}

func same(a, b []int) bool {
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}
