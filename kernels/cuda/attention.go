//go:build cuda

package cuda

import (
	"fmt"
	"math"
	"math/bits"
	"unsafe"

	"reprise/kernels"
	"reprise/kernels/cuda/driver"
)

// Limits and sizes of src/attention.cuh, src/attention_step.cuh and src/kv.cu.
const (
	attendRows    = 256  // of a launch
	attendThreads = 128  // of a block, step rows; twice as many for head dim 256 where warps share scores
	rowsThreads   = 384  // of a block, prefill rows; 128 more that widen e4m3
	rowsPacked    = 128  // packed rows of a block, prefill rows
	attendTile    = 64   // tokens
	attendBox     = 16   // tokens of a page that a tensor map has in a box
	attendItems   = 264  // chunks times heads of a long context, two for each multiprocessor
	ownHeads      = 1024 // KV heads of rows from which on warps have one each
	combineBlocks = 16   // of a multiprocessor
	attendHead    = 2048 // bytes in front of sums of chunks, at least (1 + attendRows) * 4
	attendScratch = 384 << 20
	widestHead    = 256
)

// tensorKernel is an instance of src/attention_step.cuh, whose stages and blocks are in the .cu files too, or of
// src/attention_rows.cuh.
type tensorKernel struct {
	function driver.Function
	blocks   int // of a multiprocessor
	threads  int
	shared   int
	heads    int // KV heads of an item, step rows
}

// attentionKernels are those of src/kv.cu and src/attention*.cu.
type attentionKernels struct {
	write, writeEight, plain, combine driver.Function

	few     [3][2][]tensorKernel  // by head dim 64, 128, 256; bf16, e4m3; 8 and, but for 256, 16, 24 packed rows
	pairs   [3]tensorKernel       // e4m3, 8 packed rows, for few heads of rows: head dim 128, 256
	own     [2][3]tensorKernel    // head dim 128, for many heads of rows, of which a warp has one: by pages; 16, 24 packed rows behind none
	step    [3][2][3]tensorKernel // the same; 16 (of 256), 32, 64 packed rows
	rows    [3][2]tensorKernel
	scratch kernels.Buffer // sums of chunks
}

func (k *attentionKernels) load(l *loader) error {
	l.open("kv")
	k.write, k.writeEight, k.plain = l.active("write_kv", 0), l.active("write_kv_eight", 0), l.active("attend", 0)
	if l.dev.act != kernels.BF16 {
		return nil
	}
	k.combine = l.kernel("attend_combine", 0)
	stages := [3][2][3][2]int{{{{}, {4, 2}, {3, 2}}, {{}, {4, 2}, {3, 2}}}, {{{}, {2, 2}, {3, 1}}, {{}, {3, 2}, {2, 2}}}, {{{3, 1}, {2, 1}, {2, 1}}, {{2, 2}, {2, 2}, {3, 1}}}}
	for pages, module := range [...]string{"attention_step", "attention_step8"} {
		l.open(module)
		for d := range k.step {
			for m := range k.step[d][pages] {
				s := stages[d][pages][m]
				if s[0] == 0 { // few takes these
					continue
				}
				k.step[d][pages][m] = l.tensor(d, pages, m, s[0], s[1])
			}
		}
	}
	k.loadFew(l)
	l.open("attention_rows")
	for d := range k.rows {
		for pages, name := range [...]string{"bf16", "e4m3"} {
			shared := rowsShared(64<<d, pages == 1)
			k.rows[d][pages] = tensorKernel{l.kernel(fmt.Sprintf("rows_%d_%s", 64<<d, name), shared), 1, rowsThreads + 128*pages, shared, 0}
		}
	}
	k.scratch = l.scratch(attendHead + attendScratch)
	return nil
}

