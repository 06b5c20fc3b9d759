//go:build cuda

package cuda

import (
	"fmt"
	"unsafe"

	"reprise/kernels"
	"reprise/kernels/cuda/driver"
)

// What src/narrow.cu shares.
const (
	narrowThreads = 288
	narrowChunk   = 64  // columns of a box
	narrowBox     = 64  // tokens of a box
	narrowTokens  = 128 // of a tile
	narrowRow     = 128 // bytes of a row of a box
	narrowFront   = 1 << 10
	narrowStages  = 8         // at most
	narrowMost    = 227 << 10 // bytes of shared memory

	// narrowLeast is the fewest rows with which these kernels were measured, and were faster than cuBLASLt in all shapes but
	// one: a box of tokens that hardly has any takes longer than a full one. narrowFew is the fewest outputs.
	narrowLeast = 96
	narrowFew   = 1024
	// narrowWhole is the fewest outputs a multiprocessor of blocks that have all columns, for the same reason.
	narrowWhole = 80
)

// narrowShapes are the kernels of src/narrow.cu: rows of a weight that a tile has, and blocks that share its columns.
var narrowShapes = [...][2]int{{88, 4}, {112, 4}, {96, 1}, {144, 1}}

// narrowKernel is one kernel of src/narrow.cu.
type narrowKernel struct {
	function             driver.Function
	rows, splits, stages int
	least, most          int // outputs
}

func (k *narrowKernel) stage() int  { return (k.rows + narrowTokens) * narrowRow }
func (k *narrowKernel) shared() int { return narrowFront + k.stages*k.stage() }

type narrowKernels [len(narrowShapes)]narrowKernel

func (n *narrowKernels) load(l *loader) {
	l.open("narrow")
	for i, s := range narrowShapes {
		k := &n[i]
		k.rows, k.splits = s[0], s[1]
		k.stages = min(narrowStages, (narrowMost-narrowFront)/k.stage())
		k.function = l.kernel(fmt.Sprintf("narrow_%d_%d", k.rows, k.splits), k.shared())
		tiles := l.dev.gpu.Processors
		if k.splits == 1 {
			k.least = narrowWhole * tiles
		} else if l.err == nil {
			tiles, l.err = k.function.Clusters(narrowThreads, k.shared(), k.splits)
		}
		k.most = tiles * k.rows
	}
}

// of chooses by the rows of a weight, so that all tiles run at once; nil if there is none.
func (n *narrowKernels) of(rows int) *narrowKernel {
	for i := range n {
		if k := &n[i]; rows >= k.least && rows <= k.most {
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
	_                                    [24]byte
}

var _ [320]struct{} = [unsafe.Sizeof(narrowParams{})]struct{}{} // as in C++: TensorMap is aligned to 64

// narrow runs a product of 96 to 128 rows if a kernel of src/narrow.cu can do it.
func (o *ops) narrow(x, y kernels.Mat, w *weight, add bool) bool {
	if x.Rows < narrowLeast || x.Rows > narrowTokens || y.DType != kernels.BF16 || x.Buf.Addr%16 != 0 || x.Stride%8 != 0 {
		return false
	}
	k, chunks := o.linear.narrow.of(w.rows), ceil(w.cols, narrowChunk)
	if k == nil || chunks < k.splits || w.stride%16 != 0 {
		return false
	}
	p := narrowParams{y: matOf(y), m: int32(x.Rows), n: int32(w.rows), chunks: int32(chunks), stages: int32(k.stages), added: flag(add)}
	p.vectors = flag(y.Stride%4 == 0 && y.Buf.Addr%8 == 0)
	must(p.w.Boxes(addr(w.buf), w.rows, w.cols, w.stride, k.rows, narrowChunk))
	must(p.x.Boxes(addr(x.Buf), x.Rows, x.Cols, int64(x.Stride)*2, narrowBox, narrowChunk))
	c := line(ceil(w.rows, k.rows)*k.splits, narrowThreads)
	c.Shared, c.Cluster, c.Aligned = uint32(k.shared()), uint32(k.splits), true
	launch(o, k.function, c, p)
	o.waited(0)
	return true
}
