package spec

import (
	"fmt"
	"unsafe"

	"reprise/kernels"
)

// LookupConfig sizes a look-up drafter.
type LookupConfig struct {
	Slots, MaxLen      int // slots with the null one; tokens of the longest sequence
	MinMatch, MaxMatch int // last tokens that must have occurred before, and that are tried at most
}

// Bytes is the device memory of the drafter.
func (c LookupConfig) Bytes() int64 { return int64(c.Slots) * int64(c.MaxLen) * 4 }

// lookup drafts what followed the last tokens where they occurred before in the sequence.
type lookup struct {
	config  LookupConfig
	history kernels.Buffer // i32 [slots, MaxLen]
}

// NewLookup makes a drafter that needs no model.
func NewLookup(dev kernels.Device, c LookupConfig) (Drafter, error) {
	history, err := dev.Alloc(c.Bytes())
	if err != nil {
		return nil, fmt.Errorf("token history of %d slots: %w", c.Slots, err)
	}
	return &lookup{c, history}, nil
}

// Draft appends the step's tokens to the histories and looks their ends up.
func (d *lookup) Draft(o kernels.Ops, s *Step) {
	o.DraftLookup(kernels.DraftLookup{
		Committed: s.Committed, History: d.history, HistoryStride: d.config.MaxLen,
		MinMatch: d.config.MinMatch, MaxMatch: d.config.MaxMatch,
	})
}

// Open writes what is known of a sequence that does not begin with its prompt.
func (d *lookup) Open(o kernels.Ops, slot int, known []int32, _ bool) {
	if len(known) > 0 {
		b := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(known))), len(known)*4)
		o.Upload(ints(d.history, slot*d.config.MaxLen, len(known)), b)
	}
}

// Follows is true: a history has no holes.
func (d *lookup) Follows() bool { return true }

// Lookahead is 0: no pages are needed.
func (d *lookup) Lookahead(int) int { return 0 }

// SlotBytes is 0: the host knows all tokens.
func (d *lookup) SlotBytes() int64 { return 0 }

func (d *lookup) Save(kernels.Ops, int, []byte) {}
func (d *lookup) Load(kernels.Ops, int, []byte) {}
