package kernels

import "fmt"

// StateFormat is how the numbers of a checkpoint are stored. The scaled formats have blocks along the key dimension:
// State of Mamba-2, KeyDim of GDN.
type StateFormat uint8

// Formats of checkpoints. StateF8 is e4m3 with a float32 scale for every 128 elements; StateNVFP4 is e2m1 with an e4m3
// scale for every 16 elements and a float32 scale a head.
const (
	StateF32 StateFormat = iota
	StateF16
	StateBF16
	StateF8
	StateNVFP4
)

// Elements of a block that share a scale.
const (
	F8Block    = 128
	NVFP4Block = 16
)

var stateFormats = [...]struct {
	name  string
	bits  int // of a value
	block int // elements that share a scale; 0 = no scales
	scale int // bytes of a block's scale
}{
	StateF32: {"float32", 32, 0, 0}, StateF16: {"float16", 16, 0, 0}, StateBF16: {"bfloat16", 16, 0, 0},
	StateF8: {"fp8", 8, F8Block, 4}, StateNVFP4: {"nvfp4", 4, NVFP4Block, 1},
}

// Bits is the size of one value, without scales.
func (f StateFormat) Bits() int { return stateFormats[f].bits }

func (f StateFormat) known() bool { return int(f) < len(stateFormats) }

func (f StateFormat) String() string {
	if f.known() {
		return stateFormats[f].name
	}
	return fmt.Sprintf("state format(%d)", uint8(f))
}

// ParseStateFormat is the format with the given name.
func ParseStateFormat(name string) (StateFormat, error) {
	for f, s := range stateFormats {
		if s.name == name {
			return StateFormat(f), nil
		}
	}
	return 0, fmt.Errorf("state format %q: want float32, float16, bfloat16, fp8 or nvfp4", name)
}

// Rounding is how a float32 state becomes a checkpoint that carries the recurrence.
type Rounding uint8

// Nearest rounds to nearest, ties to even. Stochastic rounds up with the probability that makes the expectation the
// value itself: rounding errors then do not add up over flushes.
const (
	Nearest Rounding = iota
	Stochastic
)

func (r Rounding) String() string {
	if r == Stochastic {
		return "stochastic"
	}
	return "nearest"
}

// Precision says how the checkpoints of a model's state are stored (paper Sec. 6). HP carries the recurrence: flushes,
// folds and scans read it and write it, rounded by Rounding (float32 needs none). LP is a copy that the steps read
// which do not flush; it is rounded to nearest from the same float32 state whenever HP is written, and never read back
// into the recurrence. With an LP of StateF32 or of HP's format there is no copy: every step reads HP. The zero value
// is one float32 checkpoint.
type Precision struct {
	HP, LP   StateFormat
	Rounding Rounding
}

// Two reports whether there is a copy to read besides HP.
func (p Precision) Two() bool { return p.LP != StateF32 && p.LP != p.HP }

// Read is the format that steps read which do not flush.
func (p Precision) Read() StateFormat {
	if p.Two() {
		return p.LP
	}
	return p.HP
}

// Scratch reports whether an unfinished prefill needs a scratch block: its state is float32 until it is rounded once.
func (p Precision) Scratch() bool { return p.HP != StateF32 }

// Validate requires known formats, and a copy that is smaller than what it is a copy of.
func (p Precision) Validate() error {
	switch {
	case !p.HP.known() || !p.LP.known() || p.Rounding > Stochastic:
		return fmt.Errorf("kernels: state precision %d, %d, rounding %d", p.HP, p.LP, p.Rounding)
	case p.Two() && p.LP.Bits() >= p.HP.Bits():
		return fmt.Errorf("kernels: a %v copy to read of a %v state: the copy must be smaller", p.LP, p.HP)
	}
	return nil
}

func (p Precision) String() string {
	s := p.HP.String()
	if p.Rounding == Stochastic && p.HP != StateF32 {
		s += "+sr"
	}
	if p.Two() {
		s += "/" + p.LP.String()
	}
	return s
}