// loadFew finds the kernels for few packed rows. A shape is the tokens of a step, stages, and blocks of a multiprocessor, as in
// the .cu files.
func (k *attentionKernels) loadFew(l *loader) {
	shapes := [3][2][][3]int{
		{{{32, 3, 2}, {32, 3, 2}, {32, 3, 2}}, {{32, 3, 3}, {32, 3, 3}, {32, 3, 2}}},
		{{{16, 3, 2}, {16, 3, 2}, {16, 3, 2}}, {{16, 3, 4}, {16, 3, 3}, {16, 5, 2}}},
		{{{16, 3, 1}}, {{16, 3, 2}}},
	}
	own := [2][3][4]int{{{}, {16, 3, 1, 8}, {16, 3, 2, 4}}, {{}, {16, 3, 1, 8}, {16, 5, 2, 4}}} // and warps; with 8 it is no faster
	for pages, name := range [...]string{"bf16", "e4m3"} {
		l.open([...]string{"attention_few", "attention_few8"}[pages])
		for d := range shapes {
			for m, s := range shapes[d][pages] {
				name := fmt.Sprintf("few_%d_%s_%d", 64<<d, name, 8*(m+1))
				k.few[d][pages] = append(k.few[d][pages], l.few(name, 64<<d, m, pages == 1, 1, [4]int{s[0], s[1], s[2], 4}))
			}
			if pages == 1 && d > 0 {
				k.pairs[d] = l.few(fmt.Sprintf("few_%d_e4m3_pairs", 64<<d), 64<<d, 0, true, 1, [4]int{32, 3, 3 - d, 4})
			}
		}
		for m, s := range own[pages] {
			if m > 0 {
				k.own[pages][m] = l.few(fmt.Sprintf("few_128_%s_%d_own", name, 8*(m+1)), 128, m, pages == 1, s[3], s)
			}
		}
	}
}

// few finds an instance for m+1 eights of packed rows and KV heads of an item; s: tokens of a step, stages, blocks of a
// multiprocessor, warps.
func (l *loader) few(name string, dim, m int, narrow bool, heads int, s [4]int) tensorKernel {
	shared := fewShared(dim, 8*(m+1), s[0], s[1], s[3], narrow)
	return tensorKernel{l.kernel(name, shared), s[2], 32 * s[3], shared, heads}
}

// fewShared is FewLayout::TOTAL of src/attention_few.cuh, which the kernels check.
func fewShared(dim, queries, tokens, stages, warps int, narrow bool) int {
	stage := 2 * tokens * dim * 2
	if narrow {
		stage = 2*tokens*dim + 2*tokens*4
	}
	return warps*stages*(stage+32) + warps*queries*8 + (4*attendRows+8)*4
}

// tensor finds the instance for head dim 64<<d and 16<<m packed rows.
func (l *loader) tensor(d, pages, m, stages, blocks int) tensorKernel {
	dim, queries := 64<<d, 16<<m
	threads := attendThreads
	if dim == 256 {
		threads *= 2
	}
	shared := attendShared(dim, queries, stages, threads/32, pages == 1)
	name := [...]string{"bf16", "e4m3"}[pages]
	return tensorKernel{l.kernel(fmt.Sprintf("step_%d_%s_%d", dim, name, queries), shared), blocks, threads, shared, 1}
}

// attendShared is Layout::TOTAL of src/attention_step.cuh, which the kernels check.
func attendShared(dim, queries, stages, warps int, narrow bool) int {
	stage := 2 * attendTile * dim * 2
	if narrow {
		stage = 2*attendTile*dim + 2*attendTile*4
	}
	tiles := (stages + 1) * (9 + 2*attendTile) * 4
	tables := (4*attendRows + 8) * 4
	return stages*(stage+queries*dim*2) + queries*attendTile*2 + 2*queries*warps*4 + tiles + tables
}

// rowsShared is RowsLayout::TOTAL of src/attention_rows.cuh, which the kernels check.
func rowsShared(dim int, narrow bool) int {
	tile, group, parts := 128, 16, 3
	switch dim {
	case 64:
		parts = 4
	case 256:
		tile, group = 64, 4
	}
	n := rowsPacked*dim*2 + 4*tile*dim*2 + 12*8 + (4*attendRows+8)*4
	switch {
	case narrow:
		n += 8*parts*(group*dim+8) + 4*2*tile*4
	case dim <= 128:
		n += rowsPacked * dim * 2
	}
	return n
}

