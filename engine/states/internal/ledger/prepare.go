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
	if want != (Shortage{}) {
		short := want // only this copy escapes
		return &short
	}
	for i := range needs {
		l.give(i, &needs[i], c)
	}
	return nil
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
		return
	}
	want.Slots++
	want.Blocks++
	if tokens, ok := l.swapped[n.ID]; ok {
		pages = max(pages, l.pagesFor(tokens))
	} else if n.From != nil {
		pages = max(pages, len(n.From.pages)) - l.shared(n.From)
	}
	want.Pages += pages
}

// mustReserve reports whether the sequence would write a block that others read.
func (l *Ledger) mustReserve(s *sequence) bool { return s.dst == s.src && l.blocks.refs[s.src] > 1 }

func (l *Ledger) give(row int, n *Need, c *Changes) {
	slot, ok := l.live[n.ID]
	if !ok {
		slot = l.open(row, n, c)
	}
	s := &l.sequences[slot]
	if l.mustReserve(s) {
		s.dst = l.blocks.take()
		c.Reserved = append(c.Reserved, Reserve{slot, s.dst})
	}
	l.grow(slot, l.pagesFor(n.Tokens), c)
}

// open gives a sequence its slot, block and the pages that it begins with.
func (l *Ledger) open(row int, n *Need, c *Changes) int32 {
	slot := l.slots[len(l.slots)-1]
	l.slots = l.slots[:len(l.slots)-1]
	l.live[n.ID] = slot
	s := &l.sequences[slot]
	s.id, s.dst = n.ID, l.blocks.take()
	s.src = s.dst
	o := Opened{Row: row, How: Fresh, Slot: slot}
	if tokens, ok := l.swapped[n.ID]; ok {
		delete(l.swapped, n.ID)
		l.grow(slot, l.pagesFor(tokens), c)
		o.How, o.Pages = SwappedIn, s.pages
	} else if n.From != nil {
		l.restore(slot, n.From, c)
		o.How = Restored
	}
	o.Src, o.Dst = s.src, s.dst
	c.Opened = append(c.Opened, o)
	return slot
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
