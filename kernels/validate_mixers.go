package kernels

import "math"

// kv requires a cache that is whole in itself.
func (c *check) kv(k KV) {
	if k.Heads <= 0 || k.HeadDim <= 0 || k.PageTokens <= 0 || k.TableStride <= 0 {
		c.fail("KV", "Heads %d, HeadDim %d, PageTokens %d, TableStride %d", k.Heads, k.HeadDim, k.PageTokens, k.TableStride)
		return
	}
	if k.DType != F32 && k.DType != BF16 && k.DType != F8E4M3 {
		c.fail("KV.DType", "is %s", k.DType)
		return
	}
	if k.PageStride < k.PageBytes() || k.PageStride%4 != 0 {
		c.fail("KV.PageStride", "is %d, a page has %d bytes", k.PageStride, k.PageBytes())
	}
	c.buffer("KV.Pages", k.Pages, 1, 4)
	c.that(k.Pages.Size >= k.PageBytes(), "KV.Pages", "hold no page")
	c.words("KV.Table", k.Table, k.TableStride)
}

// Validate requires projections as wide as the heads and a cache for K and V.
func (p WriteKV) Validate() error {
	c := check{op: "WriteKV"}
	c.rows("Rows", p.Rows)
	if p.Rows.Empty() {
		return c.err
	}
	c.cursors(p.Cursors)
	c.kv(p.KV)
	end, dim := p.Rows.First+p.Rows.Tokens, p.KV.HeadDim
	c.words("Pos", p.Pos, end)
	c.that(p.QHeads > 0 && p.KV.Heads > 0 && p.QHeads%max(p.KV.Heads, 1) == 0, "QHeads", "is no multiple of KV.Heads")
	c.that(p.QStride >= dim, "QStride", "is below HeadDim")
	c.layout("Q", p.Q)
	c.that(p.Q.Rows >= end && p.Q.Cols >= (p.QHeads-1)*p.QStride+dim, "Q", "is too small for its heads or tokens")
	c.mat("K", p.K, end, p.KV.Heads*dim)
	c.mat("V", p.V, end, p.KV.Heads*dim)
	c.mat("QOut", p.QOut, end, p.QHeads*dim)
	c.optional("QNorm", p.QNorm, dim)
	c.optional("KNorm", p.KNorm, dim)
	c.that(p.Eps >= 0, "Eps", "is negative or NaN")
	c.between("Rotary", p.Rotary, 0, dim)
	c.that(p.Rotary%2 == 0, "Rotary", "is odd")
	c.words("InvFreq", p.InvFreq, p.Rotary/2)
	c.that(scale(p.KScale) && scale(p.VScale), "KScale", "or VScale is negative or not finite")
	return c.err
}

func scale(s float32) bool { return s >= 0 && s <= math.MaxFloat32 }

// Validate requires queries and outputs as wide as the heads.
func (p Attend) Validate() error {
	c := check{op: "Attend"}
	c.rows("Rows", p.Rows)
	if p.Rows.Empty() {
		return c.err
	}
	c.cursors(p.Cursors)
	c.kv(p.KV)
	end, dim := p.Rows.First+p.Rows.Tokens, p.KV.HeadDim
	c.that(p.QHeads > 0 && p.KV.Heads > 0 && p.QHeads%max(p.KV.Heads, 1) == 0, "QHeads", "is no multiple of KV.Heads")
	c.mat("Q", p.Q, end, p.QHeads*dim)
	c.mat("Out", p.Out, end, p.QHeads*dim)
	if p.Gate.Nil() {
		return c.err
	}
	c.layout("Gate", p.Gate)
	c.that(p.GateStride >= dim, "GateStride", "is below HeadDim")
	c.that(p.Gate.Rows >= end && p.Gate.Cols >= (p.QHeads-1)*p.GateStride+dim, "Gate", "is too small for its heads or tokens")
	return c.err
}

// state requires blocks and rings of the given layouts.
func (c *check) state(s State, want RingLayout, blocks CheckpointLayout) {
	if s.Layout != want {
		c.fail("State.Layout", "is not that of Dims, Window and Precision")
		return
	}
	c.that(s.BlockStride >= blocks.LP.End && s.BlockStride%4 == 0, "State.BlockStride", "is below a block")
	c.that(s.RingStride >= want.Bytes && s.RingStride%4 == 0, "State.RingStride", "is below the layout")
	c.buffer("State.Blocks", s.Blocks, int(blocks.LP.End), 1)
	c.words("State.Rings", s.Rings, int(want.Bytes/4))
	c.that(s.Layer >= 0, "State.Layer", "is negative")
}

// scratch requires, for rows with scratch blocks, memory for one at least.
func (c *check) scratch(r Rows, s State, blocks CheckpointLayout) {
	if r.Scratch.Nil() && r.Stage.Nil() {
		return
	}
	c.that(r.T == 0, "Rows.Scratch", "of step rows")
	c.words("Rows.Scratch", r.Scratch, r.Count)
	c.words("Rows.Stage", r.Stage, r.Count)
	elements := blocks.HP.Heads * blocks.HP.Rows * blocks.HP.Cols
	c.that(s.ScratchStride >= int64(elements)*4 && s.ScratchStride%4 == 0, "State.ScratchStride", "is below a state")
	c.words("State.Scratch", s.Scratch, elements)
}

