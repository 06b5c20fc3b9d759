package kernels

// SlotParams is one slot's sampling parameters as devices read them (little endian, 96 bytes). See sampler for meaning
// and defaults.
type SlotParams struct {
	Seed        uint64
	Temperature float32 // 0 = greedy
	TopP        float32 // 1 = off
	MinP        float32 // 0 = off
	TopK        int32   // 0 = off
	Repetition  float32 // 1 = off
	Presence    float32
	Frequency   float32
	Flags       uint32 // Use...
	PromptLen   int32  // tokens of the prompt
	MinLen      int32  // stops are masked while the new token's index is below this
	MaxLen      int32  // the sequence ends when it has this many tokens
	BiasCount   int32  // entries of the slot's bias list
	_           [10]uint32
}

// Flags of SlotParams.
const (
	UsePenalties = 1 << iota // counts and prompt tokens are tracked
	UseAllowed               // the slot's allowed mask applies
)

// SlotTables are the large per-slot arrays of the sampler; a slot touches them only as its SlotParams say.
type SlotTables struct {
	Counts  Buffer // i32 [slots, Vocab] times each token was generated
	Seen    Buffer // u32 [slots, MaskWords] bit set: token occurs in the prompt
	Allowed Buffer // u32 [slots, MaskWords] bit set: token may be sampled
	BiasID  Buffer // i32 [slots, MaxBias]
	Bias    Buffer // f32 [slots, MaxBias]
	Vocab   int
	MaxBias int
}

// MaskWords is the u32 words of a token bitmap.
func (t SlotTables) MaskWords() int { return (t.Vocab + 31) / 32 }

// Sample handles one tile of logit rows. Row i belongs to token Token[i] of the batch and slot Slot[i] (0: skipped,
// Out = -1, nothing else of the row is read, its log probabilities are undefined) and predicts the token with index
// p = Pos[Token[i]] + 1.
//
// Order: log probabilities are of the raw logits. Then logit bias, allowed mask, stop ids masked while p < MinLen,
// penalties (repetition over prompt and output, then frequency and presence over output), where the Depth[i] tokens
// IDs[Token[i]-Depth[i]+1 .. Token[i]] count as output too; then temperature, min-p, top-k, top-p; ties go to the
// lower id. Min-p drops what is less probable than MinP times the most probable; top-p keeps the shortest run of the
// most probable that holds the share TopP of what min-p and top-k left, one at least. The draw takes the first candidate,
// in order of id, whose running sum of probability exceeds Uniform(Seed, p) times the total. Temperature 0: the largest
// adjusted logit, lowest id; min-p, top-k and top-p do not apply. The same holds where that logit is not finite: a penalty
// made it +Inf, or masks leave nothing and the token is 0.
//
// Target[i] >= 0 scores that token instead: Out = Target, its log probability, nothing is drawn.
type Sample struct {
	Logits Mat    // f32 [rows, Vocab]; changed in place
	Token  Buffer // i32 [rows]
	Slot   Buffer // i32 [rows]
	Target Buffer // i32 [rows]
	Depth  Buffer // i32 [rows]
	IDs    Buffer // i32 of the batch
	Pos    Buffer // i32 of the batch
	Slots  Slots
	Tables SlotTables
	TopN   int // log probabilities to report a row; 0 = none and LogProb is not computed

	Out     Buffer // i32 [rows]
	LogProb Buffer // f32 [rows] of Out
	Rank    Buffer // i32 [rows] 1 + number of tokens with a larger logit than Out
	TopID   Buffer // i32 [rows, TopN], decreasing, ties by id
	TopProb Buffer // f32 [rows, TopN]
}

// Finish says why Commit ended a row.
type Finish int32

// Reasons to end.
const (
	Running    Finish = iota
	FinishStop        // a stop id was sampled
	FinishLength
)

// Commit ends a step: the only writer of Cursors, and of Slots during a step.
//
// Step row r (slot s, n = N[r]): samples S_0..S_{n-1} are Sampled[SampleFirst + r*T ...]. a = 1 + the number of leading
// drafts with S_j == Drafts[j]; the run S_0..S_{a-1} is cut after the first stop id (if its index >= MinLen) or when
// the sequence reaches MaxLen; such a row becomes inactive. S_j has index Pos of the row's first token + 1 + j; a stop id
// that is the last possible token is FinishStop. Cursor.CommitStep(n, a). Last = S_{a-1}. Counts of the a samples that
// remain are incremented where penalties are used. DraftCount = 0. n = 0: Accepted = 0, Finish = Running, nothing changes.
//
// Prefill row r: Cursor.CommitPrefill(N[r]). If Final[r] >= 0 the row's prompt is complete and Sampled[Final[r]] is its
// first token (index Pos of the row's last token + 1): Last, stops, length and counts as above, and the slot becomes
// active unless it ended. DraftCount = 0, Final or not. N[r] = 0: as n = 0 above, whatever Final says.
type Commit struct {
	Step, Prefill Rows
	Cursors       Cursors
	Slots         Slots
	Tables        SlotTables
	Window        Window
	Pos           Buffer // i32 of the batch
	Sampled       Buffer // i32
	SampleFirst   int
	Final         Buffer // i32 [Prefill.Count] index into Sampled or -1
	Accepted      Buffer // out: i32 [Step.Count + Prefill.Count]; prefill: 1 if Final, else 0
	Finish        Buffer // out: i32 [Step.Count + Prefill.Count]
}
