package ledger

import "fmt"

// Usage counts what is owned, null ones left out.
type Usage struct {
	Slots, Blocks, Pages, Scratch                     int
	TotalSlots, TotalBlocks, TotalPages, TotalScratch int
	Swapped, Snapshots                                int
}

// Usage is the present state of the books.
func (l *Ledger) Usage() Usage {
	c := l.config
	return Usage{
		Slots: c.Slots - 1 - len(l.slots), Blocks: l.blocks.used(), Pages: l.pages.used(), Scratch: l.scratch.used(),
		TotalSlots: c.Slots - 1, TotalBlocks: c.Blocks - 1, TotalPages: c.Pages - 1, TotalScratch: c.Scratch,
		Swapped: len(l.swapped), Snapshots: l.snapshots,
	}
}

// Check recounts everything: slots are free or owned by one sequence, references equal owners, pages and blocks that are
// written have one writer, and nothing is lost. snapshots are all that are held.
func (l *Ledger) Check(snapshots []*Snapshot) error {
	if err := l.checkSlots(); err != nil {
		return fmt.Errorf("ledger: %w", err)
	}
	blocks, pages, scratch := make([]int32, l.config.Blocks), make([]int32, l.config.Pages), make([]int32, l.config.Scratch+1)
	for _, slot := range l.live {
		s := &l.sequences[slot]
		blocks[s.src]++
		if s.dst != s.src {
			blocks[s.dst]++
		}
		if s.scratch != 0 {
			scratch[s.scratch]++
		}
		for _, p := range s.pages {
			pages[p]++
		}
	}
	held := 0
	for _, s := range snapshots {
		if !s.held {
			return fmt.Errorf("ledger: a snapshot that was dropped is still listed")
		}
		blocks[s.block]++
		held += len(s.pages)
		for _, p := range s.pages {
			pages[p]++
		}
	}
	if len(snapshots) != l.snapshots || held != l.sharedPages {
		return fmt.Errorf("ledger: %d snapshots with %d pages are listed, %d with %d are held", len(snapshots), held, l.snapshots, l.sharedPages)
	}
	for _, c := range []struct {
		of     *counted
		owners []int32
	}{{&l.blocks, blocks}, {&l.pages, pages}, {&l.scratch, scratch}} {
		if err := c.of.check(c.owners); err != nil {
			return fmt.Errorf("ledger: %w", err)
		}
	}
	return nil
}

func (l *Ledger) checkSlots() error {
	free := make([]bool, l.config.Slots)
	for _, s := range l.slots {
		if s < 1 || int(s) >= len(free) || free[s] {
			return fmt.Errorf("slot %d is twice or wrongly in the free list", s)
		}
		free[s] = true
	}
	if len(l.live)+len(l.slots) != l.config.Slots-1 {
		return fmt.Errorf("%d slots are free, %d owned, of %d", len(l.slots), len(l.live), l.config.Slots-1)
	}
	for id, slot := range l.live {
		s := &l.sequences[slot]
		if free[slot] || s.id != id || s.src == 0 || s.dst == 0 {
			return fmt.Errorf("sequence %d: slot %d (free: %v) belongs to %d, blocks %d and %d", id, slot, free[slot], s.id, s.src, s.dst)
		}
		if _, both := l.swapped[id]; both {
			return fmt.Errorf("sequence %d is live and swapped out", id)
		}
		if s.dst != s.src && l.blocks.refs[s.dst] != 1 {
			return fmt.Errorf("sequence %d: its reserved block %d has %d owners", id, s.dst, l.blocks.refs[s.dst])
		}
	}
	return nil
}

// Table is the page table row of a live sequence, as the device should have it; valid until the ledger changes.
func (l *Ledger) Table(id ID) []int32 {
	_, s := l.mustLive(id)
	return s.pages
}

// Blocks is the blocks of a live sequence as last observed: the one read and the one written.
func (l *Ledger) Blocks(id ID) (src, dst int32) {
	_, s := l.mustLive(id)
	return s.src, s.dst
}
