package sampler

import "reprise/kernels"

// Head multiplies hidden rows by the output matrix: out is F32 [hidden.Rows, vocab].
type Head interface {
	Logits(o kernels.Ops, hidden, out kernels.Mat)
}

// Rows are the sampled rows of a step, as kernels.Sample describes them.
type Rows struct {
	Count                      int
	TopN                       int
	Token, Slot, Target, Depth kernels.Buffer // i32 [Count]
	IDs, Pos                   kernels.Buffer // i32 of the batch
}

// Run samples all rows, a tile of logits at a time.
func (t *Tables) Run(o kernels.Ops, head Head, hidden kernels.Mat, r Rows) {
	for first := 0; first < r.Count; first += t.Config.TileRows {
		t.tileOf(o, head, hidden, r, first, min(t.Config.TileRows, r.Count-first))
	}
}

func (t *Tables) tileOf(o kernels.Ops, head Head, hidden kernels.Mat, r Rows, first, n int) {
	part := func(b kernels.Buffer, each int) kernels.Buffer { return b.Slice(int64(first*each)*4, int64(n*each)*4) }
	o.Sample(kernels.Sample{
		Logits: t.Logits(o, head, hidden, r, first, n),
		Token:  part(r.Token, 1), Slot: part(r.Slot, 1), Target: part(r.Target, 1), Depth: part(r.Depth, 1),
		IDs: r.IDs, Pos: r.Pos, Slots: t.Slots, Tables: t.Large, TopN: r.TopN,
		Out: part(t.Out.Token, 1), LogProb: part(t.Out.LogProb, 1), Rank: part(t.Out.Rank, 1),
		TopID: part(t.Out.TopID, r.TopN), TopProb: part(t.Out.TopProb, r.TopN),
	})
}

// Logits are those of n sampled rows, TileRows at most, in the memory of Tile.
func (t *Tables) Logits(o kernels.Ops, head Head, hidden kernels.Mat, r Rows, first, n int) kernels.Mat {
	input, logits := t.input.RowRange(0, n), t.tile.RowRange(0, n)
	o.GatherRows(kernels.GatherRows{X: hidden, Y: input, Index: r.Token.Slice(int64(first)*4, int64(n)*4)})
	head.Logits(o, input, logits)
	return logits
}
