package sampler

import (
	"fmt"
	"math"
	"unsafe"

	"reprise/kernels"
)

// Config sizes the tables. Slots includes the null slot.
type Config struct {
	Slots, Vocab int
	Drafts       int // largest number of drafts a step
	MaxRows      int // sampled rows of one step
	MaxTop       int // largest number of log probabilities to report a row
	TileRows     int // rows of logits held at once
}

// ParamsSize is the bytes of one kernels.SlotParams.
const ParamsSize = int64(unsafe.Sizeof(kernels.SlotParams{}))

// Tables are the device arrays of the sampler.
type Tables struct {
	Config Config
	Slots  kernels.Slots
	Large  kernels.SlotTables
	Out    Outputs

	tile  kernels.Mat // f32 [TileRows, Vocab]
	input kernels.Mat // gathered hidden rows [TileRows, hidden]
}

// Outputs of the sampled rows of a step, on the device.
type Outputs struct {
	Token, Rank, TopID kernels.Buffer // i32 [MaxRows], [MaxRows], [MaxRows*MaxTop]
	LogProb, TopProb   kernels.Buffer // f32, same shapes
}

// New allocates the tables; hidden and act are the width and dtype of hidden rows.
func New(dev kernels.Device, c Config, hidden int, act kernels.DType) (*Tables, error) {
	t := &Tables{Config: c}
	t.Slots.DraftStride, t.Slots.MaxStops = max(c.Drafts, 1), MaxStops
	t.Large.Vocab, t.Large.MaxBias = c.Vocab, MaxBias
	slots, rows, words := int64(c.Slots), int64(c.MaxRows), int64(t.Large.MaskWords())
	var tile, input kernels.Buffer
	var err error
	for _, a := range []struct {
		dst   *kernels.Buffer
		bytes int64
	}{
		{&t.Slots.Active, slots * 4},
		{&t.Slots.Last, slots * 4},
		{&t.Slots.Drafts, slots * int64(t.Slots.DraftStride) * 4},
		{&t.Slots.Params, slots * ParamsSize},
		{&t.Slots.Stops, slots * MaxStops * 4},
		{&t.Large.Counts, slots * int64(c.Vocab) * 4},
		{&t.Large.Seen, slots * words * 4},
		{&t.Large.Allowed, slots * words * 4},
		{&t.Large.BiasID, slots * MaxBias * 4},
		{&t.Large.Bias, slots * MaxBias * 4},
		{&t.Out.Token, rows * 4},
		{&t.Out.Rank, rows * 4},
		{&t.Out.LogProb, rows * 4},
		{&t.Out.TopID, max(1, rows*int64(c.MaxTop)) * 4},
		{&t.Out.TopProb, max(1, rows*int64(c.MaxTop)) * 4},
		{&tile, int64(c.TileRows) * int64(c.Vocab) * 4},
		{&input, int64(c.TileRows) * int64(hidden) * int64(act.Size())},
	} {
		if *a.dst, err = dev.Alloc(a.bytes); err != nil {
			return nil, fmt.Errorf("sampler tables for %d slots: %w", c.Slots, err)
		}
	}
	t.tile = kernels.NewMat(tile, kernels.F32, c.TileRows, c.Vocab)
	t.input = kernels.NewMat(input, act, c.TileRows, hidden)
	if c.Drafts > 0 {
		if t.Slots.DraftCount, err = dev.Alloc(slots * 4); err != nil {
			return nil, fmt.Errorf("sampler tables for %d slots: %w", c.Slots, err)
		}
	}
	return t, nil
}

// Bytes is the device memory New takes for c, without the gathered rows.
func (c Config) Bytes() int64 {
	slots, rows, words := int64(c.Slots), int64(c.MaxRows), int64((c.Vocab+31)/32)
	return slots*(12+int64(max(c.Drafts, 1))*4+ParamsSize+MaxStops*4+int64(c.Vocab)*4+2*words*4+MaxBias*8) +
		rows*(12+int64(c.MaxTop)*8) + int64(c.TileRows)*int64(c.Vocab)*4
}

// Slot is everything a slot's tables are set from.
type Slot struct {
	Params    *Params
	Prompt    []int32 // original prompt
	Output    []int32 // tokens generated so far (of a resumed request)
	Stops     []int32
	MinTokens int
	MaxLen    int // the sequence ends at this many tokens
	Active    bool
	Last      int32 // next step's input when Active
}