// cuts requires, for rows with cuts, places, blocks and memory for taps-1 raw rows each.
func (c *check) cuts(r Rows, s State, taps int) {
	k, n := r.Cuts, r.Count*r.Cuts.PerRow
	c.between("Rows.Cuts.PerRow", k.PerRow, 0, MaxCuts)
	if n <= 0 || c.err != nil {
		return
	}
	c.that(r.T == 0, "Rows.Cuts", "of step rows")
	c.words("Rows.Cuts.Place", k.Place, n)
	c.words("Rows.Cuts.Block", k.Block, n)
	tail := Field{Rows: taps - 1, Cols: s.Layout.Conv.Cols, DType: s.Layout.Conv.DType}.bytes()
	c.that(s.TailStride >= tail && s.TailStride%4 == 0, "State.TailStride", "is below the raw rows of a cut")
	c.buffer("State.Tails", s.Tails, int(int64(n-1)*s.TailStride+tail), 1)
}

// replay requires what step, scan and fold have in common.
func (c *check) replay(r Rows, cur Cursors, s State, want RingLayout, blocks CheckpointLayout, taps int) {
	c.cursors(cur)
	c.window(s.Window, r.T)
	c.state(s, want, blocks)
	c.scratch(r, s, blocks)
	c.cuts(r, s, taps)
}

// precision requires formats that there are.
func (c *check) precision(p Precision) bool {
	err := p.Validate()
	if err != nil {
		c.fail("State.Precision", "%v", err)
	}
	return err == nil
}

// Valid reports whether the dims are positive and heads divide into groups.
func (d Mamba2Dims) Valid() bool {
	return d.Heads > 0 && d.HeadDim > 0 && d.State > 0 && d.Groups > 0 && d.Taps > 0 && d.Heads%d.Groups == 0
}

// Valid reports whether the dims are positive and value heads divide among key heads.
func (d DeltaDims) Valid() bool {
	return d.KeyHeads > 0 && d.ValueHeads > 0 && d.KeyDim > 0 && d.ValueDim > 0 && d.Taps > 0 && d.ValueHeads%d.KeyHeads == 0
}

func (p Mamba2) common(c *check) bool {
	c.rows("Rows", p.Rows)
	if p.Rows.Empty() {
		return false
	}
	if !p.Dims.Valid() {
		c.fail("Dims", "are %+v", p.Dims)
		return false
	}
	if !c.precision(p.State.Precision) {
		return false
	}
	d := p.Dims
	want := Mamba2Ring(d, p.State.Window, p.State.Layout.B.DType)
	c.replay(p.Rows, p.Cursors, p.State, want, Mamba2Checkpoint(d, p.State.Precision), d.Taps)
	c.words("A", p.A, d.Heads)
	return true
}

// Validate is for step and scan: it requires projections, parameters, rings and blocks of the Dims' shapes.
func (p Mamba2) Validate() error {
	c := check{op: "Mamba2"}
	if !p.common(&c) {
		return c.err
	}
	d, end := p.Dims, p.Rows.First+p.Rows.Tokens
	c.mat("Z", p.Z, end, d.Inner())
	c.mat("XBC", p.XBC, end, d.Conv())
	c.mat("Dt", p.Dt, end, d.Heads)
	c.mat("Out", p.Out, end, d.Inner())
	c.words("ConvW", p.ConvW, d.Conv()*d.Taps)
	c.optional("ConvB", p.ConvB, d.Conv())
	c.words("D", p.D, d.Heads)
	c.words("DtBias", p.DtBias, d.Heads)
	c.words("NormW", p.NormW, d.Inner())
	c.that(p.DtMin >= 0 && p.DtMax >= 0, "DtMin", "or DtMax is negative or NaN")
	c.that(p.Eps >= 0, "Eps", "is negative or NaN")
	return c.err
}

// ValidateFold is for the fold, which needs Rows, Cursors, State, Dims and A only.
func (p Mamba2) ValidateFold() error {
	c := check{op: "Mamba2Fold"}
	p.common(&c)
	return c.err
}

func (p Delta) common(c *check) bool {
	c.rows("Rows", p.Rows)
	if p.Rows.Empty() {
		return false
	}
	if !p.Dims.Valid() {
		c.fail("Dims", "are %+v", p.Dims)
		return false
	}
	if !c.precision(p.State.Precision) {
		return false
	}
	d := p.Dims
	want := DeltaRing(d, p.State.Window, p.State.Layout.B.DType, p.State.Precision)
	c.replay(p.Rows, p.Cursors, p.State, want, DeltaCheckpoint(d, p.State.Precision), d.Taps)
	return true
}

// Validate is for step and scan: it requires projections, parameters, rings and blocks of the Dims' shapes.
func (p Delta) Validate() error {
	c := check{op: "Delta"}
	if !p.common(&c) {
		return c.err
	}
	d, end := p.Dims, p.Rows.First+p.Rows.Tokens
	c.mat("QKV", p.QKV, end, d.Conv())
	c.mat("Z", p.Z, end, d.Values())
	c.mat("B", p.B, end, d.ValueHeads)
	c.mat("A", p.A, end, d.ValueHeads)
	c.mat("Out", p.Out, end, d.Values())
	c.words("ConvW", p.ConvW, d.Conv()*d.Taps)
	c.words("DecayA", p.DecayA, d.ValueHeads)
	c.words("DtBias", p.DtBias, d.ValueHeads)
	c.words("NormW", p.NormW, d.ValueDim)
	c.that(p.Eps >= 0, "Eps", "is negative or NaN")
	return c.err
}

// ValidateFold is for the fold, which needs Rows, Cursors, State and Dims only.
func (p Delta) ValidateFold() error {
	c := check{op: "DeltaFold"}
	p.common(&c)
	return c.err
}
