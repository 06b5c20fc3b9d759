package ref

import (
	"encoding/binary"
	"math"

	"reprise/kernels"
)

// slots is the per-slot arrays resolved to memory.
type slots struct {
	kernels.Slots
	active, last, drafts, draftCount, stops ints
	params                                  []byte
}

func (d *Device) slots(s kernels.Slots) slots {
	return slots{s, d.ints(s.Active), d.ints(s.Last), d.ints(s.Drafts), d.ints(s.DraftCount), d.ints(s.Stops), d.bytes(s.Params)}
}

func (s slots) draft(slot, i int) int { return s.drafts.at(slot*s.DraftStride + i) }

// drafted is the number of a slot's drafts that may be verified.
func (s slots) drafted(slot int) int {
	if s.draftCount == nil {
		return s.DraftStride
	}
	return s.draftCount.at(slot)
}

// setDrafts says how many of a slot's drafts are valid.
func (s slots) setDrafts(slot, n int) {
	if s.draftCount != nil {
		s.draftCount.set(slot, n)
	}
}

// stopIDs is the stop ids of a slot.
func (s slots) stopIDs(slot int) []int {
	var list []int
	for i := range s.MaxStops {
		if id := s.stops.at(slot*s.MaxStops + i); id >= 0 {
			list = append(list, id)
		}
	}
	return list
}

// param decodes a slot's sampling parameters.
func (s slots) param(slot int) kernels.SlotParams {
	b := s.params[slot*kernels.SlotParamsBytes:]
	word := func(i int) uint32 { return binary.LittleEndian.Uint32(b[8+4*i:]) }
	float := func(i int) float32 { return math.Float32frombits(word(i)) }
	return kernels.SlotParams{
		Seed: binary.LittleEndian.Uint64(b), Temperature: float(0), TopP: float(1), MinP: float(2), TopK: int32(word(3)),
		Repetition: float(4), Presence: float(5), Frequency: float(6), Flags: word(7),
		PromptLen: int32(word(8)), MinLen: int32(word(9)), MaxLen: int32(word(10)), BiasCount: int32(word(11)),
	}
}
