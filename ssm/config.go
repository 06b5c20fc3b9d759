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
	StateDType  kernels.DType  // of checkpoints
	Slots       int            // including the null slot 0
	Blocks      int            // including the null block 0
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
	case c.StateDType != kernels.F32:
		return fmt.Errorf("ssm: --mamba-ssm-cache-dtype %v: %w", c.StateDType, kernels.ErrUnsupported)
	case c.Slots < 2 || c.Blocks < 2:
		return fmt.Errorf("ssm: %d slots and %d state blocks: want at least one of each besides the null one", c.Slots, c.Blocks)
	case c.Slots > math.MaxInt32 || c.Blocks > math.MaxInt32:
		return fmt.Errorf("ssm: %d slots and %d state blocks: their numbers are 32 bits wide", c.Slots, c.Blocks)
	}
	return nil
}

// layer is where one layer's share of a block and of a slot lies.
type layer struct {
	block, blockBytes int64 // offset in a block and size; a multiple of 256
	slot              int64 // offset in a slot's ring region
	ring              kernels.RingLayout
	taps              int
}

// layout is the only place that places layers in blocks and slots. It returns the bytes of a block and of a slot's
// rings.
func (c PoolConfig) layout() (layers []layer, blockBytes, slotBytes int64) {
	add := func(n, elements, taps int, ring kernels.RingLayout) {
		size := (int64(elements)*int64(c.StateDType.Size()) + 255) &^ 255
		for range n {
			layers = append(layers, layer{blockBytes, size, slotBytes, ring, taps})
			blockBytes += size
			slotBytes += ring.Bytes
		}
	}
	if d := c.Mamba2; c.Mamba2Layers > 0 {
		add(c.Mamba2Layers, d.Inner()*d.State, d.Taps, kernels.Mamba2Ring(d, c.Window, c.Activations))
	}
	if d := c.Delta; c.DeltaLayers > 0 {
		add(c.DeltaLayers, d.Values()*d.KeyDim, d.Taps, kernels.DeltaRing(d, c.Window, c.Activations))
	}
	return layers, blockBytes, slotBytes
}

// BlockBytes is the device memory of one state block: the checkpoints of all layers of one sequence.
func (c PoolConfig) BlockBytes() int64 {
	_, n, _ := c.layout()
	return n
}

// SlotBytes is the device memory of one slot: the rings of all layers and a cursor.
func (c PoolConfig) SlotBytes() int64 {
	_, _, n := c.layout()
	return n + CursorBytes
}
