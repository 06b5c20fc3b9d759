package ledger

import "fmt"

// ID names a sequence.
type ID = int64

// Config counts slots, blocks and pages including the null ones.
type Config struct {
	Slots, Blocks, Pages int
	PageTokens           int
	MaxPages             int // of one sequence
	// Scratch is the blocks for states of unfinished prefills, without a null one; 0 = those lie in state blocks too.
	Scratch int
}

// Prefill says whether a row is a chunk of a prompt.
type Prefill uint8

// Kinds of rows.
const (
	NoChunk   Prefill = iota // a step row
	Chunk                    // more of the prompt will follow
	LastChunk                // the prompt ends
)

// Need asks for room for one sequence: Tokens in its state after the step, in the worst case. A sequence that is not
// known is begun, from the snapshot From or from nothing; a swapped-out one comes back.
type Need struct {
	ID     ID
	Tokens int
	From   *Snapshot
	Prefill
}

// Shortage is the error of Prepare: what was missing.
type Shortage struct{ Slots, Blocks, Pages, Scratch int }

func (s *Shortage) Error() string {
	text := fmt.Sprintf("device memory is short of %d slots, %d state blocks and %d KV pages", s.Slots, s.Blocks, s.Pages)
	if s.Scratch > 0 {
		text += fmt.Sprintf(", and of %d scratch blocks", s.Scratch)
	}
	return text
}

// Opening says how a sequence got its slot.
type Opening uint8

// Ways to begin.
const (
	Fresh     Opening = iota // from nothing: block zeroed, no tokens
	Restored                 // from a snapshot
	SwappedIn                // from its image in host memory
)

// Opened is a sequence that got a slot. Pages, for SwappedIn, are to be filled from the image; valid until the ledger
// changes again. So is Scratch, if it is not 0; block Src holds nothing then.
type Opened struct {
	Row      int // index in the needs
	How      Opening
	Slot     int32
	Src, Dst int32
	Scratch  int32
	Pages    []int32
}

// Staged is a row whose state is in a scratch block, before the step, behind it, or within it only.
type Staged struct {
	Row           int // index in the needs
	Scratch       int32
	Before, After bool
}

// Entry is a new value of the page table.
type Entry struct{ Slot, Index, Page int32 }

// Reserve is a new dst block of a slot.
type Reserve struct{ Slot, Block int32 }

// Copy is a page to be copied before the step.
type Copy struct{ From, To int32 }

// Changes is what the device must do, in this order of fields. Table rows of opened slots are to be cleared first.
type Changes struct {
	Opened   []Opened
	Copies   []Copy
	Table    []Entry
	Reserved []Reserve
	Staged   []Staged // nothing is to be done
}

func (c *Changes) reset() {
	*c = Changes{c.Opened[:0], c.Copies[:0], c.Table[:0], c.Reserved[:0], c.Staged[:0]}
}

// sequence is a live sequence; it lies in the ledger's array by slot.
type sequence struct {
	id       ID
	src, dst int32
	scratch  int32   // where its state is while its prompt is unfinished; 0 = in src
	pages    []int32 // capacity MaxPages, memory fixed by slot
}

// Snapshot is a state that is kept: a block and the pages of its tokens.
type Snapshot struct {
	block  int32
	pages  []int32
	tokens int
	staged bool // of an unfinished prompt: a scratch block's copy is kept in place of the block
	held   bool
}

// swapped is what is remembered of a swapped-out sequence.
type swapped struct {
	tokens int
	staged bool
}

// Tokens is the number of tokens in the state.
func (s *Snapshot) Tokens() int { return s.tokens }

// Ledger owns everything. Not safe for concurrent use.
type Ledger struct {
	config                 Config
	blocks, pages, scratch counted
	slots                  []int32    // free, a stack
	sequences              []sequence // by slot
	live                   map[ID]int32
	swapped                map[ID]swapped
	snapshots, sharedPages int // held
}

// New makes a ledger in which everything is free.
func New(c Config) *Ledger {
	if c.Slots < 2 || c.Blocks < 2 || c.Pages < 2 || c.PageTokens < 1 || c.MaxPages < 1 || c.Scratch < 0 {
		panic(fmt.Sprintf("ledger: %+v", c))
	}
	l := &Ledger{
		config: c, blocks: newCounted("block", c.Blocks), pages: newCounted("page", c.Pages),
		scratch: newCounted("scratch block", c.Scratch+1), slots: descending(c.Slots),
		sequences: make([]sequence, c.Slots), live: make(map[ID]int32, c.Slots), swapped: make(map[ID]swapped),
	}
	table := make([]int32, c.Slots*c.MaxPages)
	for i := range l.sequences {
		l.sequences[i].pages = table[i*c.MaxPages : i*c.MaxPages : (i+1)*c.MaxPages]
	}
	return l
}

