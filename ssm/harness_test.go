package ssm_test

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"reprise/kernels"
	"reprise/kernels/cpu"
	"reprise/ssm"
)

// sequence is what the test knows of one sequence: its plain recurrence, its slot, its cursor and its blocks.
type sequence struct {
	plain  plain
	slot   int
	cursor kernels.Cursor
}

// harness runs one layer of a pool on the CPU device.
type harness struct {
	testing.TB
	kind                              kind
	p                                 *params
	dev                               kernels.Device
	pool                              *ssm.Pool
	window                            kernels.Window
	convW, convB, a, d, dtBias, norm  kernels.Buffer
	slots, counts, starts             kernels.Buffer
	in                                []kernels.Buffer
	out                               kernels.Buffer
	refs                              []int // by block
	freeSlots                         []int
	worst                             float64 // largest error of an output or state element, relative to the largest element
	squares, wanted                   float64 // sums of squares of the errors of outputs, and of outputs
	checkpoint                        kernels.CheckpointLayout
	scratch                           kernels.Buffer
	stage                             kernels.Buffer
	commitPrefillAsStep, keepOldBlock bool // rules dropped on purpose
	scanWithoutFold                   bool
}

const (
	maxRows   = 8
	maxTokens = 300
)

// newPreciseHarness has states of precision q, and scratch blocks.
func newPreciseHarness(tb testing.TB, k kind, w kernels.Window, q kernels.Precision, threads int, seed uint64) *harness {
	dev, err := cpu.Open(cpu.Options{Threads: threads})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { dev.Close() })
	c := k.config
	c.Window, c.Activations, c.Slots, c.Blocks, c.State, c.Scratch = w, kernels.F32, maxRows+1, 3*maxRows+1, q, 4
	pool, err := ssm.NewPool(dev, c)
	if err != nil {
		tb.Fatal(err)
	}
	h := &harness{TB: tb, kind: k, p: k.params(rand.New(rand.NewPCG(seed, 1))), dev: dev, pool: pool, window: w}
	h.checkpoint = k.checkpoint(q)
	h.upload()
	h.poison(c)
	return h
}

func (h *harness) upload() {
	h.convW, h.convB, h.a = h.buffer(h.p.convW), h.buffer(h.p.convB), h.buffer(h.p.a)
	h.d, h.dtBias, h.norm = h.buffer(h.p.d), h.buffer(h.p.dtBias), h.buffer(h.p.norm)
	for _, b := range []*kernels.Buffer{&h.slots, &h.counts, &h.starts, &h.scratch, &h.stage} {
		*b = h.alloc(4 * maxRows)
	}
	for _, w := range h.kind.widths {
		h.in = append(h.in, h.alloc(4*w*maxTokens))
	}
	h.out = h.alloc(4 * h.kind.out * maxTokens)
}

// poison fills blocks and rings with NaN, as a reused pool would be full of garbage.
func (h *harness) poison(c ssm.PoolConfig) {
	h.refs = make([]int, c.Blocks)
	h.refs[0] = 1
	for s := range c.Slots {
		if s > 0 {
			h.freeSlots = append(h.freeSlots, s)
		}
	}
	last := h.pool.Layers()[1]
	h.do(func(o kernels.Ops) {
		for b := range c.Blocks {
			h.pool.LoadBlock(o, nans(h.pool.BlockBytes()), b)
		}
		o.Upload(last.Rings, nans(last.Rings.Size))
		for b := range c.Scratch {
			h.pool.LoadScratch(o, nans(h.pool.ScratchBytes()), b)
		}
	})
}

func nans(n int64) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = 0xff
	}
	return b
}

func (h *harness) alloc(bytes int) kernels.Buffer {
	b, err := h.dev.Alloc(int64(bytes))
	if err != nil {
		h.Fatal(err)
	}
	return b
}

func (h *harness) buffer(v []float32) kernels.Buffer {
	if v == nil {
		return kernels.Buffer{}
	}
	b := h.alloc(4 * len(v))
	h.do(func(o kernels.Ops) { o.Upload(b, floatBytes(v)) })
	return b
}

