package ledger

import "fmt"

// Prepare makes room for all needs or for none: with a *Shortage nothing has changed. An id occurs once in needs. It does
// not allocate once c has grown to size, unless there is a shortage.
func (l *Ledger) Prepare(needs []Need, c *Changes) error {
	c.reset()
	var want Shortage
	for i := range needs {
		l.count(&needs[i], &want)
	}
	want.Slots = max(0, want.Slots-len(l.slots))
	want.Blocks = max(0, want.Blocks-len(l.blocks.free))
	want.Pages = max(0, want.Pages-len(l.pages.free))
	want.Scratch = max(0, want.Scratch-len(l.scratch.free))
	if want != (Shortage{}) {
		short := want // only this copy escapes
		return &short
	}
	for i := range needs {
		l.give(i, &needs[i], c)
	}
	for i := range c.Staged { // not before all are given: rows of one step run side by side
		if st := &c.Staged[i]; !st.After {
			l.unstage(needs[st.Row].ID)
		}
	}
	return nil
}

func (l *Ledger) unstage(id ID) {
	_, s := l.mustLive(id)
	l.scratch.drop(s.scratch)
	s.scratch = 0
}

// count adds what a need takes from the free lists.
func (l *Ledger) count(n *Need, want *Shortage) {
	pages := l.pagesFor(n.Tokens)
	if n.Tokens < 0 || pages > l.config.MaxPages {
		panic(fmt.Sprintf("ledger: sequence %d needs %d tokens, at most %d", n.ID, n.Tokens, l.config.MaxPages*l.config.PageTokens))
	}
	if slot, ok := l.live[n.ID]; ok {
		s := &l.sequences[slot]
		want.Pages += max(0, pages-len(s.pages))
		if l.mustReserve(s) {
			want.Blocks++
		}
		if s.scratch == 0 && l.mustStage(n, false) {
			want.Scratch++
		}
		return
	}
	want.Slots++
	want.Blocks++
	out, known := l.swapped[n.ID]
	if known {
		pages = max(pages, l.pagesFor(out.tokens))
	} else if n.From != nil {
		pages = max(pages, len(n.From.pages)) - l.shared(n.From)
	}
	want.Pages += pages
	if out.staged || !known && n.From != nil && n.From.staged || l.mustStage(n, !known && n.From == nil) {
		want.Scratch++
	}
}

// mustStage reports whether a row without a scratch block needs one: all chunks but that of a prompt that is computed
// whole, from nothing.
func (l *Ledger) mustStage(n *Need, fresh bool) bool {
	return l.config.Scratch > 0 && (n.Prefill == Chunk || n.Prefill == LastChunk && !fresh)
}

// mustReserve reports whether the sequence would write a block that others read.
func (l *Ledger) mustReserve(s *sequence) bool { return s.dst == s.src && l.blocks.refs[s.src] > 1 }

func (l *Ledger) give(row int, n *Need, c *Changes) {
	slot, ok := l.live[n.ID]
	fresh := false
	if !ok {
		var how Opening
		slot, how = l.open(row, n, c)
		fresh = how == Fresh
	}
	s := &l.sequences[slot]
	if before := s.scratch != 0; before || l.mustStage(n, fresh) {
		if !before {
			s.scratch = l.scratch.take()
		}
		c.Staged = append(c.Staged, Staged{row, s.scratch, before, n.Prefill != LastChunk})
	}
	if l.mustReserve(s) {
		s.dst = l.blocks.take()
		c.Reserved = append(c.Reserved, Reserve{slot, s.dst})
	}
	l.grow(slot, l.pagesFor(n.Tokens), c)
}

// open gives a sequence its slot, block and what else it begins with.
func (l *Ledger) open(row int, n *Need, c *Changes) (int32, Opening) {
	slot := l.slots[len(l.slots)-1]
	l.slots = l.slots[:len(l.slots)-1]
	l.live[n.ID] = slot
	s := &l.sequences[slot]
	s.id, s.dst = n.ID, l.blocks.take()
	s.src = s.dst
	o, staged := Opened{Row: row, How: Fresh, Slot: slot}, false
	if out, ok := l.swapped[n.ID]; ok {
		delete(l.swapped, n.ID)
		l.grow(slot, l.pagesFor(out.tokens), c)
		o.How, o.Pages, staged = SwappedIn, s.pages, out.staged
	} else if n.From != nil {
		l.restore(slot, n.From, c)
		o.How, staged = Restored, n.From.staged
	}
	if staged {
		s.scratch = l.scratch.take()
	}
	o.Src, o.Dst, o.Scratch = s.src, s.dst, s.scratch
	c.Opened = append(c.Opened, o)
	return slot, o.How
}

// shared is how many of a snapshot's pages a sequence restored from it uses as they are.
func (l *Ledger) shared(s *Snapshot) int { return max(0, s.tokens-1) / l.config.PageTokens }

// restore shares a snapshot's block and pages but the last, which is copied.
func (l *Ledger) restore(slot int32, from *Snapshot, c *Changes) {
	if !from.held {
		panic("ledger: restore from a dropped snapshot")
	}
	s := &l.sequences[slot]
	s.src = from.block
	l.blocks.share(from.block)
	shared := l.shared(from)
	for _, p := range from.pages[:shared] {
		l.pages.share(p)
		l.append(slot, p, c)
	}
	for _, p := range from.pages[shared:] {
		page := l.pages.take()
		c.Copies = append(c.Copies, Copy{p, page})
		l.append(slot, page, c)
	}
}

// grow adds pages until the sequence has n.
func (l *Ledger) grow(slot int32, n int, c *Changes) {
	for len(l.sequences[slot].pages) < n {
		l.append(slot, l.pages.take(), c)
	}
}

func (l *Ledger) append(slot, page int32, c *Changes) {
	s := &l.sequences[slot]
	c.Table = append(c.Table, Entry{slot, int32(len(s.pages)), page})
	s.pages = append(s.pages, page)
}
