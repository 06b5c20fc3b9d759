package kerneltest

import (
	"bytes"
	"math/rand/v2"
	"strconv"

	"reprise/kernels"
)

// ssmRow is one row of a launch: a slot, its cursor and what it appends. Its numbers come from seed alone, so that the
// same row can be had in another slot and other blocks.
type ssmRow struct {
	slot, n             int
	origin, h, src, dst int
	seed                uint64
	first               int // first token in the batch; set by batch

	scratch int   // scratch block, 0 for none
	stage   int32 // kernels.Resume, kernels.Publish
	cuts    []cut
}

// cut is a place in a row at which its state goes into a block.
type cut struct{ place, block int }

// publishes reports whether a scan of the row ends in block dst.
func (r ssmRow) publishes() bool { return r.scratch == 0 || r.stage&kernels.Publish != 0 }

func (r ssmRow) position() int { return r.origin + r.h }

// flushes reports whether the row folds its records during a step.
func (r ssmRow) flushes(w kernels.Window) bool {
	return r.n > 0 && kernels.Flushes(int32(r.h), int32(r.n), int32(w.L))
}

// ssmPool is the memory of one layer, all of it garbage at first: NaN in rings, blocks and null entries.
type ssmPool struct {
	b             *bench
	kind          recurrence
	window        kernels.Window
	precision     kernels.Precision
	layout        kernels.RingLayout
	checkpoint    kernels.CheckpointLayout
	slots         int
	blockStride   int
	ringStride    int
	blocks, rings *array
	scratch       *array    // float32 states of scratchBlocks blocks
	tails         *array    // of cuts, allocated by batch.addCuts
	cursor        [4]*array // Origin, H, Src, Dst
}

const (
	scratchBlocks = 12
	ssmLayer      = 3 // which of a model's layers the pool is; a counter of stochastic rounding
)

func newSSMPool(b *bench, kind recurrence, w kernels.Window, slots, blocks int) *ssmPool {
	p := &ssmPool{b: b, kind: kind, window: w, precision: b.precision, slots: slots, layout: kind.layout(w, b.devices[device].Activations(), b.precision)}
	p.checkpoint = kind.checkpoint(b.precision)
	p.ringStride = int(p.layout.Bytes) + 256 // the next layer's
	p.blockStride = int(p.checkpoint.LP.End+3)&^3 + 512
	p.rings = b.array("rings", encode(kernels.F32, nans(slots*p.ringStride/4)))
	p.blocks = b.array("blocks", bytes.Repeat([]byte{0xff}, blocks*p.blockStride)) // NaN in every format that has one
	if b.precision.Scratch() {
		p.scratch = b.array("scratch", encode(kernels.F32, nans(scratchBlocks*(kind.block()+16))))
	}
	for i := range p.cursor {
		p.cursor[i] = b.ints("cursor "+strconv.Itoa(i), make([]int, slots)...)
	}
	return p
}

func (p *ssmPool) state(s side) kernels.State {
	state := kernels.State{
		Blocks: p.blocks.buf[s], BlockStride: int64(p.blockStride), Rings: p.rings.buf[s], RingStride: int64(p.ringStride),
		Layout: p.layout, Window: p.window, Precision: p.precision, Layer: ssmLayer,
	}
	if p.scratch != nil {
		state.Scratch, state.ScratchStride = p.scratch.buf[s], int64(4*(p.kind.block()+16))
	}
	if p.tails != nil {
		state.Tails, state.TailStride = p.tails.buf[s], int64(p.tailStride())
	}
	return state
}

// tailStride is a little more than the raw rows of a cut take.
func (p *ssmPool) tailStride() int {
	return (p.kind.taps()-1)*p.layout.Conv.Cols*p.layout.Conv.DType.Size()&^3 + 16
}

// tail is raw row i of entry number cut of a launch.
func (p *ssmPool) tail(cut, i int) piece {
	f := p.layout.Conv
	size := f.Cols * f.DType.Size()
	from := cut*p.tailStride() + i*size
	return piece{p.tails, span{from, from + size}, f.DType}
}

func (p *ssmPool) cursors(s side) kernels.Cursors {
	c := p.cursor
	return kernels.Cursors{Origin: c[0].buf[s], H: c[1].buf[s], Src: c[2].buf[s], Dst: c[3].buf[s]}
}

// ringRow is where the row of an absolute token lies in a ring of a slot.
func (p *ssmPool) ringRow(slot int, f kernels.Field, token int) piece {
	size := f.Cols * f.DType.Size()
	from := slot*p.ringStride + int(f.Offset) + kernels.RingIndex(int32(token), f.Rows)*size
	return piece{p.rings, span{from, from + size}, f.DType}
}

