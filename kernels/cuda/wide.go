//go:build cuda

package cuda

import (
	"fmt"
	"unsafe"

	"reprise/kernels"
	"reprise/kernels/cuda/driver"
)

// What src/wide.cu shares.
const (
	wideTokens = 256 // at most
	wideRing   = 1 << 10
	wideStages = 16  // at most
	wideMoves  = 208 // rows of the largest tile of 128 tokens whose blocks need not move registers
	widePairs  = 272 // rows of the smallest tile of gates and values
	wideParts  = 64  // of a product in front of a norm, at most: blocks whose outputs are others

	// As measured: rows from which a launch each is faster than one by src/chain.cu, slots whose weights do not wait for the
	// kernel in front, and chunks of the product behind that come into the L2 cache, one of so many, so many of a block.
	wideFew, wideEarly, wideEvery, wideBrought = 64, 3, 5, 3
)

// wideShapes are the kernels of src/wide.cu: rows of a weight that a tile has, pairs of blocks that share its columns, tokens
// of a block, and the fewest tokens and rows of a weight with which a layer's products were measured to be faster.
var wideShapes = [...]struct{ rows, splits, tokens, leastTokens, least int }{
	{176, 4, 64, 1, narrowFew}, {224, 4, 64, 1, narrowFew}, {112, 1, 64, 1, 5280}, {160, 1, 64, 1, 7392},
	{192, 1, 64, 1, 9600}, {272, 1, 64, 1, 12672}, {288, 1, 64, 1, 14000},
	{176, 4, 128, 160, narrowFew}, {224, 4, 128, 160, narrowFew}, {112, 1, 128, 160, 5280}, {160, 1, 128, 160, 7392},
	{192, 1, 128, 160, 9600}, {272, 1, 128, 160, 12672}, {288, 1, 128, 160, 14000},
}

// wideKernel is one kernel of src/wide.cu.
type wideKernel struct {
	function             driver.Function
	rows, splits, tokens int
	leastTokens, least   int
	tiles                int // at most
}

type wideKernels struct {
	list    [len(wideShapes)]wideKernel
	squares kernels.Buffer
	few     int // rows from which they run products in a row
}

func (n *wideKernels) load(l *loader) {
	l.open("wide")
	n.few = wideFew
	for i, s := range wideShapes {
		k := &n.list[i]
		*k = wideKernel{rows: s.rows, splits: s.splits, tokens: s.tokens, leastTokens: s.leastTokens, least: s.least}
		k.function = l.kernel(fmt.Sprintf("wide_%d_%d_%d", k.rows, k.splits, k.tokens), tileShared)
		if l.err == nil {
			k.tiles, l.err = k.function.Clusters(k.threads(), tileShared, 2*k.splits)
		}
	}
	n.squares = l.scratch(wideParts * wideTokens * 4)
}

func (k *wideKernel) threads() int {
	if k.rows > wideMoves && k.tokens > 64 {
		return 2*k.tokens + 128
	}
	return 2*k.tokens + 64
}

// ring is the slots that fit beside each other and the bytes of all shared memory.
func (k *wideKernel) ring() (stages, shared int) {
	stage := (k.rows + k.tokens) * tileRow
	stages = min(wideStages, (tileShared-wideRing)/stage)
	return stages, wideRing + stages*stage
}

// outputs is those of a tile.
func (k *wideKernel) outputs(p *kernels.Linear) int {
	if p.Activates() {
		return k.rows / p.Kind.InWidth(1)
	}
	return k.rows
}

// does reports whether the kernel can do a product so that all tiles run at once.
func (k *wideKernel) does(p *kernels.Linear) bool {
	switch {
	case p.X.Rows > 2*k.tokens, ceil(p.Y.Cols, k.outputs(p)) > k.tiles, ceil(p.X.Cols, tileChunk) < k.splits:
		return false
	case k.splits > 1:
		return !p.Activates()
	}
	return !p.Add && (!p.Activates() || p.Kind != kernels.SiLUMul || k.rows >= widePairs)
}

// of chooses by the shape of a product; nil if there is none.
func (n *wideKernels) of(p *kernels.Linear) *wideKernel {
	for i := range n.list {
		if k := &n.list[i]; p.X.Rows >= k.leastTokens && own(p.W).rows >= k.least && k.does(p) {
			return k
		}
	}
	return nil
}

// wideLink is link for more rows.
func (o *ops) wideLink(p kernels.Linear) (l link, ok bool) {
	w, x := own(p.W), p.X
	if x.Rows > wideTokens || x.DType != kernels.BF16 || w.dtype != kernels.BF16 || p.Y.DType != kernels.BF16 || w.stride%16 != 0 {
		return l, false
	}
	if !p.NormW.Nil() {
		x = p.Normed
	}
	if x.Buf.Addr%16 != 0 || x.Stride%8 != 0 {
		return l, false
	}
	l = link{p: p, wide: o.linear.wide.of(&p)}
	return l, l.wide != nil
}

