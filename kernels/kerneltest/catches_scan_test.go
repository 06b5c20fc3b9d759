package kerneltest

import (
	"testing"

	"reprise/kernels"
)

// faultyHalved is faulty with bfloat16 activations: what scans leave may then come from activations that rounded the other
// way, and is held to less (ssmPool.scanned).
type faultyHalved struct{ faulty }

func (faultyHalved) Activations() kernels.DType { return kernels.BF16 }

// scanPlants are errors of a scan's states that are stored in few bits.
func scanPlants() []plant {
	const d = "delta {2 4 8 16 4}"
	const many, far = "codes differ", "a neighbour may be"
	return []plant{
		{"the noise of another layer", d + " scan float16+sr", many, onDeltaScan(func(o kernels.Ops, p kernels.Delta) { p.State.Layer++; o.DeltaScan(p) })},
		{"rounding to nearest", d + " scratch fp8+sr", many, onDeltaScan(func(o kernels.Ops, p kernels.Delta) {
			p.State.Precision.Rounding = kernels.Nearest
			o.DeltaScan(p)
		})},
		{"a head's decay off by a hundredth", d + " scan float16", "blocks: ", onDeltaScan(func(o kernels.Ops, p kernels.Delta) {
			undo(o, p.DecayA, func() { scale(o, kernels.NewMat(p.DecayA, kernels.F32, 1, 1), 0.01); o.DeltaScan(p) })
		})},
		{"a checkpoint by way of bfloat16", d + " scan float16", far, onDeltaScan(func(o kernels.Ops, p kernels.Delta) {
			o.DeltaScan(p)
			editBlocks(o, p, func(block []byte) {
				for i := 0; i < len(block); i += 2 {
					block[i] &= 0xf8
				}
			})
		})},
		{"two elements exchanged", d + " fold and scratch float16/nvfp4", far, onDeltaScan(func(o kernels.Ops, p kernels.Delta) {
			o.DeltaScan(p)
			editBlocks(o, p, func(block []byte) { block[0], block[1], block[2], block[3] = block[2], block[3], block[0], block[1] })
		})},
		{"a copy of the state before", d + " fold and scratch float16/nvfp4", "copies", onDeltaScan(func(o kernels.Ops, p kernels.Delta) {
			at := kernels.DeltaCheckpoint(p.Dims, p.State.Precision).LP.Values
			undo(o, p.State.Blocks.Slice(at, p.State.Blocks.Size-at), func() { o.DeltaScan(p) })
		})},
	}
}

// cutPlants are errors of what a scan leaves at cuts.
func cutPlants() []plant {
	const m, d = "mamba2 {4 8 16 2 4}", "delta {2 4 8 16 4}"
	return []plant{
		{"no cuts", m + " cuts", "blocks", onMamba2Scan(func(o kernels.Ops, p kernels.Mamba2) { p.Rows.Cuts.PerRow = 0; o.Mamba2Scan(p) })},
		{"cuts a token late", d + " cuts", "blocks", onDeltaScan(func(o kernels.Ops, p kernels.Delta) {
			undo(o, p.Rows.Cuts.Place, func() {
				places := ints(fetch(o, p.Rows.Cuts.Place))
				for i, block := range ints(fetch(o, p.Rows.Cuts.Block)) {
					if block >= 0 {
						places[i]++
					}
				}
				o.Upload(p.Rows.Cuts.Place, intBytes(places))
				o.DeltaScan(p)
			})
		})},
		{"no raw rows", m + " cuts", "raw tail", onMamba2Scan(func(o kernels.Ops, p kernels.Mamba2) { undo(o, p.State.Tails, func() { o.Mamba2Scan(p) }) })},
		{"a raw row twice", d + " split at cuts", "what goes on from a cut", onDeltaScan(func(o kernels.Ops, p kernels.Delta) {
			o.DeltaScan(p)
			row := int64(p.Dims.Conv() * 4)
			for at := int64(0); p.Rows.Cuts.PerRow > 0 && at < p.State.Tails.Size; at += p.State.TailStride {
				o.Copy(p.State.Tails.Slice(at+2*row, row), p.State.Tails.Slice(at+row, row))
			}
		})},
	}
}

// editBlocks changes the values of every block's float16 state.
func editBlocks(o kernels.Ops, p kernels.Delta, edit func(block []byte)) {
	state := kernels.DeltaCheckpoint(p.Dims, p.State.Precision).HP
	for at := state.Values; at+p.State.BlockStride <= p.State.Blocks.Size; at += p.State.BlockStride {
		b := p.State.Blocks.Slice(at, int64(2*state.Heads*state.Rows*state.Cols))
		block := fetch(o, b)
		edit(block)
		o.Upload(b, block)
	}
}

func TestSuiteCatchesPlantedErrorsOfScans(t *testing.T) {
	for _, p := range scanPlants() {
		t.Run(p.name, func(t *testing.T) {
			p.caught(t, func(f faulty) kernels.Device { return f })
			p.caught(t, func(f faulty) kernels.Device { return faultyHalved{f} })
		})
	}
	for _, p := range cutPlants() {
		t.Run(p.name, func(t *testing.T) { p.caught(t, func(f faulty) kernels.Device { return f }) })
	}
}
