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
	wideTiles  = 40  // of a product in front of a norm, at most
)

// wideShapes are the kernels of src/wide.cu: rows of a weight that a tile has, pairs of blocks that share its columns, tokens
// of a block, and the fewest tokens and rows of a weight with which it was measured, and a layer's products were faster.
var wideShapes = [...]struct{ rows, splits, tokens, leastTokens, least int }{
	{176, 4, 64, 112, narrowFew}, {224, 4, 64, 112, narrowFew}, {112, 1, 64, 112, 5280}, {160, 1, 64, 112, 7392},
	{192, 1, 64, 112, 9600}, {272, 1, 64, 112, 12672}, {288, 1, 64, 112, 14000},
	{176, 4, 128, 192, narrowFew}, {224, 4, 128, 192, narrowFew}, {112, 1, 128, 192, 5280}, {160, 1, 128, 192, 7392},
	{192, 1, 128, 192, 9600}, {272, 1, 128, 192, 12672}, {288, 1, 128, 192, 14000},
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
}

func (n *wideKernels) load(l *loader) {
	l.open("wide")
	for i, s := range wideShapes {
		k := &n.list[i]
		*k = wideKernel{rows: s.rows, splits: s.splits, tokens: s.tokens, leastTokens: s.leastTokens, least: s.least}
		k.function = l.kernel(fmt.Sprintf("wide_%d_%d_%d", k.rows, k.splits, k.tokens), tileShared)
		if l.err == nil {
			k.tiles, l.err = k.function.Clusters(k.threads(), tileShared, 2*k.splits)
		}
	}
	n.squares = l.scratch(wideTiles * wideTokens * 4)
}

func (k *wideKernel) threads() int {
	if k.rows > wideMoves && k.tokens > 64 {
		return 2*k.tokens + 128
	}
	return 2*k.tokens + 32
}

// ring is the slots that fit beside each other and the bytes of all shared memory; in the end results take the place of the
// ring: sums, those of other blocks, and their squares.
func (k *wideKernel) ring() (stages, shared int) {
	stage := (k.rows + k.tokens) * tileRow
	stages = min(wideStages, (tileShared-wideRing)/stage)
	mine := k.tokens / k.splits
	results := (2*k.splits-1)*mine*(k.rows+8)*4 + mine*(k.rows/4+1)*4
	return stages, wideRing + max(stages*stage, results)
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
	w, x                 driver.TensorMap
	y, z                 mat
	factors, squares     uint64
	m, n, chunks, stages int32
	act, added, even     int32
	tiles                int32
	width, eps           float32
	_                    [40]byte
}

var _ [384]struct{} = [unsafe.Sizeof(wideParams{})]struct{}{} // as in C++: TensorMap is aligned to 64

// wides runs products of up to 256 rows one after another; where it can, a product leaves what the norm behind it wants.
func (o *ops) wides(list []link) {
	tiles := 0 // of the product in front, if the norm between needs no launch
	for i := range list {
		l := &list[i]
		p := &l.p
		x := p.X
		if !p.NormW.Nil() {
			if x = p.Normed; tiles == 0 {
				o.Norm(kernels.Norm{X: p.X, Y: p.Normed, Weight: p.NormW, Eps: p.Eps})
			}
		}
		var next *kernels.Linear
		if i+1 < len(list) && l.leaves(&list[i+1]) {
			next = &list[i+1].p
		}
		o.wide(l.wide, p, x, next, tiles)
		tiles = 0
		if next != nil {
			tiles = ceil(p.Y.Cols, l.wide.rows)
		}
	}
}

// leaves reports whether a product can leave what the norm of the next one wants.
func (l *link) leaves(next *link) bool {
	a, b := &l.p, &next.p
	return l.wide.splits > 1 && !b.NormW.Nil() && next.wide.splits == 1 && a.Y == b.X && ceil(a.Y.Cols, l.wide.rows) <= wideTiles &&
		!overlap(b.Normed, a.X) && !overlap(b.Normed, a.Y)
}

// wide runs a product over x, which is p.X or its norm without the scales, of a product in front with so many tiles.
func (o *ops) wide(k *wideKernel, p *kernels.Linear, x kernels.Mat, next *kernels.Linear, tiles int) {
	w, y := own(p.W), p.Y
	stages, shared := k.ring()
	q := wideParams{y: matOf(y), squares: addr(o.linear.wide.squares), m: int32(x.Rows), n: int32(y.Cols), chunks: int32(ceil(w.cols, tileChunk)),
		stages: int32(stages), act: -1, added: flag(p.Add), even: flag(y.Stride%8 == 0 && y.Buf.Addr%16 == 0)}
	if p.Activates() {
		q.act = int32(p.Kind)
	}
	if tiles > 0 {
		q.tiles, q.width, q.eps = int32(tiles), float32(x.Cols), p.Eps
	}
	if next != nil {
		q.z, q.factors = matOf(next.Normed), addr(next.NormW)
		if next.Normed.Stride%8 != 0 || next.NormW.Addr%16 != 0 {
			q.even = 0
		}
	}
	must(q.w.Boxes(addr(w.buf), w.rows, w.cols, w.stride, k.rows/2, tileChunk))
	must(q.x.Boxes(addr(x.Buf), x.Rows, x.Cols, int64(x.Stride)*2, k.tokens, tileChunk))
	c := line(ceil(y.Cols, k.outputs(p))*2*k.splits, k.threads())
	c.Shared, c.Cluster, c.Aligned = uint32(shared), uint32(2*k.splits), true
	launch(o, k.function, c, q)
	o.waited(0)
}