// pageCount is the pages that lie in the buffer.
func pageCount(k kernels.KV) int {
	if k.Pages.Size < k.PageBytes() {
		return 0
	}
	return int((k.Pages.Size-k.PageBytes())/k.PageStride) + 1
}

func checkHead(dim int) {
	if dim > widestHead {
		panic(fmt.Errorf("cuda: heads of %d dims: %w", dim, kernels.ErrUnsupported))
	}
}

// WriteKV normalises and rotates q and k and stores k and v.
func (o *ops) WriteKV(p kernels.WriteKV) {
	o.enter("WriteKV")
	must(p.Validate())
	if p.Rows.Empty() {
		return
	}
	for _, m := range [...]kernels.Mat{p.Q, p.K, p.V, p.QOut} {
		o.is(m, "a matrix")
	}
	checkHead(p.KV.HeadDim)
	type params struct {
		q, k, v, out                                                              mat
		slot, n, start, origin, h, pos, pages, table, qnorm, knorm, freq, trouble uint64
		pageStride, scales                                                        int64
		count, first, t, heads, queries, queryStride, tableStride, pageTokens     int32
		pageCount, dim, dtype, rotary                                             int32
		eps, kscale, vscale                                                       float32
		_                                                                         int32
	}
	r, k := p.Rows, p.KV
	write, heads := o.attention.write, 4 // of a block
	if eights(p) {
		write, heads = o.attention.writeEight, 1024/k.HeadDim
	}
	launch(o, write, grid(r.Tokens, ceil(p.QHeads+2*k.Heads, heads), 1, 128), params{
		q: matOf(p.Q), k: matOf(p.K), v: matOf(p.V), out: matOf(p.QOut),
		slot: addr(r.Slot), n: addr(r.N), start: addr(r.Start), origin: addr(p.Cursors.Origin), h: addr(p.Cursors.H), pos: addr(p.Pos),
		pages: addr(k.Pages), table: addr(k.Table), qnorm: addr(p.QNorm), knorm: addr(p.KNorm), freq: addr(p.InvFreq), trouble: o.dev.memory.trouble.addr(),
		pageStride: k.PageStride, scales: k.ScaleOffset(), count: int32(r.Count), first: int32(r.First), t: int32(r.T), heads: int32(k.Heads),
		queries: int32(p.QHeads), queryStride: int32(p.QStride), tableStride: int32(k.TableStride), pageTokens: int32(k.PageTokens),
		pageCount: int32(pageCount(k)), dim: int32(k.HeadDim), dtype: int32(k.DType), rotary: int32(p.Rotary), eps: p.Eps, kscale: p.KScale, vscale: p.VScale})
}

// eights reports whether eight dims a thread, which start at multiples of 16 bytes, are possible and the faster way: up to
// 128 tokens that is so, where latency counts.
func eights(p kernels.WriteKV) bool {
	dim := p.KV.HeadDim
	if p.Rows.Tokens > 128 || dim != 64 && dim != 128 && dim != 256 || p.Rotary%16 != 0 || p.KV.PageStride%16 != 0 {
		return false
	}
	addresses := addr(p.KV.Pages) | addr(p.InvFreq) | addr(p.QNorm) | addr(p.KNorm)
	strides := p.QStride
	for _, m := range [...]kernels.Mat{p.Q, p.K, p.V, p.QOut} {
		v := matOf(m)
		addresses |= v.addr
		strides |= int(v.stride)
	}
	return addresses%16 == 0 && strides%8 == 0
}