func floatBytes(v []float32) []byte {
	b := make([]byte, 4*len(v))
	for i, f := range v {
		binary.LittleEndian.PutUint32(b[4*i:], math.Float32bits(f))
	}
	return b
}

func floatsOf(b []byte) []float32 {
	v := make([]float32, len(b)/4)
	for i := range v {
		v[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return v
}

func (h *harness) do(f func(kernels.Ops)) {
	h.Helper()
	h.dev.Submit(kernels.ProgramFunc(f))
	if err := h.dev.Wait(h.dev.Mark()); err != nil {
		h.Fatalf("%v\n%s", err, err.(*kernels.Fault).Stack)
	}
}

// takeBlock reserves a block; its content is garbage.
func (h *harness) takeBlock() int32 {
	for b, n := range h.refs {
		if n == 0 {
			h.refs[b] = 1
			return int32(b)
		}
	}
	h.Fatal("no block left")
	return 0
}

// admit starts a sequence in a slot of its own.
func (h *harness) admit() *sequence {
	b := h.takeBlock()
	s := &sequence{plain: h.kind.plain(h.p), slot: h.takeSlot(), cursor: kernels.Cursor{Src: b, Dst: b}}
	h.do(func(o kernels.Ops) {
		h.pool.ZeroBlock(o, int(b))
		h.pool.SetCursor(o, s.slot, s.cursor)
	})
	return s
}

func (h *harness) takeSlot() int {
	s := h.freeSlots[0]
	h.freeSlots = h.freeSlots[1:]
	return s
}

func (h *harness) release(s *sequence) {
	h.freeSlots = append(h.freeSlots, s.slot)
	h.dropBlocks(s.cursor)
}

func (h *harness) dropBlocks(c kernels.Cursor) {
	h.refs[c.Src]--
	if c.Dst != c.Src {
		h.refs[c.Dst]--
	}
}

// fork starts a second sequence with the state of the first in another slot: the block is shared, the tail copied.
// Both get a reserved block to write.
func (h *harness) fork(s *sequence) *sequence {
	f := &sequence{plain: s.plain.clone(), slot: h.takeSlot(), cursor: s.cursor}
	h.refs[s.cursor.Src]++
	f.cursor.Dst = h.reserved(f.cursor.Src)
	if s.cursor.Dst == s.cursor.Src {
		s.cursor.Dst = h.reserved(s.cursor.Src)
	}
	tail := make([]byte, h.pool.TailSize(s.cursor))
	if int64(len(tail)) > h.pool.TailBytes() {
		h.Errorf("tail of %d bytes, longest %d", len(tail), h.pool.TailBytes())
	}
	h.do(func(o kernels.Ops) {
		h.pool.SaveTail(o, s.slot, s.cursor, tail)
		h.pool.LoadTail(o, f.slot, s.cursor, tail)
		h.pool.SetCursor(o, s.slot, s.cursor)
		h.pool.SetCursor(o, f.slot, f.cursor)
	})
	return f
}

func (h *harness) reserved(src int32) int32 {
	if h.keepOldBlock {
		return src
	}
	return h.takeBlock()
}

// swap moves a sequence to another slot and another block through host memory.
func (h *harness) swap(s *sequence) {
	block, tail := make([]byte, h.pool.BlockBytes()), make([]byte, h.pool.TailSize(s.cursor))
	h.do(func(o kernels.Ops) {
		h.pool.SaveBlock(o, int(s.cursor.Src), block)
		h.pool.SaveTail(o, s.slot, s.cursor, tail)
	})
	h.release(s)
	b := h.takeBlock()
	s.slot, s.cursor.Src, s.cursor.Dst = h.takeSlot(), b, b
	h.do(func(o kernels.Ops) {
		h.pool.LoadBlock(o, block, int(b))
		h.pool.LoadTail(o, s.slot, s.cursor, tail)
		h.pool.SetCursor(o, s.slot, s.cursor)
	})
}

// row is one row of a launch: the tokens it appends and how many of them are accepted (of a step).
type row struct {
	s        *sequence // nil: the null slot
	tokens   []int
	accepted int

	scratched bool // a prefill: the row has scratch block scratch
	scratch   int
	stage     int32
}

// launch runs rows and returns their outputs by row.
func (h *harness) launch(op operation, rows []row, t int) [][]float32 {
	h.Helper()
	layout, ids := h.lay(rows, t)
	in := make([]kernels.Mat, len(h.in))
	for i, b := range h.in {
		in[i] = kernels.NewMat(b, kernels.F32, len(ids), h.kind.widths[i])
		h.uploadInputs(b, i, ids)
	}
	out := kernels.NewMat(h.out, kernels.F32, len(ids), h.kind.out)
	data := make([]byte, out.Buf.Size)
	h.do(func(o kernels.Ops) {
		o.Upload(out.Buf, nans(out.Buf.Size))
		if op == scan && !h.scanWithoutFold {
			h.kind.launch(h, o, fold, layout, in, out)
		}
		h.kind.launch(h, o, op, layout, in, out)
		o.Download(data, out.Buf)
	})
	return h.split(rows, layout, floatsOf(data))
}

// lay describes rows to the device; ids are the batch's tokens, -1 for padding.
func (h *harness) lay(rows []row, t int) (kernels.Rows, []int) {
	layout := kernels.Rows{Count: len(rows), T: t, MaxLen: t}
	var slots, counts, starts, ids []int
	for _, r := range rows {
		slot := 0
		if r.s != nil {
			slot = r.s.slot
		}
		slots, counts, starts = append(slots, slot), append(counts, len(r.tokens)), append(starts, len(ids))
		ids = append(ids, r.tokens...)
		for i := len(r.tokens); i < t; i++ {
			ids = append(ids, -1)
		}
		layout.MaxLen = max(layout.MaxLen, len(r.tokens))
	}
	layout.Tokens = len(ids)
	cut := func(b kernels.Buffer, v []int) kernels.Buffer {
		b = b.Slice(0, int64(4*len(v)))
		h.do(func(o kernels.Ops) { o.Upload(b, intBytes(v)) })
		return b
	}
	layout.Slot, layout.N, layout.Start = cut(h.slots, slots), cut(h.counts, counts), cut(h.starts, starts)
	if slices.ContainsFunc(rows, func(r row) bool { return r.scratched }) {
		var blocks, stages []int
		for _, r := range rows {
			if !r.scratched {
				r.scratch = -1
			}
			blocks, stages = append(blocks, r.scratch), append(stages, int(r.stage))
		}
		layout.Scratch, layout.Stage = cut(h.scratch, blocks), cut(h.stage, stages)
	}
	return layout, ids
}

func intBytes(v []int) []byte {
	b := make([]byte, 4*len(v))
	for i, n := range v {
		binary.LittleEndian.PutUint32(b[4*i:], uint32(n))
	}
	return b
}

func (h *harness) uploadInputs(b kernels.Buffer, i int, ids []int) {
	var all []byte
	for _, id := range ids {
		if id < 0 {
			all = append(all, nans(int64(4*h.kind.widths[i]))...)
			continue
		}
		all = append(all, floatBytes(h.p.inputs[i][id])...)
	}
	h.do(func(o kernels.Ops) { o.Upload(b.Slice(0, int64(len(all))), all) })
}

// split cuts the outputs by row and requires zeros for padding.
func (h *harness) split(rows []row, layout kernels.Rows, out []float32) [][]float32 {
	var byRow [][]float32
	for _, r := range rows {
		n := len(r.tokens) * h.kind.out
		byRow = append(byRow, out[:n])
		out = out[n:]
		if layout.T == 0 {
			continue
		}
		pad := (layout.T - len(r.tokens)) * h.kind.out
		for _, v := range out[:pad] {
			if v != 0 {
				h.Fatalf("padding has %v", v)
			}
		}
		out = out[pad:]
	}
	return byRow
}

// step runs and commits step rows and compares them with the plain recurrence. It returns the outputs.
func (h *harness) step(rows []row, t int) [][]float32 {
	h.Helper()
	outs := h.launch(step, rows, t)
	for i, r := range rows {
		if r.s == nil {
			continue
		}
		h.compareTokens(r, outs[i], r.s.plain.clone())
		for _, id := range r.tokens[:r.accepted] {
			r.s.plain.next(id)
		}
		h.commit(r.s, r.s.cursor.CommitStep(int32(len(r.tokens)), int32(r.accepted), int32(h.window.L)))
	}
	return outs
}

// prefill folds, scans and commits packed rows.
func (h *harness) prefill(rows []row) [][]float32 {
	h.Helper()
	outs := h.launch(scan, rows, 0)
	for i, r := range rows {
		n := int32(len(r.tokens))
		h.compareTokens(r, outs[i], r.s.plain)
		after := r.s.cursor.CommitPrefill(n)
		if h.commitPrefillAsStep {
			after = r.s.cursor.CommitStep(n, n, int32(h.window.L))
		}
		h.commit(r.s, after)
	}
	return outs
}

func (h *harness) compareTokens(r row, out []float32, p plain) {
	for _, id := range r.tokens {
		want := p.next(id)
		h.compare(out[:h.kind.out], want)
		for i, v := range want {
			h.squares, h.wanted = h.squares+(float64(out[i])-v)*(float64(out[i])-v), h.wanted+v*v
		}
		out = out[h.kind.out:]
	}
}

// noise is the error of all outputs, relative to them, in the mean of squares.
func (h *harness) noise() float64 { return math.Sqrt(h.squares / h.wanted) }

func (h *harness) compare(got []float32, want []float64) {
	var largest float64
	for _, v := range want {
		largest = max(largest, math.Abs(v))
	}
	if largest == 0 { // the state before any token
		largest = 1
	}
	for i, v := range want {
		e := math.Abs(float64(got[i])-v) / largest
		if math.IsNaN(e) {
			e = math.Inf(1)
		}
		h.worst = max(h.worst, e)
	}
}

// commit writes the cursor, releases a block that is no longer read and compares the live state.
func (h *harness) commit(s *sequence, after kernels.Cursor) {
	if after.Src != s.cursor.Src {
		h.refs[s.cursor.Src]--
	}
	s.cursor = after
	got := make([]byte, ssm.CursorBytes)
	h.do(func(o kernels.Ops) {
		h.pool.SetCursor(o, s.slot, after)
		h.pool.ReadCursor(o, s.slot, got)
	})
	if c := ssm.CursorOf(got); c != after {
		h.Fatalf("cursor %+v, want %+v", c, after)
	}
	if int(after.H) > h.window.L {
		h.worst = math.Inf(1) // the rings have wrapped over committed records
		return
	}
	state := h.state(s)
	narrow := make([]float32, len(state))
	for i, v := range state {
		narrow[i] = float32(v)
	}
	h.compare(narrow, s.plain.state())
}

// state is the live state of a sequence: the checkpoint with the committed records folded in.
func (h *harness) state(s *sequence) []float64 {
	l := h.pool.Layers()[1]
	region := make([]byte, l.Layout.Bytes)
	h.do(func(o kernels.Ops) { o.Download(region, l.Rings.Slice(int64(s.slot)*l.RingStride, l.Layout.Bytes)) })
	state := h.widened(h.checkpoint.HP, s.cursor.Src)
	record := func(f kernels.Field, i int32) []float32 {
		at := f.Offset + int64(kernels.RingIndex(i, f.Rows)*f.Cols*4)
		return floatsOf(region[at : at+int64(4*f.Cols)])
	}
	for i := s.cursor.Origin; i < s.cursor.Origin+s.cursor.H; i++ {
		h.kind.replay(h.p, state, record(l.Layout.X, i), record(l.Layout.B, i), record(l.Layout.Decay, i))
	}
	return state
}

// share is the last layer's part of a block.
func (h *harness) share(block int32) []byte {
	l := h.pool.Layers()[1]
	share := make([]byte, h.checkpoint.LP.End)
	h.do(func(o kernels.Ops) {
		o.Download(share, l.Blocks.Slice(int64(block)*l.BlockStride, h.checkpoint.LP.End))
	})
	return share
}

// widened is one copy of the state in a block.
func (h *harness) widened(a kernels.StateArray, block int32) []float64 {
	share, head := h.share(block), make([]float32, a.Rows*a.Cols)
	var state []float64
	for i := range a.Heads {
		a.DecodeRows(head, share, i, 0)
		for _, v := range head {
			state = append(state, float64(v))
		}
	}
	return state
}
