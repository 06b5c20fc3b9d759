package cpu

import "reprise/kernels"

// committed is a step behind its Commit.
type committed struct {
	slots
	step, prefill                            launch
	sampleFirst                              int
	ids, pos, sampled, final, accepted, want []int32
}

func committedOf(p *kernels.Committed) committed {
	return committed{
		slots: slotsOf(p.Slots), step: launchOf(p.Step), prefill: launchOf(p.Prefill), sampleFirst: p.SampleFirst,
		ids: i32(p.IDs), pos: i32(p.Pos), sampled: i32(p.Sampled), final: i32(p.Final), accepted: i32(p.Accepted), want: i32(p.Want),
	}
}

// run is the tokens that a step row added: those that follow its accepted ones.
func (c *committed) run(r int) []int32 {
	from := c.sampleFirst + r*c.step.T
	return c.sampled[from : from+int(c.accepted[r])]
}

// DraftBegin prepares a drafting head's launch over the tokens that a step added.
func (o *ops) DraftBegin(p kernels.DraftBegin) {
	o.enter("DraftBegin")
	must(p.Validate())
	d := draftBegin{
		committed: committedOf(&p.Committed), following: i32(p.Following), next: i32(p.Next), n: i32(p.N), last: i32(p.Last), left: i32(p.Left),
		pairs: i32(p.Pairs), base: i32(p.Base), ahead: i32(p.Ahead),
	}
	for r := range d.step.Count {
		d.stepRow(r)
	}
	for r := range d.prefill.Count {
		d.prefillRow(r)
	}
}

type draftBegin struct {
	committed
	following, next, n, last, left []int32
	pairs, base, ahead             []int32
}

func (d *draftBegin) stepRow(r int) {
	s := d.step.span(r)
	next := d.next[s.first : s.first+d.step.T]
	clear(next)
	if d.want[r] <= 0 {
		d.row(r, s.slot, s.first, 0, false)
		return
	}
	d.row(r, s.slot, s.first, copy(next, d.run(r)), true)
}

func (d *draftBegin) prefillRow(r int) {
	s, final := d.prefill.span(r), d.final[r]
	if s.n > 0 {
		last := s.first + s.n - 1
		copy(d.next[s.first:last], d.ids[s.first+1:last+1])
		if final >= 0 {
			d.next[last] = d.sampled[final]
		} else {
			d.next[last] = max(d.following[r], 0)
		}
	}
	d.row(d.step.Count+r, s.slot, s.first, s.n, final >= 0)
}

// row notes n pairs from token first on; goes says that drafts may follow them.
func (d *draftBegin) row(r int, slot int32, first, n int, goes bool) {
	d.n[r], d.last[r], d.left[r] = int32(n), -1, 0
	if n == 0 {
		return
	}
	d.last[r] = int32(first + n - 1)
	if goes && d.active[slot] != 0 {
		d.left[r] = max(0, d.want[r])
	}
	d.base[slot] = d.pairs[slot]
	d.pairs[slot] += int32(n)
	d.ahead[slot] = 0
}

// draftNext is the memory of DraftNext.
type draftNext struct {
	slots
	logits                rows
	index                 int32
	slot, last, left, pos []int32
	ahead                 []int32
	n, next, nextPos      []int32
}

// DraftNext takes one draft a row from the head's logits.
func (o *ops) DraftNext(p kernels.DraftNext) {
	o.enter("DraftNext")
	must(p.Validate())
	o.drafting = draftNext{
		slots: slotsOf(p.Slots), logits: rowsOf(p.Logits), index: int32(p.Index),
		slot: i32(p.Slot), last: i32(p.Last), left: i32(p.Left), pos: i32(p.Pos), ahead: i32(p.Drafting.Ahead),
		n: i32(p.N), next: i32(p.Next), nextPos: i32(p.NextPos),
	}
	o.eachRow(p.Logits.Rows, p.Logits.Cols, o.draftRow)
}

func (d *draftNext) row(r, _ int) {
	d.n[r], d.next[r], d.nextPos[r] = 0, 0, -1
	if d.left[r] <= d.index {
		return
	}
	slot, id := d.slot[r], int32(largest(d.logits.row(r)))
	d.drafts[int(slot)*d.DraftStride+int(d.index)] = id
	d.draftCount[slot] = d.index + 1
	d.ahead[slot] = d.index
	if d.left[r] > d.index+1 {
		d.n[r], d.next[r], d.nextPos[r] = 1, id, d.pos[d.last[r]]+1+d.index
	}
}

// DraftLookup drafts what followed the last tokens of a sequence where they occurred before.
func (o *ops) DraftLookup(p kernels.DraftLookup) {
	o.enter("DraftLookup")
	must(p.Validate())
	o.looking = draftLookup{
		committed: committedOf(&p.Committed), history: i32(p.History), stride: p.HistoryStride, least: p.MinMatch, most: p.MaxMatch,
	}
	o.eachRow(p.Step.Count+p.Prefill.Count, p.HistoryStride, o.lookupRow)
}

// draftLookup is the memory of DraftLookup.
type draftLookup struct {
	committed
	history             []int32
	stride, least, most int
}

func (d *draftLookup) row(r, _ int) {
	if d.want[r] < 0 {
		return
	}
	if r < d.step.Count {
		s := d.step.span(r)
		if s.n > 0 {
			at := int(d.pos[s.first]) + 1
			known := d.of(s.slot)[:at+int(d.accepted[r])]
			copy(known[at:], d.run(r))
			d.propose(r, s.slot, known)
		}
		return
	}
	s, final := d.prefill.span(r-d.step.Count), d.final[r-d.step.Count]
	if s.n == 0 {
		return
	}
	at := int(d.pos[s.first])
	known := d.of(s.slot)[:at+s.n]
	copy(known[at:], d.ids[s.first:s.first+s.n])
	if final >= 0 {
		d.propose(r, s.slot, append(known, d.sampled[final])) // the slot's own next entry
	}
}

// of is the history of a slot.
func (d *draftLookup) of(slot int32) []int32 {
	from := int(slot) * d.stride
	return d.history[from : from+d.stride]
}

// propose drafts behind the known tokens, which start the slot's history.
func (d *draftLookup) propose(r int, slot int32, known []int32) {
	want := int(d.want[r])
	if want == 0 || d.active[slot] == 0 {
		return
	}
	at := d.repeats(known)
	if at == 0 {
		return
	}
	drafts := d.drafts[int(slot)*d.DraftStride:][:want]
	for i := range drafts {
		if from := at + i; from < len(known) {
			drafts[i] = known[from]
		} else {
			drafts[i] = drafts[from-len(known)]
		}
	}
	d.draftCount[slot] = int32(want)
}

// repeats is the index behind the longest, latest place before the end where the last tokens occur; 0 without one.
func (d *draftLookup) repeats(known []int32) int {
	best, at := d.least-1, 0
	last := len(known) - 1
	for e := last - 1; e >= best && best < d.most; e-- {
		n := 0
		for n < d.most && n <= e && known[e-n] == known[last-n] {
			n++
		}
		if n > best {
			best, at = n, e+1
		}
	}
	return at
}
