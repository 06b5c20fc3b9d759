package states

import (
	"fmt"
	"math"

	"reprise/attention"
	"reprise/engine/states/internal/ledger"
	"reprise/kernels"
	"reprise/ssm"
)

// ID names a sequence.
type ID = int64

// ErrHostMemory is wrapped by Snapshot and SwapOut when Config.HostBytes are used up; nothing has changed then. The answer
// to a failed SwapOut is Release and computing the sequence again.
var ErrHostMemory = ledger.ErrHostMemory

// Shortage is the error of Prepare and Fits: what is missing.
type Shortage = ledger.Shortage

// Config is what the pools do not know; slots, pages and lengths are those of the KV pool.
type Config struct {
	Blocks    int   // state blocks of the SSM pool, the null one included
	Scratch   int   // scratch blocks of the SSM pool; 0 = unfinished prompts need none
	HostBytes int64 // host memory for snapshots' tails and swapped-out sequences; it is taken as needed and kept
	Extra     Extra // optional
}

// Extra is per-slot memory of others that belongs to an image: last token, drafts, sampler counts. Save and Load run
// inside programs; the memory has Bytes() bytes and stays valid until the copies are done.
type Extra interface {
	Bytes() int64
	Save(o kernels.Ops, slot int, dst []byte)
	Load(o kernels.Ops, slot int, src []byte)
}

func (c Config) check(kv attention.PoolConfig) error {
	switch {
	case c.Blocks < 2:
		return fmt.Errorf("states: %d state blocks, want one besides the null one", c.Blocks)
	case c.Scratch < 0:
		return fmt.Errorf("states: %d scratch blocks", c.Scratch)
	case c.HostBytes < 0:
		return fmt.Errorf("states: %d bytes of host memory", c.HostBytes)
	case int64(kv.Slots)*int64(kv.TableStride()) > math.MaxInt32:
		return fmt.Errorf("states: a page table of %d slots x %d pages is too large", kv.Slots, kv.TableStride())
	}
	return nil
}

// hostChunk is how much host memory is asked for at a time.
const hostChunk = 64 << 20

// States keeps the books and records device work. Not safe for concurrent use.
type States struct {
	extra      Extra
	dev        kernels.Device
	ssm        *ssm.Pool
	kv         *attention.Pool
	pageTokens int
	pageBytes  int64 // of all layers
	stride     int   // of the page table

	books     *ledger.Ledger
	arena     *ledger.Arena
	chunks    [][]byte      // of the arena
	images    map[ID]*image // of swapped-out sequences
	snapshots map[*Snapshot]struct{}
	staging   kernels.Buffer // device side of scatters, used by one after another

	needs   []ledger.Need
	changes ledger.Changes
}

// New makes the books for two pools in which nothing is owned.
func New(c Config, dev kernels.Device, s *ssm.Pool, kv *attention.Pool) (*States, error) {
	k := kv.Config()
	if err := c.check(k); err != nil {
		return nil, err
	}
	staging, err := dev.Alloc(scatterBytes)
	if err != nil {
		return nil, fmt.Errorf("states: %w", err)
	}
	st := &States{
		extra: c.Extra, dev: dev, ssm: s, kv: kv, pageTokens: k.PageTokens, pageBytes: k.PageBytes(), stride: k.TableStride(),
		images: make(map[ID]*image), snapshots: make(map[*Snapshot]struct{}), staging: staging,
	}
	st.books = ledger.New(ledger.Config{
		Slots: k.Slots, Blocks: c.Blocks, Pages: k.Pages, PageTokens: k.PageTokens, MaxPages: st.stride, Scratch: c.Scratch,
	})
	st.arena = ledger.NewArena(c.HostBytes, hostChunk, st.growHost)
	return st, nil
}

func (s *States) growHost(bytes int64) error {
	b, err := s.dev.AllocHost(bytes)
	if err == nil {
		s.chunks = append(s.chunks, b)
	}
	return err
}

// Fits reports whether a sequence of so many tokens could ever run: nil, or a *Shortage.
func (s *States) Fits(tokens int) error { return s.books.Fits(tokens) }

// Slot is the slot of a sequence that holds one.
func (s *States) Slot(id ID) (int, bool) {
	slot, ok := s.books.Slot(id)
	return int(slot), ok
}

// Swapped reports whether the sequence's state is in host memory.
func (s *States) Swapped(id ID) bool { return s.books.Swapped(id) }

// Observe tells the cursor of a sequence as read back from the device, of any finished step. It only matters for a
// sequence that shares its block: once the cursor has left the block, the share is given back. SwapOut and Snapshot imply
// it.
func (s *States) Observe(id ID, c kernels.Cursor) { s.books.Observe(id, c.Src) }

// Release takes back everything that a sequence holds: running, swapped out, or unknown, which holds nothing. Steps of it
// may still be in flight.
func (s *States) Release(id ID) {
	if im := s.images[id]; im != nil {
		s.arena.Free(im.at)
		delete(s.images, id)
	}
	s.books.Release(id)
}

// Usage is what is owned and what there is.
type Usage struct {
	Slots, Blocks, Pages, Scratch                     int
	TotalSlots, TotalBlocks, TotalPages, TotalScratch int // null ones not counted
	Swapped, Snapshots                                int
	HostBytes                                         int64
}

// Usage is for metrics.
func (s *States) Usage() Usage {
	u := s.books.Usage()
	return Usage{
		u.Slots, u.Blocks, u.Pages, u.Scratch, u.TotalSlots, u.TotalBlocks, u.TotalPages, u.TotalScratch,
		u.Swapped, u.Snapshots, s.arena.Used(),
	}
}

// Check recounts everything: each slot, block, page and byte of host memory is free or owned, and owned as often as it
// is referred to. It costs time in proportion to the pools; call it in tests and when idle.
func (s *States) Check() error {
	var snapshots []*ledger.Snapshot
	var extents []ledger.Extent
	for snap := range s.snapshots {
		snapshots = append(snapshots, snap.books)
		extents = append(extents, snap.at)
	}
	for id, im := range s.images {
		if !s.books.Swapped(id) {
			return fmt.Errorf("states: an image of sequence %d, which is not swapped out", id)
		}
		extents = append(extents, im.at)
	}
	if n := s.books.Usage().Swapped; n != len(s.images) {
		return fmt.Errorf("states: %d sequences are swapped out, %d images are held", n, len(s.images))
	}
	if err := s.books.Check(snapshots); err != nil {
		return err
	}
	return s.arena.Check(extents)
}

// Idle reports what is still owned, by snapshots too: nil when everything is free.
func (s *States) Idle() error {
	if err := s.Check(); err != nil {
		return err
	}
	if u := s.Usage(); u.Slots+u.Blocks+u.Pages+u.Scratch+u.Swapped+u.Snapshots > 0 || u.HostBytes > 0 {
		return fmt.Errorf("states: not idle: %+v", u)
	}
	return nil
}
