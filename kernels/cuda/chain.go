//go:build cuda

package cuda

import (
	"slices"
	"unsafe"

	"reprise/kernels"
	"reprise/kernels/cuda/driver"
)

// What src/chain.cu shares.
const (
	chainLinks   = 4    // products of a launch
	chainBlocks  = 4    // of a cluster
	chainRing    = 1024 // bytes in front of the ring
	chainStages  = 16   // at most
	chainTokens  = 64   // at most
	chainTiles   = 33   // that share columns, at most
	chainThreads = 224
	chainCounter = 4 * (chainLinks + 1)
	chainSquares = chainTiles * chainTokens * 4

	// chainBeside is the bytes of shared memory that leave room for the first blocks of the kernel behind, which pays up to
	// chainFew rows; with more it is tileShared.
	chainBeside = 186 << 10
	chainFew    = 16

	// chainAhead is the bytes of weights that a block has on their way when blocks meet, in its ring and, with more than chainFew
	// rows, beside it in the L2 cache.
	chainAhead = 128 << 10
)

// Rows of the tiles of src/chain.cu: that a cluster shares, that one block has, and of gates and values.
var (
	chainShared = [...]int{88, 112}
	chainWhole  = [...]int{64, 88, 104, 112, 152, 160}
)

const chainPairs = 160

// chainKernels is the kernel of src/chain.cu and the products that wait for a launch.
type chainKernels struct {
	function driver.Function
	clusters int // that run at once; 0: no such launches
	squares  kernels.Buffer
	counters kernels.Buffer // zero between launches

	waiting [chainLinks]link
	count   int
}

// link is a product of a run and how it is cut.
type link struct {
	p            kernels.Linear
	rows, splits int         // of a tile; blocks that share its columns
	wide         *wideKernel // nil for few rows, up to chainTokens
}

func (k *chainKernels) load(l *loader) {
	if l.dev.act != kernels.BF16 {
		return
	}
	l.open("chain")
	k.function = l.kernel("chain", tileShared)
	k.squares, k.counters = l.scratch(chainSquares), l.scratch(chainCounter)
	if l.err == nil {
		k.clusters, l.err = k.function.Clusters(chainThreads, tileShared, chainBlocks)
		k.clusters = min(k.clusters, chainTiles)
	}
}

// cut chooses tiles by the outputs of a product, so that all run at once and few blocks have none; 0 if there are none such.
func (k *chainKernels) cut(p kernels.Linear) (rows, splits int) {
	fit := func(rows, most int) bool {
		tiles := ceil(p.Y.Cols, rows)
		return tiles <= most && 10*tiles >= 7*most
	}
	if p.Activates() && p.Kind == kernels.SiLUMul {
		if fit(chainPairs/2, chainBlocks*k.clusters) {
			return chainPairs, 1
		}
		return 0, 0
	}
	for _, rows := range chainShared {
		if p.Whole() && fit(rows, k.clusters) && ceil(p.X.Cols, tileChunk) >= chainBlocks {
			return rows, chainBlocks
		}
	}
	if p.Add { // results of one block are rounded before they are stored
		return 0, 0
	}
	for _, rows := range chainWhole {
		if fit(rows, chainBlocks*k.clusters) {
			return rows, 1
		}
	}
	return 0, 0
}

// chain takes a product that may wait for those behind it, to run with them in one launch, or runs those that wait.
func (o *ops) chain(p kernels.Linear) bool {
	k := &o.linear.chain
	if k.count > 0 && (k.count == chainLinks || p.X.Rows != k.waiting[0].p.X.Rows) {
		o.flush()
	}
	l, ok := o.link(p)
	if !ok && k.count > 0 { // it may be the first of others
		o.flush()
		l, ok = o.link(p)
	}
	if ok {
		k.waiting[k.count] = l
		k.count++
	}
	return ok
}

// link is how the product runs behind those that wait.
func (o *ops) link(p kernels.Linear) (l link, ok bool) {
	k, w := &o.linear.chain, own(p.W)
	if p.X.Rows > chainTokens {
		return o.wideLink(p)
	}
	if k.clusters == 0 || p.X.Rows == 0 || w.dtype != kernels.BF16 || p.X.DType != kernels.BF16 || p.Y.DType != kernels.BF16 || w.stride%16 != 0 {
		return l, false
	}
	x := p.X
	if !p.NormW.Nil() {
		if k.count == 0 {
			return l, false
		}
		before := &k.waiting[k.count-1]
		if before.splits == 1 || before.p.Y != p.X || overlap(p.Normed, p.X) || overlap(p.Normed, before.p.X) {
			return l, false // Normed is written while blocks still read X of the product in front
		}
		x = p.Normed
	}
	if x.Buf.Addr%16 != 0 || x.Stride%8 != 0 {
		return l, false
	}
	l = link{p: p}
	if x.Rows >= o.linear.wide.few {
		l.wide = o.linear.wide.of(&p)
	}
	l.rows, l.splits = k.cut(p)
	return l, l.rows > 0
}

// overlap reports whether two matrices share memory.
func overlap(a, b kernels.Mat) bool {
	return a.Buf.Addr < b.Buf.Addr+uintptr(b.Buf.Size) && b.Buf.Addr < a.Buf.Addr+uintptr(a.Buf.Size)
}

