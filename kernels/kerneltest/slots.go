package kerneltest

import (
	"encoding/binary"
	"math"

	"reprise/kernels"
)

// slotSpec is one slot of a test. Lists that are nil leave garbage in their tables: the slot does not use them.
type slotSpec struct {
	kernels.SlotParams
	active, last  int
	drafts, stops []int
	drafted       int // valid drafts
	counts        map[int]int
	seen, allowed []int
	biasID        []int
	bias          []float32
	cursor        kernels.Cursor
}

// slotSet is the slots of a test with their tables; slot 0 is the null one.
type slotSet struct {
	b                                       *bench
	vocab, draftStride                      int
	active, last, drafts, params, stops     *array
	drafted                                 *array
	counts, seen, allowed, biasID, biasList *array
	cursor                                  [4]*array
}

// Room that every slot has.
const (
	maxStops = 4
	maxBias  = 6
)

// garbage fills tables that nobody may read.
const garbage = 0x7fad7fad

func garbageInts(n int) []int {
	v := make([]int, n)
	for i := range v {
		v[i] = garbage
	}
	return v
}

func newSlotSet(b *bench, vocab, draftStride int, list []slotSpec) *slotSet {
	b.Helper()
	list = append([]slotSpec{{}}, list...)
	n, words := len(list), (vocab+31)/32
	active, last, drafted := make([]int, n), make([]int, n), make([]int, n)
	drafts, stops := garbageInts(n*draftStride), make([]int, n*maxStops)
	counts, seen, allowed := garbageInts(n*vocab), garbageInts(n*words), garbageInts(n*words)
	biasID, biasList := garbageInts(n*maxBias), nans(n*maxBias)
	cursor := [4][]int{make([]int, n), make([]int, n), make([]int, n), make([]int, n)}
	var params []byte
	for s, spec := range list {
		params = append(params, paramBytes(spec.SlotParams)...)
		active[s], last[s], drafted[s] = spec.active, spec.last, spec.drafted
		for i := range maxStops {
			stops[s*maxStops+i] = -1
		}
		copy(stops[s*maxStops:], spec.stops)
		copy(drafts[s*draftStride:(s+1)*draftStride], spec.drafts)
		copy(biasID[s*maxBias:], spec.biasID)
		copy(biasList[s*maxBias:], spec.bias)
		if spec.Flags&kernels.UsePenalties != 0 {
			clear(counts[s*vocab : (s+1)*vocab])
			for id, n := range spec.counts {
				counts[s*vocab+id] = n
			}
			setBits(seen[s*words:(s+1)*words], spec.seen)
		}
		if spec.Flags&kernels.UseAllowed != 0 {
			setBits(allowed[s*words:(s+1)*words], spec.allowed)
		}
		c := spec.cursor
		for i, v := range []int32{c.Origin, c.H, c.Src, c.Dst} {
			cursor[i][s] = int(v)
		}
	}
	set := &slotSet{
		b: b, vocab: vocab, draftStride: draftStride, drafted: b.ints("draft count", drafted...),
		active: b.ints("active", active...), last: b.ints("last", last...), drafts: b.ints("drafts", drafts...),
		params: b.array("params", params), stops: b.ints("stops", stops...), counts: b.ints("counts", counts...),
		seen: b.ints("seen", seen...), allowed: b.ints("allowed", allowed...), biasID: b.ints("bias ids", biasID...), biasList: b.floats("bias", biasList),
	}
	for i := range cursor {
		set.cursor[i] = b.ints("cursor", cursor[i]...)
	}
	return set
}

// setBits makes a bitmap of ids.
func setBits(words, ids []int) {
	clear(words)
	for _, id := range ids {
		words[id/32] |= 1 << (id % 32)
	}
}

// paramBytes is SlotParams as devices read them.
func paramBytes(p kernels.SlotParams) []byte {
	b := binary.LittleEndian.AppendUint64(nil, p.Seed)
	for _, f := range []float32{p.Temperature, p.TopP, p.MinP} {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(f))
	}
	b = binary.LittleEndian.AppendUint32(b, uint32(p.TopK))
	for _, f := range []float32{p.Repetition, p.Presence, p.Frequency} {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(f))
	}
	for _, v := range []uint32{p.Flags, uint32(p.PromptLen), uint32(p.MinLen), uint32(p.MaxLen), uint32(p.BiasCount)} {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	return append(b, make([]byte, kernels.SlotParamsBytes-len(b))...)
}

func (t *slotSet) slots(s side) kernels.Slots {
	return kernels.Slots{Active: t.active.buf[s], Last: t.last.buf[s], Drafts: t.drafts.buf[s], Params: t.params.buf[s], Stops: t.stops.buf[s],
		DraftStride: t.draftStride, MaxStops: maxStops}
}

// counted is slots with the number of valid drafts.
func (t *slotSet) counted(s side) kernels.Slots {
	list := t.slots(s)
	list.DraftCount = t.drafted.buf[s]
	return list
}

func (t *slotSet) tables(s side) kernels.SlotTables {
	return kernels.SlotTables{Counts: t.counts.buf[s], Seen: t.seen.buf[s], Allowed: t.allowed.buf[s], BiasID: t.biasID.buf[s], Bias: t.biasList.buf[s],
		Vocab: t.vocab, MaxBias: maxBias}
}

func (t *slotSet) cursors(s side) kernels.Cursors {
	c := t.cursor
	return kernels.Cursors{Origin: c[0].buf[s], H: c[1].buf[s], Src: c[2].buf[s], Dst: c[3].buf[s]}
}
