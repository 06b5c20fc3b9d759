package ssm

import (
	"fmt"
	"math"

	"reprise/kernels"
)

// MaxWindow is the longest replay window: beyond it replaying costs more than any checkpoint write saves.
const MaxWindow = 1024

// PoolConfig sizes a Pool. A model has Mamba-2 layers or GDN layers; with both, the Mamba-2 layers come first.
type PoolConfig struct {
	Mamba2       kernels.Mamba2Dims
	Mamba2Layers int
	Delta        kernels.DeltaDims
	DeltaLayers  int

	Window      kernels.Window // L = --replayssm-buffer-len, T = num_speculative_tokens + 1
	Activations kernels.DType  // of the device
	State       kernels.Precision
	Slots       int // including the null slot 0
	Blocks      int // including the null block 0
	Scratch     int // float32 blocks for unfinished prefills; of use if State.Scratch()
}

// Validate reports a configuration that cannot run, in the words of the command line.
func (c PoolConfig) Validate() error {
	w := c.Window
	switch {
	case w.T < 1:
		return fmt.Errorf("ssm: %d tokens a step: num_speculative_tokens must not be negative", w.T)
	case w.L > MaxWindow:
		return fmt.Errorf("ssm: --replayssm-buffer-len %d: at most %d", w.L, MaxWindow)
	case w.L < w.T:
		return fmt.Errorf("ssm: --replayssm-buffer-len %d is below the %d tokens a step appends (num_speculative_tokens %d + 1)", w.L, w.T, w.T-1)
	case c.Mamba2Layers < 0 || c.DeltaLayers < 0:
		return fmt.Errorf("ssm: %d Mamba-2 and %d GDN layers", c.Mamba2Layers, c.DeltaLayers)
	case c.Mamba2Layers > 0 && !c.Mamba2.Valid():
		return fmt.Errorf("ssm: Mamba-2 dims %+v", c.Mamba2)
	case c.DeltaLayers > 0 && !c.Delta.Valid():
		return fmt.Errorf("ssm: GDN dims %+v", c.Delta)
	case c.State.Validate() != nil:
		return fmt.Errorf("ssm: --mamba-ssm-cache-dtype, --ssm-read-dtype: %w", c.State.Validate())
	case c.Slots < 2 || c.Blocks < 2:
		return fmt.Errorf("ssm: %d slots and %d state blocks: want at least one of each besides the null one", c.Slots, c.Blocks)
	case c.Scratch < 0 || c.Scratch > math.MaxInt32:
		return fmt.Errorf("ssm: %d scratch blocks", c.Scratch)
	case c.Slots > math.MaxInt32 || c.Blocks > math.MaxInt32:
		return fmt.Errorf("ssm: %d slots and %d state blocks: their numbers are 32 bits wide", c.Slots, c.Blocks)
	}
	return nil
}

// layer is where one layer's share of a block, of a scratch block and of a slot lies.
type layer struct {
	block   int64 // offset in a block
	scratch int64 // offset in a scratch block
	slot    int64 // offset in a slot's ring region
	ring    kernels.RingLayout
	taps    int
}

// layout is where the layers lie in blocks and slots; its method is the only place that decides it.
type layout struct {
	layers                              []layer
	blockBytes, scratchBytes, slotBytes int64
}

func (c PoolConfig) layout() layout {
	var l layout
	add := func(n, taps int, state kernels.CheckpointLayout, ring kernels.RingLayout) {
		for range n {
			l.layers = append(l.layers, layer{l.blockBytes, l.scratchBytes, l.slotBytes, ring, taps})
			l.blockBytes += state.Bytes()
			l.scratchBytes += state.ScratchBytes()
			l.slotBytes += ring.Bytes
		}
	}
	if d := c.Mamba2; c.Mamba2Layers > 0 {
		add(c.Mamba2Layers, d.Taps, kernels.Mamba2Checkpoint(d, c.State), kernels.Mamba2Ring(d, c.Window, c.Activations))
	}
	if d := c.Delta; c.DeltaLayers > 0 {
		add(c.DeltaLayers, d.Taps, kernels.DeltaCheckpoint(d, c.State), kernels.DeltaRing(d, c.Window, c.Activations, c.State))
	}
	return l
}

// BlockBytes is the device memory of one state block: the checkpoints of all layers of one sequence, both copies where
// there are two.
func (c PoolConfig) BlockBytes() int64 { return c.layout().blockBytes }

// ScratchBytes is the device memory of one scratch block: the float32 states of all layers of one sequence.
func (c PoolConfig) ScratchBytes() int64 { return c.layout().scratchBytes }

// SlotBytes is the device memory of one slot: the rings of all layers and a cursor.
func (c PoolConfig) SlotBytes() int64 { return c.layout().slotBytes + CursorBytes }
