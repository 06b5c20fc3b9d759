package kernels

// Scatter writes Value[i] to Dst[Index[i]] for the Count entries. An Index of -1 is skipped.
type Scatter struct {
	Dst          Buffer // i32
	Index, Value Buffer // i32 [Count]
	Count        int
}

// Slots are the per-slot arrays that let a step run without the host. Index 0 is the null slot, never active.
type Slots struct {
	Active Buffer // i32 [slots] 1 while the slot generates; cleared by Commit at a stop
	Last   Buffer // i32 [slots] last sampled token: the next step's input
	Drafts Buffer // i32 [slots, DraftStride] proposed tokens that follow Last
	// DraftCount is how many of a slot's Drafts are valid, 0..DraftStride. Without it all are.
	DraftCount Buffer // i32 [slots]; or nil
	Params     Buffer // SlotParams [slots]
	Stops      Buffer // i32 [slots, MaxStops] stop token ids, -1 unused

	DraftStride int
	MaxStops    int
}

// Begin derives the inputs of a step. For step row r: N[r] = min(Want[r], room to MaxLen, 1 + DraftCount) if its slot is
// active, else 0; its tokens are Last, Drafts[0..N-2], then padding (id 0, position -1). Position of token j is origin + h + j; Last has
// position origin + h already, so the room is MaxLen - (origin + h) - 1. N is never negative nor above T.
// Prefill rows take PrefillIDs in their packed order; their N is given.
type Begin struct {
	Step, Prefill Rows
	Want          Buffer // i32 [Step.Count]
	PrefillIDs    Buffer // i32 [Prefill.Tokens]
	Cursors       Cursors
	Slots         Slots
	IDs, Pos      Buffer // out: i32 [Step.Tokens + Prefill.Tokens], indexed by token of the batch
}

// Embed writes row IDs[i] of Table to Out[i]. Ids outside the table are a broken invariant.
type Embed struct {
	Table Weight
	IDs   Buffer // i32 [Out.Rows]
	Out   Mat
}

// Norm: if Add is given, X += Add first (stored). Then Y = X * rsqrt(mean(X^2) + Eps) * Weight over each row, in fp32.
// Checkpoints that store w for a factor 1+w are converted when loaded.
type Norm struct {
	X, Add, Y Mat
	Weight    Buffer // f32 [X.Cols]
	Eps       float32
}

// Linear is Y = X W^T, or Y += X W^T with Add. What lies before and behind the product may come along: with NormW it is
// norm(X) W^T, the norm being that of Norm without Add, and with Raw it is Y = act(X W^T).
type Linear struct {
	X, Y Mat
	W    Weight // [Y.Cols, X.Cols]; with Raw [Kind.InWidth(Y.Cols), X.Cols]
	Add  bool   // not with Raw
	// Reduce sums the product over the devices of a tensor-parallel group before it is added; nothing to do for one device.
	Reduce bool

	NormW  Buffer // f32 [X.Cols]; nil = no norm
	Eps    float32
	Normed Mat // as X: memory for a device that normalises apart; what it holds then is undefined

	Raw  Mat // [Y.Rows, Kind.InWidth(Y.Cols)], likewise; without columns: no activation
	Kind Activation
}

// Whole reports whether there is nothing but the product.
func (p Linear) Whole() bool { return p.NormW.Nil() && !p.Activates() }

// Activates reports whether an activation follows.
func (p Linear) Activates() bool { return p.Raw.Cols > 0 }

// Apart runs norm, product and activation one after another.
func (p Linear) Apart(o Ops) {
	product := Linear{X: p.X, Y: p.Y, W: p.W, Add: p.Add, Reduce: p.Reduce}
	if !p.NormW.Nil() {
		o.Norm(Norm{X: p.X, Y: p.Normed, Weight: p.NormW, Eps: p.Eps})
		product.X = p.Normed
	}
	if !p.Activates() {
		o.Linear(product)
		return
	}
	product.Y = p.Raw
	o.Linear(product)
	o.Activate(Activate{Kind: p.Kind, X: p.Raw, Y: p.Y})
}

// Activation is the nonlinearity of an MLP.
type Activation uint8

// SiLUMul: X is [gate | up] of twice Y's width, Y = silu(gate)*up. ReLU2: Y = max(X, 0)^2, same width.
const (
	SiLUMul Activation = iota
	ReLU2
)

// InWidth is the width of the input for an output of n columns.
func (a Activation) InWidth(n int) int {
	if a == SiLUMul {
		return 2 * n
	}
	return n
}

// Activate is Y = Kind(X).
type Activate struct {
	Kind Activation
	X, Y Mat
}

// GatherRows is Y[i] = X[Index[i]]; an index of -1 gives a row of zeros.
type GatherRows struct {
	X, Y  Mat
	Index Buffer // i32 [Y.Rows]
}