// StateArray is where one copy of a layer's state [Heads, Rows, Cols] lies in the layer's share of a block, Cols being
// the key dimension. Offsets are bytes from the start of the share.
//
//	Values      [Heads, Rows, Cols]; a row has RowBytes, nvfp4 with the even element in the low half of a byte
//	Scales      [Heads, Rows, RowScales] float32 (fp8) or e4m3 (nvfp4), one for each block of a row
//	HeadScales  [Heads] float32 (nvfp4)
//
// An element is its value, times its block's scale where there are scales; the scale of an nvfp4 block is the stored one
// times its head's, in float32. A block of zero bytes is a state of zeros.
type StateArray struct {
	Format                     StateFormat
	Heads, Rows, Cols          int
	Values, Scales, HeadScales int64
	End                        int64 // behind the last byte
}

// RowBytes is the size of the values of one row.
func (a StateArray) RowBytes() int { return (a.Cols*a.Format.Bits() + 7) / 8 }

// RowScales is the number of scales of one row.
func (a StateArray) RowScales() int {
	if block := stateFormats[a.Format].block; block > 0 {
		return (a.Cols + block - 1) / block
	}
	return 0
}

// ScaleBytes is the size of one block's scale.
func (a StateArray) ScaleBytes() int { return stateFormats[a.Format].scale }

// HeadBytes is what one head occupies: values, scales and its own scale.
func (a StateArray) HeadBytes() int64 {
	n := int64(a.Rows) * int64(a.RowBytes()+a.RowScales()*a.ScaleBytes())
	if a.Format == StateNVFP4 {
		n += 4
	}
	return n
}

// stateArray lays an array out from byte at on; every part starts at a multiple of 256.
func stateArray(f StateFormat, heads, rows, cols int, at int64) StateArray {
	a := StateArray{Format: f, Heads: heads, Rows: rows, Cols: cols, Values: at}
	lines := int64(heads) * int64(rows)
	a.End = at + lines*int64(a.RowBytes())
	if a.RowScales() > 0 {
		a.Scales = align(a.End)
		a.End = a.Scales + lines*int64(a.RowScales()*a.ScaleBytes())
	}
	if f == StateNVFP4 {
		a.HeadScales = align(a.End)
		a.End = a.HeadScales + 4*int64(heads)
	}
	return a
}

// CheckpointLayout is one layer's share of a state block; Mamba2Checkpoint and DeltaCheckpoint are the only places that
// compute it.
type CheckpointLayout struct {
	HP StateArray
	LP StateArray // HP, where there is no copy
}

// Mamba2Checkpoint lays out [Heads, HeadDim, State].
func Mamba2Checkpoint(d Mamba2Dims, p Precision) CheckpointLayout {
	return checkpoint(p, d.Heads, d.HeadDim, d.State)
}

// DeltaCheckpoint lays out [ValueHeads, ValueDim, KeyDim].
func DeltaCheckpoint(d DeltaDims, p Precision) CheckpointLayout {
	return checkpoint(p, d.ValueHeads, d.ValueDim, d.KeyDim)
}

func checkpoint(p Precision, heads, rows, cols int) CheckpointLayout {
	hp := stateArray(p.HP, heads, rows, cols, 0)
	if !p.Two() {
		return CheckpointLayout{hp, hp}
	}
	return CheckpointLayout{hp, stateArray(p.LP, heads, rows, cols, align(hp.End))}
}

// Bytes is the size of the share, a multiple of 256.
func (c CheckpointLayout) Bytes() int64 { return align(c.LP.End) }

// ScratchBytes is the size of the layer's float32 state in a scratch block, a multiple of 256.
func (c CheckpointLayout) ScratchBytes() int64 {
	return align(4 * int64(c.HP.Heads) * int64(c.HP.Rows) * int64(c.HP.Cols))
}