// blockPiece is all of a block, which is numbers only where they are float32.
func (p *ssmPool) blockPiece(block int) piece {
	from := block * p.blockStride
	return piece{p.blocks, span{from, from + int(p.checkpoint.LP.End)}, kernels.F32}
}

func (p *ssmPool) scratchPiece(block int) piece {
	from := 4 * block * (p.kind.block() + 16)
	return piece{p.scratch, span{from, from + 4*p.kind.block()}, kernels.F32}
}

// block is all of a block as a buffer.
func (p *ssmPool) block(s side, block int) kernels.Buffer {
	return p.blocks.buf[s].Slice(int64(block*p.blockStride), int64(p.blockStride))
}

// fill writes the cursors, committed records, convolution history and source blocks of the rows; dst blocks too where
// withDst says (what a fold left there).
func (p *ssmPool) fill(rows []ssmRow, withDst bool) {
	p.b.Helper()
	rings, blocks := p.rings.before, p.blocks.before
	cursors := [4][]int{make([]int, p.slots), make([]int, p.slots), make([]int, p.slots), make([]int, p.slots)}
	for _, r := range rows {
		if r.slot == 0 {
			continue
		}
		g := rand.New(rand.NewPCG(r.seed, 2))
		for i, v := range []int{r.origin, r.h, r.src, r.dst} {
			cursors[i][r.slot] = v
		}
		p.fillRecords(rings, r, g)
		p.fillBlock(blocks, r.src, g)
		if withDst {
			p.fillBlock(blocks, r.dst, g)
		}
		if r.scratch > 0 && (r.stage&kernels.Resume != 0 || withDst && r.h > 0) {
			copy(p.scratch.before[p.scratchPiece(r.scratch).from:], encode(kernels.F32, gaussian(g, p.kind.block(), 0.5)))
		}
	}
	if p.scratch != nil {
		p.b.set(p.scratch, p.scratch.before)
	}
	p.b.set(p.rings, rings)
	p.b.set(p.blocks, blocks)
	for i := range cursors {
		p.b.set(p.cursor[i], intBytes(cursors[i]))
	}
}

func (p *ssmPool) fillRecords(rings []byte, r ssmRow, g *rand.Rand) {
	put := func(f kernels.Field, token int, v []float32) {
		copy(rings[p.ringRow(r.slot, f, token).from:], encode(f.DType, v))
	}
	for i := range r.h {
		x, b, decay := p.kind.record(g)
		put(p.layout.X, r.origin+i, x)
		put(p.layout.B, r.origin+i, b)
		put(p.layout.Decay, r.origin+i, decay)
		if p.layout.V.Rows > 0 {
			put(p.layout.V, r.origin+i, gaussian(g, p.layout.V.Cols, 0.5))
			put(p.layout.Beta, r.origin+i, uniform(g, p.layout.Beta.Cols, 0, 1))
		}
	}
	for i := max(0, r.position()-p.kind.taps()+1); i < r.position(); i++ {
		put(p.layout.Conv, i, gaussian(g, p.layout.Conv.Cols, 1))
	}
}

// fillBlock writes a state into a block, and another one into the copy: who reads the wrong one is far off.
func (p *ssmPool) fillBlock(blocks []byte, block int, g *rand.Rand) {
	share := blocks[p.blockPiece(block).from:p.blockPiece(block).to]
	for _, a := range p.copies() {
		state, size := gaussian(g, p.kind.block(), 0.5), a.Rows*a.Cols
		for h := range a.Heads {
			a.EncodeHead(share, h, state[h*size:(h+1)*size], kernels.StateNoise{})
		}
	}
}

// copies is what a block holds: HP, and LP with two precisions.
func (p *ssmPool) copies() []kernels.StateArray {
	if p.precision.Two() {
		return []kernels.StateArray{p.checkpoint.HP, p.checkpoint.LP}
	}
	return []kernels.StateArray{p.checkpoint.HP}
}

// recordFields is the rings that a step writes.
func (p *ssmPool) recordFields() []kernels.Field {
	l := p.layout
	if l.V.Rows > 0 {
		return []kernels.Field{l.X, l.B, l.Decay, l.Conv, l.V, l.Beta}
	}
	return []kernels.Field{l.X, l.B, l.Decay, l.Conv}
}

// batch is the rows of one launch and their activations.
type batch struct {
	pool           *ssmPool
	rows           []ssmRow
	t              int // 0 = packed
	first, tokens  int
	slot, n, start *array
	scratch, stage *array // where a row has a scratch block
	cuts           int    // most cuts of a row
	place, block   *array // of cuts
	in             []matrix
	out            matrix
}

