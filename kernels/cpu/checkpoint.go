package cpu

import (
	"encoding/binary"
	"math"

	"reprise/kernels"
)

// heldState is one copy of a layer's state in one block, or its state in a scratch block.
type heldState struct {
	a      kernels.StateArray
	memory kernels.Buffer // of the layer in that block
}

// rows is n rows of a head: the memory itself where it is float32, else widened into buffer.
func (h *heldState) rows(head, from, n int, buffer []float32) []float32 {
	cols := h.a.Cols
	if h.a.Format == kernels.StateF32 {
		return f32(h.memory.Slice(h.a.Values+int64((head*h.a.Rows+from)*cols)*4, int64(n*cols)*4))
	}
	h.widen(buffer[:n*cols], head, from)
	return buffer[:n*cols]
}

// widen is StateArray.DecodeRows.
func (h *heldState) widen(dst []float32, head, from int) {
	a, memory := &h.a, bytesOf(h.memory)
	first, n := head*a.Rows+from, len(dst)/a.Cols
	values := memory[a.Values+int64(first*a.RowBytes()):][:n*a.RowBytes()]
	switch {
	case a.Format == kernels.StateF16:
		widen(dst, values, kernels.F16)
	case a.Format == kernels.StateBF16:
		widen(dst, values, kernels.BF16)
	case a.Format == kernels.StateF8:
		widen(dst, values, kernels.F8E4M3)
		scaleRows(dst, memory[a.Scales+int64(4*first*a.RowScales()):], a.Cols)
	case a.Format == kernels.StateNVFP4 && a.Cols%kernels.NVFP4Block == 0:
		g := math.Float32frombits(binary.LittleEndian.Uint32(memory[a.HeadScales+int64(4*head):]))
		widenNVFP4(dst, values, memory[a.Scales+int64(first*a.RowScales()):][:n*a.RowScales()], g)
	default:
		a.DecodeRows(dst, memory, head, from)
	}
}

// scaleRows multiplies rows of fp8 elements by their blocks' scales.
func scaleRows(dst []float32, scales []byte, cols int) {
	for ; len(dst) > 0; dst = dst[cols:] {
		for from := 0; from < cols; from += kernels.F8Block {
			block := dst[from:min(cols, from+kernels.F8Block)]
			scaleMul(block, block, nil, math.Float32frombits(binary.LittleEndian.Uint32(scales)))
			scales = scales[4:]
		}
	}
}

// nvfp4Chunk is how many blocks of nvfp4 are widened at a time.
const nvfp4Chunk = 64

// widenNVFP4 widens whole blocks, sixteen elements in eight bytes of values, times their scales times g.
func widenNVFP4(dst []float32, values, scales []byte, g float32) {
	var halves [nvfp4Chunk]float32
	for len(scales) > 0 {
		n := min(nvfp4Chunk, len(scales))
		part := halves[:n]
		widen(part, scales[:n], kernels.F8E4M3)
		for i, s := range part {
			part[i] = s * g * 0.5
		}
		widenFourBits(dst, values, part)
		dst, values, scales = dst[16*n:], values[8*n:], scales[n:]
	}
}

// widenFourBitsGo writes blocks of sixteen e2m1 from eight bytes each, the low half of a byte first, times twice their
// halves.
func widenFourBitsGo(dst []float32, src []byte, halves []float32) {
	for i, half := range halves {
		for j, v := range src[8*i:][:8] {
			dst[16*i+2*j], dst[16*i+2*j+1] = kernels.E2M1ToF32(v)*(2*half), kernels.E2M1ToF32(v>>4)*(2*half)
		}
	}
}

// checkpoints is the states of one layer that a row reads and writes.
type checkpoints struct {
	state  *kernels.State
	layout kernels.CheckpointLayout
	row    replayRow
	head   []float32 // room for the state of a head, where a format is not float32
	part   []float32 // room for stateRows of its rows
}

func newCheckpoints(s *kernels.State, layout kernels.CheckpointLayout, row replayRow, m *ssmMemory) checkpoints {
	c := checkpoints{state: s, layout: layout, row: row}
	if layout.LP.Format != kernels.StateF32 {
		c.head, c.part = m.floats.take(layout.HP.Rows*layout.HP.Cols), m.floats.take(stateRows*layout.HP.Cols)
	}
	return c
}