// attendParams is struct Attend of src/attention.cuh.
type attendParams struct {
	q, gate, out                                                      mat
	slot, n, start, origin, h, pages, table, partial, stats, trouble  uint64
	pageStride, scales                                                int64
	count, first, t, heads, group, gateStride, tableStride, pageShift int32
	pageTokens, pageCount, chunks, dim, dtype, tokens                 int32
	perGroup, perHead, perChunks                                      uint32
	scale                                                             float32
	least, _                                                          int32
	more                                                              uint64
}

// attendRowsParams is struct AttendRows of src/attention_rows.cuh.
type attendRowsParams struct {
	boxes  driver.TensorMap
	attend attendParams
	boxed  int32
	_      [20]byte
}

var _ [384]struct{} = [unsafe.Sizeof(attendRowsParams{})]struct{}{} // as in C++: TensorMap is aligned to 64

// perQuotient is ceil(2^32 / d), 0 for 1: see quotient in src/attention.cuh.
func perQuotient(d int) uint32 { return uint32((1<<32 + uint64(d) - 1) / uint64(d)) }

// Attend is causal attention over the pages.
func (o *ops) Attend(p kernels.Attend) {
	o.enter("Attend")
	must(p.Validate())
	if p.Rows.Empty() {
		return
	}
	o.is(p.Q, "Q")
	o.is(p.Out, "Out")
	r, v := p.Rows, p.KV
	checkHead(v.HeadDim)
	k := attendParams{q: matOf(p.Q), out: matOf(p.Out), slot: addr(r.Slot), n: addr(r.N), start: addr(r.Start), origin: addr(p.Cursors.Origin), h: addr(p.Cursors.H),
		pages: addr(v.Pages), table: addr(v.Table), trouble: o.dev.memory.trouble.addr(), pageStride: v.PageStride, scales: v.ScaleOffset(),
		count: int32(r.Count), first: int32(r.First), t: int32(r.T), heads: int32(v.Heads), group: int32(p.QHeads / v.Heads), gateStride: int32(p.GateStride),
		tableStride: int32(v.TableStride), pageShift: int32(bits.Len(uint(v.PageTokens)) - 1), pageTokens: int32(v.PageTokens), pageCount: int32(pageCount(v)),
		dim: int32(v.HeadDim), dtype: int32(v.DType), tokens: int32(r.Tokens), scale: p.Scale,
		perGroup: perQuotient(p.QHeads / v.Heads), perHead: perQuotient(v.Heads)}
	if !p.Gate.Nil() {
		o.is(p.Gate, "Gate")
		k.gate = matOf(p.Gate)
	}
	if !o.attendTensor(p, k) {
		launch(o, o.attention.plain, grid(r.Tokens, p.QHeads, 1, 128), k)
	}
}

// attendTensor attends by tensor cores if types, shapes and addresses allow it.
func (o *ops) attendTensor(p kernels.Attend, k attendParams) bool {
	v, r := p.KV, p.Rows
	d, pages := bits.Len(uint(v.HeadDim))-7, 0
	if v.DType == kernels.F8E4M3 {
		pages = 1
	}
	switch {
	case o.dev.act != kernels.BF16, v.DType == kernels.F32, d < 0 || d > 2 || v.HeadDim != 64<<d, v.PageTokens&(v.PageTokens-1) != 0:
		return false
	case (k.q.addr|k.pages|k.out.addr)%16 != 0, (k.q.stride|k.out.stride)%8 != 0, v.PageTokens < 4, !(p.Scale > 0), v.PageStride%64 != 0:
		return false
	}
	k.scale *= math.Log2E
	if r.T == 0 {
		o.attendPrefill(o.attention.rows[d][pages], v, k)
		return true
	}
	rows := r.T * int(k.group)
	if m := ceil(rows, 8) - 1; m < len(o.attention.few[d][pages]) {
		return o.attendStep(o.attention.fewKernel(d, pages, m, int(k.count*k.heads), int(k.heads)), k, 1)
	}
	m := min(max(bits.Len(uint(rows-1))-4, 0), 2)
	return o.attendStep(o.attention.step[d][pages][m], k, ceil(rows, 16<<m))
}

