package kernels

// Drafting is the per-slot memory of a head that drafts (model.MTP). What the head has read of a sequence are pairs: the
// hidden row of a token and the token that follows it. They lie in the KV cache of its attention layers one behind the
// other, whatever positions they come from: tokens of steps that formed no pairs leave no hole.
type Drafting struct {
	Pairs Buffer // i32 [slots] pairs of committed tokens in the cache
	Base  Buffer // i32 [slots] Pairs before the step: Origin of the step's pairs
	Ahead Buffer // i32 [slots] H of both kinds of launches: 0, then the pairs of drafts that lie behind Pairs
}

// Cursors are those of the launch that reads the step's pairs; later says that it is one that reads drafts. Heads have
// no recurrent state: Src and Dst are only there to be whole.
func (d Drafting) Cursors(later bool) Cursors {
	if later {
		return Cursors{d.Pairs, d.Ahead, d.Base, d.Base}
	}
	return Cursors{d.Base, d.Ahead, d.Base, d.Base}
}

// Committed is a step behind its Commit, as drafting reads it. R = Step.Count + Prefill.Count rows, step rows first.
type Committed struct {
	Step, Prefill Rows   // as Begin and Commit had them
	IDs, Pos      Buffer // i32 of the batch
	Sampled       Buffer // i32
	SampleFirst   int
	Final         Buffer // i32 [Prefill.Count]
	Accepted      Buffer // i32 [R]
	Slots         Slots  // with DraftCount
	// Want is the drafts to propose behind each row, 0..DraftStride; negative: none, and none ever. i32 [R].
	Want Buffer
}

// DraftBegin prepares the head's launch over the pairs of a step. It changes no drafts.
//
// Step row r (n > 0, Want[r] > 0, a = Accepted[r]): a pairs (token j of the row, S_j), S_j = Sampled[SampleFirst + r*T + j].
// A step row with Want[r] <= 0 has no pairs. Prefill row r: N pairs, of each token with the next of its chunk; the last
// one's next is Sampled[Final[r]], or Following[r] where Final[r] < 0, or 0 where that is negative too.
//
// N[r] is the number of pairs. Next of every token that forms no pair is 0. Last[r] is the token of the batch with the
// row's last pair, -1 without. Left[r] is Want[r] if the row has pairs, is a step row or Final, and its slot is active
// still; else 0. For the slots of rows with pairs: Base = Pairs, Pairs += N[r], Ahead = 0.
type DraftBegin struct {
	Committed
	Drafting
	Following Buffer // i32 [Prefill.Count]
	Next      Buffer // out: i32 of the batch
	N         Buffer // out: i32 [R]
	Last      Buffer // out: i32 [R]
	Left      Buffer // out: i32 [R]
}

// DraftNext takes draft number Index of a tile of rows from the head's logits, and prepares the launch that reads it.
// All arrays of rows start at the tile's first row.
//
// Row r with Left[r] > Index: d = the largest of Logits[r], lowest id of equals; Drafts[slot, Index] = d, DraftCount[slot] =
// Index+1, Ahead[slot] = Index. If Left[r] > Index+1 too: N[r] = 1, Next[r] = d, NextPos[r] = Pos[Last[r]] + 1 + Index.
// All other rows: N = 0, Next = 0, NextPos = -1.
type DraftNext struct {
	Logits   Mat // f32 [rows, Vocab]
	Index    int
	Slot     Buffer // i32 [rows]
	Last     Buffer // i32 [rows]
	Left     Buffer // i32 [rows]
	Pos      Buffer // i32 of the batch
	Slots    Slots  // with DraftCount
	Drafting Drafting
	N        Buffer // out: i32 [rows]
	Next     Buffer // out: i32 [rows]
	NextPos  Buffer // out: i32 [rows]
}

// DraftLookup drafts without a model: what followed the last tokens of the sequence when they occurred before.
//
// First the history takes what the step added. Step row (n > 0, a = Accepted): S_j at index p+1+j for j < a, p = Pos of the
// row's first token. Prefill row: its tokens at their Pos, and Sampled[Final] behind them. Rows with Want < 0 leave it.
//
// Then, with len tokens known, every row with Want > 0 whose slot is active, step row (n > 0) or Final: among the
// m = MinMatch..MaxMatch last tokens and the places e < len-1 at which the same m tokens end, the longest m and of these
// the latest e. Drafts[slot, i] = token e+1+i for i < Want, where tokens behind the known ones are the drafts themselves;
// DraftCount[slot] = Want. Nothing changes where there is no such place.
type DraftLookup struct {
	Committed
	History            Buffer // i32 [slots, HistoryStride] tokens by index
	HistoryStride      int
	MinMatch, MaxMatch int // 1 <= MinMatch <= MaxMatch
}
