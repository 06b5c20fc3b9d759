package kernels

// Mamba2Dims is the shape of a Mamba-2 layer (models.md 1.c): Heads x HeadDim channels, State columns, Groups of B/C.
type Mamba2Dims struct{ Heads, HeadDim, State, Groups, Taps int }

// Inner is d_inner, the width of x, z and the output.
func (d Mamba2Dims) Inner() int { return d.Heads * d.HeadDim }

// Conv is the channels of the convolution: x, B, C in this order.
func (d Mamba2Dims) Conv() int { return d.Inner() + 2*d.Groups*d.State }

// DeltaDims is the shape of a Gated DeltaNet layer: KeyHeads of KeyDim, ValueHeads of ValueDim; value head j uses key
// head j / (ValueHeads/KeyHeads).
type DeltaDims struct{ KeyHeads, ValueHeads, KeyDim, ValueDim, Taps int }

// Keys is the width of q and of k.
func (d DeltaDims) Keys() int { return d.KeyHeads * d.KeyDim }

// Values is the width of v, z and the output.
func (d DeltaDims) Values() int { return d.ValueHeads * d.ValueDim }

// Conv is the channels of the convolution: q, k, v in this order.
func (d DeltaDims) Conv() int { return 2*d.Keys() + d.Values() }

// Window is the replay window: L committed records at most, T appended a step at most (1 <= T <= L).
type Window struct{ L, T int }

// Records is the capacity of the record rings.
func (w Window) Records() int { return w.L + w.T }

// Taps is the capacity of the convolution ring of a layer with the given taps.
func (w Window) Taps(taps int) int { return taps - 1 + w.T }

// Field is one array of a layer's ring region: Rows x Cols elements at byte Offset.
type Field struct {
	Offset     int64
	Rows, Cols int
	DType      DType
}

func (f Field) bytes() int64 { return int64(f.Rows) * int64(f.Cols) * int64(f.DType.Size()) }

// RingLayout is the ring region of one SSM layer in one slot; this is the only place that computes it.
// Mamba-2 records: X = post-conv x [records, Inner], B [records, Groups*State], Decay = dt after softplus [records, Heads].
// GDN records: X = the correction u [records, Values], B = the normalised key [records, Keys], Decay = log decay [records, ValueHeads].
// Conv holds raw (pre-conv) rows [taps, Conv].
// With two precisions GDN records also hold V = post-conv v [records, Values] and Beta = the write strength [records,
// ValueHeads]: u has seen the copy, so a flush derives it anew from V, Beta and the checkpoint that carries the recurrence (paper B.4).
type RingLayout struct {
	X, B, Decay, Conv Field
	V, Beta           Field // of no rows unless GDN has two precisions
	Bytes             int64 // of the region, a multiple of 256
}

// Mamba2Ring lays out the rings of a Mamba-2 layer; act is the activation dtype.
func Mamba2Ring(d Mamba2Dims, w Window, act DType) RingLayout {
	return ring(w, act, act, d.Inner(), d.Groups*d.State, d.Heads, d.Conv(), d.Taps)
}

// DeltaRing lays out the rings of a GDN layer. u is float32 with float32 activations and float16 otherwise (paper B.2).
func DeltaRing(d DeltaDims, w Window, act DType, p Precision) RingLayout {
	u := F16
	if act == F32 {
		u = F32
	}
	r := ring(w, act, u, d.Values(), d.Keys(), d.ValueHeads, d.Conv(), d.Taps)
	if p.Two() {
		r.V = Field{0, w.Records(), d.Values(), act}
		r.Beta = Field{0, w.Records(), d.ValueHeads, F32}
		r.place(&r.V, &r.Beta)
	}
	return r
}

func ring(w Window, act, x DType, xCols, bCols, decays, conv, taps int) RingLayout {
	r := RingLayout{
		X:     Field{0, w.Records(), xCols, x},
		B:     Field{0, w.Records(), bCols, act},
		Decay: Field{0, w.Records(), decays, F32},
		Conv:  Field{0, w.Taps(taps), conv, act},
	}
	r.place(&r.X, &r.B, &r.Decay, &r.Conv)
	return r
}

// place puts fields behind those that have been placed.
func (r *RingLayout) place(fields ...*Field) {
	for _, f := range fields {
		f.Offset = r.Bytes
		r.Bytes += align(f.bytes())
	}
}

func align(n int64) int64 { return (n + 255) &^ 255 }

// State is one SSM layer's share of the pool.
// The checkpoint of block b is at Blocks + b*BlockStride and laid out by Mamba2Checkpoint or DeltaCheckpoint of the
// Precision: [Heads, HeadDim, State] for Mamba-2, [ValueHeads, ValueDim, KeyDim] for GDN. The ring region of slot s
// starts at Rings + s*RingStride. The float32 state of scratch block k is at Scratch + k*ScratchStride (Rows.Scratch).
// The raw rows in front of entry i of Rows.Cuts are at Tails + i*TailStride: [Taps-1, Conv], of the rings' type, the
// oldest first, zero before the sequence.
type State struct {
	Blocks      Buffer
	BlockStride int64
	Rings       Buffer
	RingStride  int64
	Layout      RingLayout
	Window      Window

	Precision     Precision
	Layer         int    // which of the model's SSM layers this is: a counter of stochastic rounding
	Scratch       Buffer // or nil
	ScratchStride int64
	Tails         Buffer // or nil
	TailStride    int64
}

// KV is one attention layer's share of the paged cache. Page p of the layer starts at Pages + p*PageStride and holds
// [K|V][head][token][HeadDim] elements, then for F8E4M3 fp32 scales [K|V][head][token]: value = element * scale.
// Token i of slot s is in page Table[s*TableStride + i/PageTokens] at place i % PageTokens.
type KV struct {
	Pages       Buffer
	PageStride  int64
	PageTokens  int
	Heads       int
	HeadDim     int
	DType       DType  // F32, BF16 or F8E4M3
	Table       Buffer // i32 [slots, TableStride]
	TableStride int
}

// ScaleOffset is where the scales of a page start; for F8E4M3 only.
func (k KV) ScaleOffset() int64 {
	return 2 * int64(k.Heads) * int64(k.PageTokens) * int64(k.HeadDim) * int64(k.DType.Size())
}

// PageBytes is the size of one layer's page, a multiple of 256.
func (k KV) PageBytes() int64 {
	n := k.ScaleOffset()
	if k.DType == F8E4M3 {
		n += 2 * int64(k.Heads) * int64(k.PageTokens) * 4
	}
	return align(n)
}
