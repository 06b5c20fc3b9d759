package kernels

// Rows are the rows of one launch, all of one kind. Step rows (T > 0) take T tokens of the activation matrices each,
// of which the first N[r] count and the rest is padding. Prefill rows (T == 0) lie packed one behind the other.
//
// A row with N[r] == 0 (null slot, inactive) is an identity: it reads and writes no state. Mixers and attention
// write zeros for tokens that do not count, so that padding stays finite.
type Rows struct {
	Count  int // rows
	First  int // first token in the batch's activation matrices
	Tokens int // tokens spanned: Count*T, or the sum of N of prefill rows
	T      int // tokens a step row is padded to; 0 = packed prefill
	MaxLen int // largest N that can occur (step: T)

	Slot  Buffer // i32 [Count]; a row without tokens has one that exists as well
	N     Buffer // i32 [Count]
	Start Buffer // i32 [Count] token of the batch at which a prefill row starts; unused for step rows

	// Scratch and Stage, both or neither, are for prefill rows where checkpoints are stored below float32: the state of
	// an unfinished prefill stays in float32, so that it is rounded once.
	Scratch Buffer // i32 [Count] scratch block of the row, -1 = none; or nil: no row has one
	Stage   Buffer // i32 [Count] Resume and Publish

	Cuts Cuts // of prefill rows
}

// MaxCuts is the most cuts of a row.
const MaxCuts = 8

// Cuts are places inside prefill rows at which a scan leaves what a snapshot of that place has. In a block of its own: the
// state that the row would have left if it had ended there, with Publish; the row itself goes on from the state before
// it was rounded. In State.Tails: the raw rows of the convolution in front of the cut. The cursor of such a snapshot is
// {Origin + H + place, 0, block, ..}. Chunks of a row end at its cuts, as they do at its end.
type Cuts struct {
	PerRow int    // entries of a row; 0 = no cuts
	Place  Buffer // i32 [Count, PerRow] tokens of the row in front of the cut, ascending; behind the cuts, entries below 1 or above N are none
	Block  Buffer // i32 [Count, PerRow] checkpoint block, which the launch neither reads nor writes otherwise
}

// Bits of Rows.Stage, for rows that have a scratch block. A fold (h > 0) writes the scratch block. A scan starts from
// the scratch block with Resume or where h > 0, else from block Src, and ends in block Dst with Publish, else in the
// scratch block. A row without one folds into Dst, and scans from (h > 0 ? Dst : Src) to Dst.
const (
	Resume  int32 = 1 << iota // an earlier chunk of the prefill left its state in the scratch block
	Publish                   // the state is complete, or is to be shared: it goes into a checkpoint
)

// Empty reports whether there is nothing to do.
func (r Rows) Empty() bool { return r.Count == 0 }

// Cursors are the per-slot arrays of ReplaySSM, shared by all layers. The committed tokens of a slot number
// Origin+H: Origin tokens are in checkpoint block Src, H more are records in the rings.
// Only Commit writes them during a step.
type Cursors struct {
	Origin Buffer // i32 [slots] absolute index of the first record
	H      Buffer // i32 [slots] committed records, 0..L
	Src    Buffer // i32 [slots] checkpoint block that is read
	Dst    Buffer // i32 [slots] checkpoint block that a flush, fold or prefill writes; may equal Src
}

// Cursor is one slot's entry of Cursors.
type Cursor struct{ Origin, H, Src, Dst int32 }

// Flushes is the flush rule: a row with h committed records that appends n folds the h records iff this holds.
func Flushes(h, n, window int32) bool { return h+n > window }

// CommitStep is the cursor after a decode or verify row of n tokens of which a were accepted. n = a = 0 changes nothing.
func (c Cursor) CommitStep(n, a, window int32) Cursor {
	if n == 0 {
		return c
	}
	if Flushes(c.H, n, window) {
		return Cursor{c.Origin + c.H, a, c.Dst, c.Dst}
	}
	c.H += a
	return c
}

// CommitPrefill is the cursor after a prefill chunk of m tokens.
func (c Cursor) CommitPrefill(m int32) Cursor {
	if m == 0 {
		return c
	}
	return Cursor{c.Origin + c.H + m, 0, c.Dst, c.Dst}
}

// RingIndex is the place of absolute token i in a ring.
func RingIndex(i int32, capacity int) int { return int(i) % capacity }