// wideParams is struct Wide of src/wide.cu.
type wideParams struct {
	w, x, next               driver.TensorMap
	y, z                     mat
	factors, squares         uint64
	m, n, chunks, stages     int32
	box                      int32
	act, added, even         int32
	parts                    int32
	width, eps               float32
	early                    int32
	blocks, splits, chunksOf int32
	every, brought           int32
	step, apart              int32
}

var _ [512]struct{} = [unsafe.Sizeof(wideParams{})]struct{}{} // as in C++: TensorMap is aligned to 64

// wides runs products of up to 256 rows one after another; where it can, a product leaves what the norm behind it wants.
func (o *ops) wides(list []link) {
	parts := 0 // of the product in front, if the norm between needs no launch
	for i := range list {
		l := &list[i]
		p := &l.p
		x := p.X
		if !p.NormW.Nil() {
			if x = p.Normed; parts == 0 {
				o.Norm(kernels.Norm{X: p.X, Y: p.Normed, Weight: p.NormW, Eps: p.Eps})
			}
		}
		q := l.wide.params(p, x)
		q.squares = addr(o.linear.wide.squares)
		if parts > 0 {
			q.parts, q.width, q.eps = int32(parts), float32(x.Cols), p.Eps
		}
		parts = 0
		if i+1 < len(list) {
			next := &list[i+1]
			q.bring(next)
			if l.leaves(next) {
				q.leave(&next.p)
				parts = l.parts()
			}
		}
		o.wide(l.wide, p, q)
	}
}

// parts is the blocks whose outputs are others, of those that have the same tokens.
func (l *link) parts() int { return ceil(l.p.Y.Cols, l.wide.rows) * l.wide.splits }

// leaves reports whether a product can leave what the norm of the next one wants.
func (l *link) leaves(next *link) bool {
	a, b := &l.p, &next.p
	return l.wide.splits > 1 && !b.NormW.Nil() && next.wide.splits == 1 && a.Y == b.X && l.parts() <= wideParts &&
		!overlap(b.Normed, a.X) && !overlap(b.Normed, a.Y)
}

// params describes a product over x, which is p.X or its norm.
func (k *wideKernel) params(p *kernels.Linear, x kernels.Mat) (q wideParams) {
	w, y := own(p.W), p.Y
	stages, _ := k.ring()
	q = wideParams{y: matOf(y), m: int32(x.Rows), n: int32(y.Cols), chunks: int32(ceil(w.cols, tileChunk)), stages: int32(stages),
		box: int32(ceil(x.Rows, 2)), act: -1, added: flag(p.Add), even: flag(y.Cols%8 == 0 && y.Stride%8 == 0 && y.Buf.Addr%16 == 0), early: wideEarly}
	if p.Activates() {
		q.act = int32(p.Kind)
	}
	must(q.w.Boxes(addr(w.buf), w.rows, w.cols, w.stride, k.rows/2, tileChunk))
	must(q.x.Boxes(addr(x.Buf), x.Rows, x.Cols, int64(x.Stride)*2, int(q.box), tileChunk))
	return q
}

// leave makes the product leave what the norm of the next one wants.
func (q *wideParams) leave(next *kernels.Linear) {
	q.z, q.factors = matOf(next.Normed), addr(next.NormW)
	if next.Normed.Stride%8 != 0 || next.Normed.Buf.Addr%16 != 0 || next.NormW.Addr%16 != 0 {
		q.even = 0
	}
}

// bring makes the product bring the first weights of the next one into the L2 cache.
func (q *wideParams) bring(next *link) {
	k, w := next.wide, own(next.p.W)
	q.every, q.brought, q.blocks, q.splits, q.chunksOf = wideEvery, wideBrought, int32(k.blocks(&next.p)), int32(k.splits), int32(ceil(w.cols, tileChunk))
	q.step, q.apart = int32(k.rows), int32(k.rows/2)
	if next.p.Activates() && next.p.Kind == kernels.SiLUMul {
		q.step, q.apart = int32(k.rows/2), int32(next.p.Y.Cols)
	}
	must(q.next.Boxes(addr(w.buf), w.rows, w.cols, w.stride, k.rows/2, tileChunk))
}

// blocks is those of a launch.
func (k *wideKernel) blocks(p *kernels.Linear) int {
	return ceil(p.Y.Cols, k.outputs(p)) * 2 * k.splits
}

func (o *ops) wide(k *wideKernel, p *kernels.Linear, q wideParams) {
	_, shared := k.ring()
	c := line(k.blocks(p), k.threads())
	c.Shared, c.Cluster, c.Aligned = uint32(shared), uint32(2*k.splits), true
	launch(o, k.function, c, q)
	o.waited(0)
}