// pagesFor is the pages that hold n tokens.
func (l *Ledger) pagesFor(n int) int { return (n + l.config.PageTokens - 1) / l.config.PageTokens }

// Fits reports what a sequence of n tokens, alone on the device, would be short of; nil if nothing.
func (l *Ledger) Fits(n int) error {
	have := min(l.config.Pages-1, l.config.MaxPages)
	if want := l.pagesFor(n); want > have {
		return &Shortage{Pages: want - have}
	}
	return nil
}

// Slot is the slot of a live sequence.
func (l *Ledger) Slot(id ID) (int32, bool) {
	s, ok := l.live[id]
	return s, ok
}

// Swapped reports whether the sequence is swapped out.
func (l *Ledger) Swapped(id ID) bool {
	_, ok := l.swapped[id]
	return ok
}

func (l *Ledger) mustLive(id ID) (int32, *sequence) {
	slot, ok := l.live[id]
	if !ok {
		panic(fmt.Sprintf("ledger: sequence %d has no slot", id))
	}
	return slot, &l.sequences[slot]
}

// Observe tells which block the device reads for a live sequence: a shared block that it has left is let go.
func (l *Ledger) Observe(id ID, src int32) {
	_, s := l.mustLive(id)
	switch src {
	case s.src:
	case s.dst:
		l.blocks.drop(s.src)
		s.src = s.dst
	default:
		panic(fmt.Sprintf("ledger: sequence %d reads block %d, owns %d and %d", id, src, s.src, s.dst))
	}
}

// Share makes a snapshot of a live sequence that reads block src and has tokens in its state.
func (l *Ledger) Share(id ID, src int32, tokens int) *Snapshot {
	l.Observe(id, src)
	_, s := l.mustLive(id)
	pages := l.covered(id, s, tokens)
	snap := &Snapshot{block: s.src, pages: append([]int32(nil), pages...), tokens: tokens, staged: s.scratch != 0, held: true}
	l.blocks.share(s.src)
	for _, p := range pages {
		l.pages.share(p)
	}
	l.snapshots++
	l.sharedPages += len(pages)
	return snap
}

// covered is the pages that hold the tokens of a sequence.
func (l *Ledger) covered(id ID, s *sequence, tokens int) []int32 {
	n := l.pagesFor(tokens)
	if tokens < 0 || n > len(s.pages) {
		panic(fmt.Sprintf("ledger: sequence %d of %d tokens in %d pages", id, tokens, len(s.pages)))
	}
	return s.pages[:n]
}

// Drop gives a snapshot up; sequences restored from it are not touched.
func (l *Ledger) Drop(s *Snapshot) {
	if !s.held {
		panic("ledger: snapshot dropped twice")
	}
	l.blocks.drop(s.block)
	for _, p := range s.pages {
		l.pages.drop(p)
	}
	l.snapshots--
	l.sharedPages -= len(s.pages)
	*s = Snapshot{}
}

// Saved is what to copy of a sequence that is swapped out: its scratch block, or if that is 0 its block, and its pages;
// valid until the ledger changes again.
type Saved struct {
	Slot, Block, Scratch int32
	Pages                []int32
}

// SwapOut frees all that a live sequence holds and remembers its tokens. It returns what to save first.
func (l *Ledger) SwapOut(id ID, src int32, tokens int) Saved {
	l.Observe(id, src)
	slot, s := l.mustLive(id)
	out := Saved{slot, s.src, s.scratch, l.covered(id, s, tokens)}
	l.close(id, slot)
	l.swapped[id] = swapped{tokens, out.Scratch != 0}
	return out
}

// Scratch is where the state of a live sequence with an unfinished prompt is, 0 for others.
func (l *Ledger) Scratch(id ID) int32 {
	_, s := l.mustLive(id)
	return s.scratch
}

// Release frees all that a sequence holds, live or swapped out; an unknown one holds nothing.
func (l *Ledger) Release(id ID) {
	if slot, ok := l.live[id]; ok {
		l.close(id, slot)
	}
	delete(l.swapped, id)
}

func (l *Ledger) close(id ID, slot int32) {
	s := &l.sequences[slot]
	l.blocks.drop(s.src)
	if s.dst != s.src {
		l.blocks.drop(s.dst)
	}
	if s.scratch != 0 {
		l.scratch.drop(s.scratch)
	}
	for _, p := range s.pages {
		l.pages.drop(p)
	}
	*s = sequence{pages: s.pages[:0]}
	delete(l.live, id)
	l.slots = append(l.slots, slot)
}