// flush runs the products that wait.
func (o *ops) flush() {
	k, name := &o.linear.chain, o.current
	list := k.waiting[:k.count]
	k.count = 0
	switch {
	case tiled(list):
		o.wides(list)
		o.current = name
		return
	case len(list) > 1:
		o.links(list)
		return
	}
	for i := range list {
		o.single(list[i].p)
	}
	o.current = name
}

// tiled reports whether products run by wide tiles, a launch each: always, if they can, but for one by itself of few rows.
func tiled(list []link) bool {
	other := func(l link) bool { return l.wide == nil }
	return (len(list) > 1 || len(list) == 1 && list[0].p.X.Rows > chainTokens) && !slices.ContainsFunc(list, other)
}

// linkParams is struct Link of src/chain.cu.
type linkParams struct {
	w, x                    driver.TensorMap
	y, z                    mat
	factors                 uint64
	n, rows, splits, chunks int32
	act, added, even, tiles int32
	width, eps              float32
	ahead                   int32
	_                       [44]byte
}

// chainParams is struct Chain of src/chain.cu.
type chainParams struct {
	links                   [chainLinks]linkParams
	squares, counters       uint64
	count, m, stages        int32
	stage, weights, results int32
	_                       [24]byte
}

var _ [384]struct{} = [unsafe.Sizeof(linkParams{})]struct{}{} // as in C++: TensorMap is aligned to 64
var _ [1600]struct{} = [unsafe.Sizeof(chainParams{})]struct{}{}

// outputs is those of a tile.
func (l *link) outputs() int {
	if l.p.Activates() {
		return l.rows / l.p.Kind.InWidth(1)
	}
	return l.rows
}

// results is the bytes of shared memory that take a tile's results for so many tokens: sums by the block that adds them up and
// those of the other blocks, or bf16 of one block.
func (l *link) results(tokens int) int {
	if l.splits > 1 {
		stride := l.rows // floats of a token
		if stride%16 == 0 {
			stride += 8
		}
		return (2*chainBlocks - 1) * ceil(tokens, chainBlocks) * stride * 4
	}
	return tokens * (l.rows/8 | 1) * 16
}

// links runs products in one launch.
func (o *ops) links(list []link) {
	k, m := &o.linear.chain, list[0].p.X.Rows
	p := chainParams{squares: addr(k.squares), counters: addr(k.counters), count: int32(len(list)), m: int32(m)}
	rows, results := 0, 0
	for i := range list {
		rows, results = max(rows, list[i].rows), max(results, list[i].results(m))
		p.links[i].set(&list[i])
		if i > 0 && !list[i].p.NormW.Nil() {
			p.links[i].follow(&p.links[i-1], &list[i])
		}
	}
	space, slot := tileShared, ceil(m, 8)*8
	if m <= chainFew {
		space = chainBeside
	}
	behind := max(results, (chainTokens-slot)*tileRow) // the warpgroup reads chainTokens of the last slot too
	stage := (rows + slot) * tileRow
	stages := min(chainStages, (space-chainRing-behind)/stage)
	p.stages, p.stage, p.weights, p.results = int32(stages), int32(stage), int32(rows*tileRow), int32(chainRing+stages*stage)
	if m > chainFew {
		for i := range list {
			p.links[i].ahead = int32(max(0, chainAhead/(list[i].rows*tileRow)-stages))
		}
	}
	c := line(k.clusters*chainBlocks, chainThreads)
	c.Shared, c.Cluster, c.Aligned, c.Together = uint32(chainRing+stages*stage+behind), chainBlocks, true, true
	launch(o, k.function, c, p)
	o.waited(0)
}

// set describes a product.
func (q *linkParams) set(l *link) {
	p, w, x := &l.p, own(l.p.W), l.p.X
	if !p.NormW.Nil() {
		x = p.Normed
	}
	*q = linkParams{y: matOf(p.Y), n: int32(p.Y.Cols), rows: int32(l.rows), splits: int32(l.splits), chunks: int32(ceil(w.cols, tileChunk)), act: -1, added: flag(p.Add)}
	if p.Activates() {
		q.act = int32(p.Kind)
	}
	columns := 8
	if l.splits > 1 {
		columns = 4
	}
	q.even = flag(p.Y.Stride%columns == 0 && p.Y.Buf.Addr%uintptr(2*columns) == 0)
	must(q.w.Boxes(addr(w.buf), w.rows, w.cols, w.stride, l.outputs(), tileChunk))
	must(q.x.Boxes(addr(x.Buf), x.Rows, x.Cols, int64(x.Stride)*2, x.Rows, tileChunk))
}

// follow makes the product in front leave what l's norm wants.
func (q *linkParams) follow(before *linkParams, l *link) {
	q.tiles, q.width, q.eps = int32(ceil(int(before.n), int(before.rows))), float32(l.p.X.Cols), l.p.Eps
	before.z, before.factors = matOf(l.p.Normed), addr(l.p.NormW)
	if l.p.Normed.Stride%4 != 0 || l.p.Normed.Buf.Addr%8 != 0 || l.p.NormW.Addr%16 != 0 {
		before.even = 0
	}
}