// WriteKV prepares attention for one kind of rows. Matrices are indexed by token of the batch (Rows.First applies).
// Head i of token t of Q starts at column i*QStride (QStride > HeadDim where a gate sits between heads). q and k are
// RMS-normalised by head if QNorm is given, then the first Rotary dims are rotated (pair i with i+Rotary/2, angle
// Pos * InvFreq[i]); 0 = no rotation. Tokens that do not count write nothing to the cache and zeros to QOut.
// Pos is for the rotation only: token j of a row is stored as token origin + h + j of its slot. F8E4M3 elements are
// value / scale with the scale as stored in float32; a head of zeros without a fixed scale has scale 1.
type WriteKV struct {
	Rows         Rows
	Cursors      Cursors
	Pos          Buffer // i32, indexed by token of the batch
	KV           KV
	Q, K, V      Mat
	QHeads       int
	QStride      int
	QNorm, KNorm Buffer // f32 [HeadDim], factor 1+w applied; or nil
	Eps          float32
	Rotary       int
	InvFreq      Buffer  // f32 [Rotary/2]
	KScale       float32 // F8E4M3: the checkpoint's scale, or 0 for amax/448 of each (token, head)
	VScale       float32
	QOut         Mat // [tokens, QHeads*HeadDim]
}

// Attend is softmax(Scale * q K^T) V over the tokens 0..position of the row's sequence, position being origin + h + j
// for token j of the row; entries of a page behind it may hold anything, NaN too. With Gate the result is
// multiplied by sigmoid(gate), whose head i starts at column i*GateStride. Query head i reads KV head
// i / (QHeads/KV.Heads).
type Attend struct {
	Rows       Rows
	Cursors    Cursors
	KV         KV
	Q          Mat // QOut of WriteKV
	QHeads     int
	Scale      float32
	Gate       Mat // optional
	GateStride int
	Out        Mat // [tokens, QHeads*HeadDim]
}

// Mamba2 parameters; matrices are indexed by token of the batch. Math: models.md 1.c. Rounding: x, B and dt are
// rounded to their record dtype once and used rounded by the same step; C is rounded like B.
//
// A step writes its N records and N raw rows, and nothing else in the rings. A scan writes no records; in the
// convolution ring it writes raw rows of its own such that the last Taps-1 before the next token are there. The fold
// uses Rows, Cursors, State, Dims and A only (ValidateFold).
//
// Whoever writes block Dst rounds the float32 state into HP, with the noise of State.Layer and the number of tokens in
// the state (a flush or fold: origin + h; a scan: origin + h + n), and, with two precisions, once more into LP, to nearest.
type Mamba2 struct {
	Rows    Rows
	Cursors Cursors
	State   State
	Dims    Mamba2Dims

	Z, XBC, Dt Mat    // raw projections: [.., Inner], [.., Conv], [.., Heads]
	ConvW      Buffer // f32 [Conv, Taps], last tap = current token
	ConvB      Buffer // f32 [Conv] or nil
	A          Buffer // f32 [Heads] = -exp(A_log)
	D          Buffer // f32 [Heads]
	DtBias     Buffer // f32 [Heads]
	DtMin      float32
	DtMax      float32 // clamp of dt after softplus; 0, +Inf = none
	NormW      Buffer  // f32 [Inner]
	Eps        float32
	Out        Mat // [.., Inner]
}

// Delta parameters (Gated DeltaNet); matrices are indexed by token of the batch. Math: models.md 2.c; q and k are divided
// by sqrt(sum of squares + 1e-6). Rings, folds and rounding as for Mamba2, the fold needs no parameters; u saturates when
// float16. With two precisions v and beta are rounded to their record dtypes before they are used. A correction that a
// flush or fold derives anew is not rounded to u's dtype.
type Delta struct {
	Rows    Rows
	Cursors Cursors
	State   State
	Dims    DeltaDims

	QKV, Z, B, A Mat    // raw projections: [.., Conv], [.., Values], [.., ValueHeads], [.., ValueHeads]
	ConvW        Buffer // f32 [Conv, Taps]
	DecayA       Buffer // f32 [ValueHeads] = -exp(A_log)
	DtBias       Buffer // f32 [ValueHeads]
	NormW        Buffer // f32 [ValueDim]
	Eps          float32
	Out          Mat // [.., Values]
}

// Score turns router logits into scores.
type Score uint8

// Softmax over all experts (Qwen3.5), or a sigmoid each (Nemotron-3).
const (
	Softmax Score = iota
	Sigmoid
)

// Route chooses TopK experts a token: by score + Bias, restricted to the TopGroups groups with the largest sum of their
// two best (of score + Bias) if Groups > 1; ties, of groups too, go to the lower id. Weights are the scores without bias, divided by their sum (+1e-20)
// if Normalize, times Scale. IDs are in order of decreasing selection score.
type Route struct {
	Logits            Mat // f32 [tokens, experts]
	Bias              Buffer
	Score             Score
	TopK              int
	Groups, TopGroups int
	Normalize         bool
	Scale             float32
	IDs               Buffer // out: i32 [tokens, TopK]
	Weights           Buffer // out: f32 [tokens, TopK]
}

// Experts is Out[t] = sum over i of Weights[t,i] * Down[e] * act(Up[e] * X[t]), e = IDs[t,i]; summed in order of i, so
// that a token's result does not depend on its neighbours.
type Experts struct {
	X, Out       Mat
	Up, Down     Weight
	Act          Activation
	IDs, Weights Buffer
	TopK         int
}

// AddGated is Y += sigmoid(Gate) * X with Gate [rows, 1], activations or F32; without Gate Y += X.
type AddGated struct{ Gate, X, Y Mat }