func (c *checkpoints) in(a kernels.StateArray, block int32) heldState {
	return heldState{a, c.state.Blocks.Slice(int64(block)*c.state.BlockStride, a.End)}
}

// scratch is the row's scratch block.
func (c *checkpoints) scratch() heldState {
	hp := c.layout.HP
	a := kernels.StateArray{Format: kernels.StateF32, Heads: hp.Heads, Rows: hp.Rows, Cols: hp.Cols}
	size := int64(a.Heads*a.Rows*a.Cols) * 4
	return heldState{a, c.state.Scratch.Slice(int64(c.row.scratch)*c.state.ScratchStride, size)}
}

// carried is the state that carries the recurrence, before the row's records.
func (c *checkpoints) carried() heldState { return c.in(c.layout.HP, c.row.cursor.Src) }

// read is the state that the outputs of a step are computed from.
func (c *checkpoints) read(flush bool) heldState {
	if flush {
		return c.carried()
	}
	return c.in(c.layout.LP, c.row.cursor.Src)
}

// start is the state that a scan starts from, after a fold of the row if it has records.
func (c *checkpoints) start() heldState {
	folded, r := c.row.cursor.H > 0, &c.row
	switch {
	case r.scratch >= 0 && (folded || r.stage&kernels.Resume != 0):
		return c.scratch()
	case r.scratch < 0 && folded:
		return c.in(c.layout.HP, r.cursor.Dst)
	}
	return c.carried()
}

// target is where a new state goes.
type target struct {
	to    heldState
	noise kernels.StateNoise
	copy  heldState // LP; of no memory where there is none
}

// folded is where a flush or a fold leaves the state.
func (c *checkpoints) folded() target {
	if c.row.scratch >= 0 {
		return target{to: c.scratch()}
	}
	return c.checkpoint(c.row.cursor.Dst, 0)
}

// scanned is where a scan leaves the state.
func (c *checkpoints) scanned() target {
	if c.row.scratch >= 0 && c.row.stage&kernels.Publish == 0 {
		return target{to: c.scratch()}
	}
	return c.checkpoint(c.row.cursor.Dst, c.row.n)
}

// checkpoint is a block for the state behind n tokens of the row.
func (c *checkpoints) checkpoint(dst int32, n int) target {
	p := c.state.Precision
	t := target{to: c.in(c.layout.HP, dst), noise: p.Noise(c.state.Layer, c.row.next()+int32(n))}
	if p.Two() {
		t.copy = c.in(c.layout.LP, dst)
	}
	return t
}

// memory is where the state of a head is computed: in its place where that is float32, else in buffer.
func (t *target) memory(head int, buffer []float32) []float32 {
	if t.to.a.Format == kernels.StateF32 {
		return t.to.rows(head, 0, t.to.a.Rows, nil)
	}
	return buffer
}

// store rounds the state of a head, which is in memory, into the formats.
func (t *target) store(head int, state []float32) {
	if t.to.a.Format != kernels.StateF32 {
		t.to.a.EncodeHead(bytesOf(t.to.memory), head, state, t.noise)
	}
	if !t.copy.memory.Nil() {
		t.copy.a.EncodeHead(bytesOf(t.copy.memory), head, state, kernels.StateNoise{})
	}
}

// multiplyState is y[t] = S q[t] of a head for n vectors; every part of S is read once.
func (c *checkpoints) multiplyState(y tile, s heldState, head int, q tile, n int) {
	rows, cols := s.a.Rows, s.a.Cols
	for i := 0; i < rows; i += stateRows {
		m := min(stateRows, rows-i)
		part := s.rows(head, i, m, c.part)
		prefetch(&part[0], m*cols, m*cols)
		for t := range n {
			dots(y.data[t*y.rows+i:][:m], grid(part, cols), q.data[t*q.rows:][:cols], m)
		}
	}
}

// fold makes before * S + sum of weights[j] * x_j b_j^T of one head the new state. x is overwritten; every part of the
// state is read and written once.
func (c *checkpoints) fold(head int, before float32, weights []float32, x, b tile) {
	for j, w := range weights {
		scale(w, line(x, j))
	}
	from, to := c.carried(), c.folded()
	src := from.rows(head, 0, x.rows, c.head)
	dst := to.memory(head, c.head)
	product(grid(dst, b.rows), before, grid(src, b.rows), x.transposed(), b, x.rows, b.rows, len(weights))
	to.store(head, dst)
}
