//go:build cuda

package cuda

import (
	"fmt"
	"unsafe"

	"reprise/kernels"
	"reprise/kernels/cuda/driver"
)

// What src/tiles.cuh shares.
const (
	tileChunk = 64  // columns of a box
	tileRow   = 128 // bytes of a row of a box

	// tileShared is the bytes of shared memory of a block that has a multiprocessor for itself: two of a launch on one would
	// leave another idle.
	tileShared = 227 << 10
)

// What src/narrow.cu shares.
const (
	narrowTokens = 128 // at most
	narrowFront  = 1 << 10
	narrowStages = 16 // at most

	// narrowFew is the fewest outputs with which these kernels were measured.
	narrowFew = 1024
)

// narrowShapes are the kernels of src/narrow.cu: rows of a weight that a tile has, blocks that share its columns, the most
// tokens, and the fewest tokens and outputs with which it was measured, and was faster than cuBLASLt.
var narrowShapes = [...]struct{ rows, splits, tokens, leastTokens, least int }{
	{88, 4, 64, 17, 0}, {112, 4, 64, 17, 0}, {80, 1, 64, 17, 8448}, {96, 1, 64, 17, 8448}, {144, 1, 64, 17, 8448},
	{88, 4, 128, 65, 0}, {112, 4, 128, 65, 0}, {96, 1, 128, 65, 10560}, {144, 1, 128, 65, 10560},
}

// narrowKernel is one kernel of src/narrow.cu.
type narrowKernel struct {
	function                          driver.Function
	rows, splits, tokens, leastTokens int
	least, most                       int // outputs
}

type narrowKernels [len(narrowShapes)]narrowKernel

func (n *narrowKernels) load(l *loader) {
	l.open("narrow")
	for i, s := range narrowShapes {
		k := &n[i]
		*k = narrowKernel{rows: s.rows, splits: s.splits, tokens: s.tokens, leastTokens: s.leastTokens, least: s.least}
		k.function = l.kernel(fmt.Sprintf("narrow_%d_%d_%d", k.rows, k.splits, k.tokens), tileShared)
		tiles := l.dev.gpu.Processors
		if k.splits > 1 && l.err == nil {
			tiles, l.err = k.function.Clusters(k.threads(), tileShared, k.splits)
		}
		k.most = tiles * k.rows
	}
}

func (k *narrowKernel) threads() int { return 2*k.tokens + 32 }

// ring is the slots that fit beside each other for so many tokens, the bytes of one and of all shared memory. A warpgroup
// reads 64 tokens of a slot, those of the last one too; in the end sums take the place of the ring.
func (k *narrowKernel) ring(tokens int) (stages, stage, shared int) {
	tokens = ceil(tokens, 8) * 8
	behind := narrowFront + (k.tokens-tokens)*tileRow
	stage = (k.rows + tokens) * tileRow
	stages = min(narrowStages, (tileShared-behind)/stage)
	return stages, stage, max(behind+stages*stage, narrowFront+k.tokens*(k.rows+8)*4)
}

// of chooses by the rows of a weight and the number of tokens, so that all tiles run at once; nil if there is none.
func (n *narrowKernels) of(rows, tokens int) *narrowKernel {
	for i := range n {
		if k := &n[i]; tokens >= k.leastTokens && tokens <= k.tokens && rows >= k.least && rows <= k.most {
			return k
		}
	}
	return nil
}

// narrowParams is struct Narrow of src/narrow.cu.
type narrowParams struct {
	w, x                                 driver.TensorMap
	y                                    mat
	m, n, chunks, stages, added, vectors int32
	stage                                int32
	_                                    [20]byte
}

var _ [320]struct{} = [unsafe.Sizeof(narrowParams{})]struct{}{} // as in C++: TensorMap is aligned to 64

// narrow runs a product of 17 to 128 rows if a kernel of src/narrow.cu can do it.
func (o *ops) narrow(x, y kernels.Mat, w *weight, add bool) bool {
	k, chunks := o.linear.narrow.of(w.rows, x.Rows), ceil(w.cols, tileChunk)
	if k == nil || chunks < k.splits || w.stride%16 != 0 || y.DType != kernels.BF16 || x.Buf.Addr%16 != 0 || x.Stride%8 != 0 {
		return false
	}
	stages, stage, shared := k.ring(x.Rows)
	p := narrowParams{y: matOf(y), m: int32(x.Rows), n: int32(w.rows), chunks: int32(chunks), stages: int32(stages), stage: int32(stage), added: flag(add)}
	p.vectors = flag(y.Stride%4 == 0 && y.Buf.Addr%8 == 0)
	must(p.w.Boxes(addr(w.buf), w.rows, w.cols, w.stride, k.rows, tileChunk))
	must(p.x.Boxes(addr(x.Buf), x.Rows, x.Cols, int64(x.Stride)*2, x.Rows, tileChunk))
	c := line(ceil(w.rows, k.rows)*k.splits, k.threads())
	c.Shared, c.Cluster, c.Aligned = uint32(shared), uint32(k.splits), true
	launch(o, k.function, c, p)
	o.waited(0)
	return true
}
