package kernels

// Ops are the operations a program is made of, executed in order. Each takes one parameter struct by value (so that
// calls do not allocate) whose Validate an implementation calls first: a violation is a broken invariant and panics.
// Outputs overlap neither inputs nor each other. Rows of matrices that belong to no token of the call stay as they are.
type Ops interface {
	// Upload copies host memory to the device; src must not change until a later ticket is done.
	Upload(dst Buffer, src []byte)
	// Download copies device memory to the host.
	Download(dst []byte, src Buffer)
	// Copy copies src to dst, same size, not overlapping.
	Copy(dst, src Buffer)
	// Zero clears b.
	Zero(b Buffer)
	// Scatter writes single i32 values: table diffs and slot fields.
	Scatter(Scatter)

	// Begin derives a step's token ids, positions and row lengths from the slots.
	Begin(Begin)
	// Embed looks rows of a table up.
	Embed(Embed)
	// Norm adds into the residual and normalises (RMSNorm).
	Norm(Norm)
	// Linear multiplies by a weight: Y = X W^T, or Y += X W^T. The order of accumulation depends on the weight's
	// cols only, never on the number of rows (CPU).
	Linear(Linear)
	// Activate applies an MLP's nonlinearity.
	Activate(Activate)
	// GatherRows copies chosen rows.
	GatherRows(GatherRows)

	// WriteKV normalises and rotates q and k and stores k and v in the paged cache.
	WriteKV(WriteKV)
	// Attend is causal attention of every counted token of the rows over the pages, for step rows (decode, verify)
	// and for prefill rows.
	Attend(Attend)

	// Mamba2Step is the mixer between the projections for step rows: convolution, records, outputs from checkpoint
	// and ring without building the state (paper Eq. 6), flush of the rows with h + n > L, gated norm. With two
	// precisions the rows that flush read HP, for their outputs too, and the others LP (paper Algorithm 3).
	Mamba2Step(Mamba2)
	// Mamba2Scan is the same for prefill rows: a chunked scan from block (h > 0 ? Dst : Src) to block Dst, or from and to
	// a scratch block (Rows.Stage). It reads HP. At Rows.Cuts it leaves state and raw rows besides.
	Mamba2Scan(Mamba2)
	// Mamba2Fold folds the h > 0 committed records of prefill rows: Src -> Dst, or the row's scratch block. Rows with
	// h = 0 are left alone.
	Mamba2Fold(Mamba2)
	// DeltaStep, DeltaScan and DeltaFold are these for Gated DeltaNet (paper Eq. 10-11, Algorithm 5). With two precisions
	// flushes and folds derive the corrections of the committed records anew (Algorithm 6, line 8), while the outputs of
	// a flushing row use HP with the recorded ones (lines 4 to 6).
	DeltaStep(Delta)
	DeltaScan(Delta)
	DeltaFold(Delta)

	// Route chooses experts.
	Route(Route)
	// Experts runs the chosen experts and sums them by weight.
	Experts(Experts)
	// AddGated is Y += sigmoid(gate) * X, gate one number a token.
	AddGated(AddGated)

	// Sample turns logits into tokens and log probabilities.
	Sample(Sample)
	// Commit accepts drafts, applies the stops, writes cursors and slots, and reports.
	Commit(Commit)
	// DraftBegin, behind Commit, prepares a drafting head's launch over the tokens that a step added.
	DraftBegin(DraftBegin)
	// DraftNext takes one draft a row from the head's logits and prepares the launch that reads it.
	DraftNext(DraftNext)
	// DraftLookup, behind Commit, drafts what followed the last tokens where they occurred before.
	DraftLookup(DraftLookup)

	// AllReduce sums m over the devices of a tensor-parallel group; the identity for one device.
	AllReduce(m Mat)
}