// Set writes all tables of a slot, in stream order. It allocates staging memory: for admission, not for steps.
func (t *Tables) Set(o kernels.Ops, slot int, s Slot) {
	p := t.slotParams(s)
	upload(o, t.Slots.Params, slot, unsafe.Slice((*byte)(unsafe.Pointer(p)), ParamsSize))
	upload(o, t.Slots.Stops, slot, bytesOf(stopRow(s.Stops)))
	upload(o, t.Slots.Last, slot, bytesOf([]int32{s.Last}))
	active := int32(0)
	if s.Active {
		active = 1
	}
	upload(o, t.Slots.Active, slot, bytesOf([]int32{active}))
	t.setBias(o, slot, s.Params)
	if p.Flags&kernels.UseAllowed != 0 {
		upload(o, t.Large.Allowed, slot, bytesOf(t.bitmap(s.Params.Allowed)))
	}
	if p.Flags&kernels.UsePenalties != 0 {
		upload(o, t.Large.Seen, slot, bytesOf(t.bitmap(s.Prompt)))
		counts := make([]int32, t.Large.Vocab)
		for _, id := range s.Output {
			counts[id]++
		}
		upload(o, t.Large.Counts, slot, bytesOf(counts))
	}
}

// Tile is logits of vocab tokens for n rows, TileRows(vocab) at most: memory that everything which needs logits uses in turn.
func (t *Tables) Tile(n, vocab int) kernels.Mat {
	return kernels.NewMat(t.tile.Buf, kernels.F32, n, vocab)
}

// TileRows is the rows of logits of so many tokens that are held at once.
func (t *Tables) TileRows(vocab int) int { return t.Config.TileRows * t.Config.Vocab / vocab }

// ForgetDrafts says that a slot's drafts are those of another sequence, in stream order.
func (t *Tables) ForgetDrafts(o kernels.Ops, slot int) {
	if !t.Slots.DraftCount.Nil() {
		o.Zero(t.Slots.DraftCount.Slice(int64(slot)*4, 4))
	}
}

// Clear makes a slot inactive, in stream order.
func (t *Tables) Clear(o kernels.Ops, slot int) {
	o.Zero(t.Slots.Active.Slice(int64(slot)*4, 4))
}

func (t *Tables) slotParams(s Slot) *kernels.SlotParams {
	p := s.Params
	k := &kernels.SlotParams{
		Seed: p.Seed, Temperature: p.Temperature, TopP: p.TopP, MinP: p.MinP, TopK: int32(p.TopK),
		Repetition: p.Repetition, Presence: p.Presence, Frequency: p.Frequency,
		PromptLen: int32(len(s.Prompt)), MinLen: int32(len(s.Prompt) + s.MinTokens), MaxLen: int32(s.MaxLen),
		BiasCount: int32(len(p.Bias) + len(p.Bad)),
	}
	if p.penalised() {
		k.Flags |= kernels.UsePenalties
	}
	if p.Allowed != nil {
		k.Flags |= kernels.UseAllowed
	}
	return k
}

func (t *Tables) setBias(o kernels.Ops, slot int, p *Params) {
	n := len(p.Bias) + len(p.Bad)
	if n == 0 {
		return
	}
	ids, bias := make([]int32, 0, n), make([]float32, 0, n)
	for id, b := range p.Bias {
		ids, bias = append(ids, id), append(bias, b)
	}
	for _, id := range p.Bad {
		ids, bias = append(ids, id), append(bias, float32(math.Inf(-1)))
	}
	off := int64(slot) * MaxBias * 4
	o.Upload(t.Large.BiasID.Slice(off, int64(n)*4), bytesOf(ids))
	o.Upload(t.Large.Bias.Slice(off, int64(n)*4), bytesOf(bias))
}

func stopRow(stops []int32) []int32 {
	row := make([]int32, MaxStops)
	for i := range row {
		row[i] = -1
	}
	copy(row, stops)
	return row
}

func (t *Tables) bitmap(ids []int32) []uint32 {
	m := make([]uint32, t.Large.MaskWords())
	for _, id := range ids {
		m[id/32] |= 1 << (id % 32)
	}
	return m
}

// upload writes src to entry slot of an array of entries of len(src) bytes.
func upload(o kernels.Ops, dst kernels.Buffer, slot int, src []byte) {
	n := int64(len(src))
	o.Upload(dst.Slice(int64(slot)*n, n), src)
}

func bytesOf[T int32 | uint32 | float32](s []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*4)
}