// newBatch lays the rows behind first tokens of somebody else; rows of t > 0 are padded.
func newBatch(p *ssmPool, rows []ssmRow, t, first int) *batch {
	p.b.Helper()
	k := &batch{pool: p, rows: rows, t: t, first: first}
	var slot, n, start []int
	for i := range rows {
		rows[i].first = first + k.tokens
		slot, n, start = append(slot, rows[i].slot), append(n, rows[i].n), append(start, rows[i].first)
		k.tokens += max(t, rows[i].n)
	}
	b, all := p.b, first+k.tokens+1
	k.slot, k.n, k.start = b.ints("slot", slot...), b.ints("n", n...), b.ints("start", start...)
	k.addScratch()
	k.addCuts()
	for i, cols := range p.kind.inputs() {
		k.in = append(k.in, b.matrix("in "+strconv.Itoa(i), all, cols, k.tokensOf(i, all, cols)))
	}
	k.out = b.output("out", all, p.kind.outputs(), first, k.tokens)
	return k
}

// addScratch says which rows have scratch blocks, if there is one.
func (k *batch) addScratch() {
	var scratch, stage []int
	any := false
	for _, r := range k.rows {
		any = any || r.scratch > 0
		stage = append(stage, int(r.stage))
		if r.scratch > 0 {
			scratch = append(scratch, r.scratch)
		} else {
			scratch = append(scratch, -1)
		}
	}
	if any {
		k.scratch, k.stage = k.pool.b.ints("scratch blocks", scratch...), k.pool.b.ints("stages", stage...)
	}
}

// addCuts says where rows are cut, if any is: behind its cuts a row has entries that are none.
func (k *batch) addCuts() {
	var place, block []int
	if k.cuts = mostCuts(k.rows); k.cuts == 0 {
		return
	}
	for i, r := range k.rows {
		for _, c := range r.cuts {
			place, block = append(place, c.place), append(block, c.block)
		}
		for j := len(r.cuts); j < k.cuts; j++ {
			place, block = append(place, []int{-1, 0, r.n + 1, 1 << 30}[(i+j)%4]), append(block, -1)
		}
	}
	k.place, k.block = k.pool.b.ints("places of cuts", place...), k.pool.b.ints("blocks of cuts", block...)
	k.pool.tails = k.pool.b.array("tails of cuts", bytes.Repeat([]byte{0xff}, len(place)*k.pool.tailStride()))
}

func mostCuts(rows []ssmRow) int {
	most := 0
	for _, r := range rows {
		most = max(most, len(r.cuts))
	}
	return most
}

// tokensOf is the numbers of projection i: those of a row by its seed, NaN elsewhere.
func (k *batch) tokensOf(i, rows, cols int) []float32 {
	v := nans(rows * cols)
	for _, r := range k.rows {
		g := rand.New(rand.NewPCG(r.seed, uint64(10+i)))
		copy(v[r.first*cols:], gaussian(g, r.n*cols, 1))
	}
	return v
}

func (k *batch) kernelRows(s side) kernels.Rows {
	r := kernels.Rows{Count: len(k.rows), First: k.first, Tokens: k.tokens, T: k.t, MaxLen: k.t, Slot: k.slot.buf[s], N: k.n.buf[s]}
	if k.t == 0 {
		r.Start = k.start.buf[s]
		for _, row := range k.rows {
			r.MaxLen = max(r.MaxLen, row.n)
		}
	}
	if k.scratch != nil {
		r.Scratch, r.Stage = k.scratch.buf[s], k.stage.buf[s]
	}
	if k.cuts > 0 {
		r.Cuts = kernels.Cuts{PerRow: k.cuts, Place: k.place.buf[s], Block: k.block.buf[s]}
	}
	return r
}

func (k *batch) launch(o kernels.Ops, s side, op launch) {
	c := call{rows: k.kernelRows(s), cursors: k.pool.cursors(s), state: k.pool.state(s), out: k.out.on(s)}
	for _, m := range k.in {
		c.in = append(c.in, m.on(s))
	}
	k.pool.kind.launch(o, s, op, c)
}

// outputs is the output rows of the tokens that count.
func (k *batch) outputs() []piece {
	var list []piece
	for _, r := range k.rows {
		list = append(list, k.out.part(r.first, r.n)...)
	}
	return list
}

// padding is the output rows of the tokens that do not count.
func (k *batch) padding() []piece {
	var list []piece
	for _, r := range k.rows {
		list = append(list, k.out.part(r.first+r.n, max(k.t-r.n, 0))...)
	}
	return list
}