// fewKernel is the one for m+1 eights of packed rows and n KV heads of rows, of which a row has `heads`. Pairs make the bits that
// few makes; where warps have heads of their own they are others.
func (k *attentionKernels) fewKernel(d, pages, m, n, heads int) tensorKernel {
	own := k.own[pages][m]
	switch {
	case d == 1 && own.heads > 0 && heads%own.heads == 0 && n >= ownHeads:
		return own
	case d > 0 && pages == 1 && m == 0 && n <= 16:
		return k.pairs[d]
	}
	return k.few[d][pages][m]
}

// attendPrefill attends for up to attendRows rows a launch.
func (o *ops) attendPrefill(f tensorKernel, v kernels.KV, k attendParams) {
	p := attendRowsParams{attend: k}
	if v.DType == kernels.BF16 && v.PageTokens >= attendBox {
		p.boxed = 1
		must(p.boxes.PageBoxes(k.pages, int(k.pageCount), k.pageStride, 2*v.Heads*v.PageTokens, v.HeadDim, attendBox))
	}
	for from, all := 0, int(k.count); from < all; from += attendRows {
		part := &p.attend
		part.count = int32(min(all-from, attendRows))
		part.slot, part.n, part.start = k.slot+uint64(4*from), k.n+uint64(4*from), k.start+uint64(4*from)
		c := line(min(int(k.heads)*(ceil(int(k.tokens)*int(k.group), rowsPacked)+int(part.count)), o.dev.gpu.Processors), f.threads)
		c.Shared, c.Aligned = uint32(f.shared), true
		launch(o, f.function, c, p)
	}
}

// cuts is how a launch cuts contexts: the least tokens of a chunk, and the most chunks of a row. Sums of chunks are written and
// read again, all the more those of several tokens, so chunks are the larger the more heads of rows there are; up to 16 of these
// are cut small, to spread at all.
func cuts(rows, heads, t int) (least, most int) {
	n, many, items := rows*heads, 256, 16*attendItems
	if t > 1 {
		many, items = 64, 4*attendItems
	}
	switch {
	case n <= 16:
		least = 128
	case n < many:
		least = 256
	default:
		least = 512
	}
	return least, min(ceil(attendItems, heads), ceil(items, n))
}

// attendStep attends for as many rows a launch as have space for the sums of their chunks; false: for none.
func (o *ops) attendStep(f tensorKernel, k attendParams, blocks int) bool {
	least, most := cuts(int(k.count), int(k.heads), int(k.t))
	most = min(ceil(int(k.tableStride*k.pageTokens), least), most)
	k.least, k.chunks, k.perChunks, k.perHead = int32(least), int32(most), perQuotient(most), perQuotient(int(k.heads)/f.heads)
	heads := int(k.t * k.heads * k.group) // of a row
	sums, stats := heads*int(k.chunks)*int(k.dim)*4, heads*int(k.chunks)*8
	rows := min(attendScratch/(sums+stats), attendRows)
	if rows == 0 {
		return false
	}
	k.more = addr(o.attention.scratch)
	k.partial = k.more + attendHead
	k.stats = k.partial + uint64(rows*sums)
	for from, all := 0, int(k.count); from < all; from += rows {
		part := k
		part.count, part.first = int32(min(all-from, rows)), k.first+int32(from)*k.t
		part.slot, part.n = k.slot+uint64(4*from), k.n+uint64(4*from)
		o.attendLaunch(f, part, int(part.count*k.chunks*k.heads)/f.heads*blocks)
		launch(o, o.attention.combine, line(min(int(part.count)*heads, o.dev.gpu.Processors*combineBlocks), 128), part)
	}
	return true
}

// attendLaunch starts as many blocks as run at once, if there are that many items.
func (o *ops) attendLaunch(f tensorKernel, k attendParams, items int) {
	c := line(min(items, o.dev.gpu.Processors*f.blocks), f.threads)
	c.Shared = uint32(f.shared)
	launch(o, f.function, c, k)
}
