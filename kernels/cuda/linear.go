//go:build cuda

package cuda

import (
	"fmt"

	"reprise/kernels"
	"reprise/kernels/cuda/driver"
)

// skinnyRows is the most rows that the weight-streaming kernels take at once.
const skinnyRows = 64

// streamedRows is the most rows that they are faster with than cuBLASLt.
const streamedRows = 16

// Products of more rows, if they do not run with others (chain.go) or by wide tiles (wide.go), go to narrow tiles or to cuBLASLt.
const (
	ltWorkspace = 64 << 20
	ltPlans     = 4096 // kept at most
)

// skinnyKernel is one kernel of src/linear.cu.
type skinnyKernel struct {
	function                 driver.Function
	tokens, rows, warps, sum int // sum: bytes of shared memory
}

// linearKernels are those of src/linear.cu, and cuBLASLt where it exists.
type linearKernels struct {
	streams [2]streamKernels // by tokens: 8, 16
	skinny  [2]skinnyKernel  // by tokens: 32, 64
	plain   driver.Function
	narrow  narrowKernels
	wide    wideKernels
	chain   chainKernels

	lt        *driver.Lt
	plans     map[driver.Shape]driver.Plan
	workspace kernels.Buffer
}

func (k *linearKernels) load(l *loader) error {
	l.open("linear")
	k.skinny = [2]skinnyKernel{{tokens: 32, rows: 32, warps: 8}, {tokens: 64, rows: 64, warps: 4}}
	for i := range k.skinny {
		s := &k.skinny[i]
		s.sum = s.warps * s.tokens * (s.rows + 4) * 4
		s.function = l.kernel(fmt.Sprintf("skinny_%d", s.tokens), s.sum)
	}
	k.plain = l.kernel("plain", 0)
	l.open("stream")
	k.streams = [2]streamKernels{l.streams(8, 6), l.streams(16, 4)}
	k.narrow.load(l)
	k.wide.load(l)
	k.chain.load(l)
	if l.dev.act != kernels.BF16 || l.dev.ownProducts {
		return nil
	}
	if k.lt = driver.OpenLt(); k.lt != nil {
		k.plans, k.workspace = map[driver.Shape]driver.Plan{}, l.scratch(ltWorkspace)
	}
	return nil
}

func (k *linearKernels) close() error {
	if k.lt != nil {
		k.forget()
		k.lt.Close()
	}
	return nil
}

func (k *linearKernels) forget() {
	for shape, p := range k.plans {
		k.lt.Forget(p)
		delete(k.plans, shape)
	}
}

// linearParams is struct Linear of src/linear.cu.
type linearParams struct {
	x, y                              mat
	w                                 uint64
	bytes                             int64
	m, n, k                           int32
	wtype, xtype, ytype, add, aligned int32
	norm                              uint64
	eps                               float32
	act                               int32 // kernels.Activation, or -1
	rowsEach, pass                    int32 // of streams: outputs a cluster, and at once
}

// Linear multiplies by a weight.
func (o *ops) Linear(p kernels.Linear) {
	o.enter("Linear")
	must(p.Validate())
	o.is(p.X, "X")
	if p.Y.DType != kernels.F32 && p.Y.DType != kernels.BF16 {
		panic(fmt.Sprintf("cuda: Y holds %s", p.Y.DType))
	}
	if !o.chain(p) {
		o.flush()
		o.single(p)
	}
}

// single runs a product by itself.
func (o *ops) single(p kernels.Linear) {
	switch {
	case p.Whole():
		o.product(p.X, p.Y, own(p.W), p.Add)
	case !o.normedProduct(p):
		p.Apart(straight{o})
	}
}

// straight are operations whose products do not wait.
type straight struct{ *ops }

func (s straight) Linear(p kernels.Linear) { s.single(p) }

// normedCols is the widest X that the skinny kernels normalise: its factors lie in shared memory.
const normedCols = 6144

// normedProduct runs norm, product and activation in one launch if there are few rows.
func (o *ops) normedProduct(p kernels.Linear) bool {
	w := own(p.W)
	x, y := p.X, p.Y
	switch {
	case p.NormW.Nil(), x.Rows == 0, x.Rows > streamedRows, x.Cols > normedCols:
		return false
	case x.DType != kernels.BF16, w.dtype != kernels.BF16, y.DType != kernels.BF16, x.Buf.Addr%16 != 0, x.Stride%8 != 0:
		return false
	}
	k := linearParams{x: matOf(x), y: matOf(y), w: addr(w.buf), bytes: w.stride, m: int32(x.Rows), n: int32(y.Cols), k: int32(w.cols),
		wtype: int32(w.dtype), xtype: int32(x.DType), ytype: int32(y.DType), add: flag(p.Add), aligned: 1, norm: addr(p.NormW), eps: p.Eps, act: -1}
	if p.Activates() {
		k.act = int32(p.Kind)
	}
	o.stream(k)
	return true
}

// product chooses a kernel by types and rows.
func (o *ops) product(x, y kernels.Mat, w *weight, add bool) {
	k := linearParams{x: matOf(x), y: matOf(y), w: addr(w.buf), bytes: w.stride, m: int32(x.Rows), n: int32(w.rows), k: int32(w.cols),
		wtype: int32(w.dtype), xtype: int32(x.DType), ytype: int32(y.DType), add: flag(add), act: -1}
	if x.Buf.Addr%16 == 0 && x.Stride*x.DType.Size()%16 == 0 {
		k.aligned = 1
	}
	switch {
	case x.Rows == 0:
	case x.DType != kernels.BF16 || w.dtype != kernels.BF16:
		launch(o, o.linear.plain, grid(ceil(w.rows, 64), ceil(x.Rows, 32), 1, 256), k)
	case x.Rows <= streamedRows && k.aligned == 1:
		o.stream(k)
	case w.rows >= narrowFew && o.narrow(x, y, w, add):
	case k.aligned == 1 && o.library(x, y, w, add):
	default:
		o.skinny(k, x.DType.Size(), y.DType.Size())
	}
}

// skinny runs the skinny kernels over up to 64 rows at a time.
func (o *ops) skinny(k linearParams, xSize, ySize int) {
	for left := int(k.m); left > 0; left -= skinnyRows {
		k.m = int32(min(left, skinnyRows))
		s := &o.linear.skinny[0]
		if int(k.m) > s.tokens {
			s = &o.linear.skinny[1]
		}
		blocks := 16 / s.warps
		c := line(ceil(int(k.n), s.rows)*blocks, s.warps*32)
		c.Shared, c.Cluster = uint32(s.sum), uint32(blocks)
		launch(o, s.function, c, k)
		k.x.addr += uint64(skinnyRows * int(k.x.stride) * xSize)
		k.y.addr += uint64(skinnyRows * int(k.y.stride) * ySize)
		o.waited(0)
	}
}

// alignment is the largest power of two up to 256 that divides all of list.
func alignment(list ...int) int {
	n := 256
	for _, v := range list {
		for v%n != 0 {
			n /= 2
		}
	}
	return n
}

// library runs the product by cuBLASLt if that can do it.
func (o *ops) library(x, y kernels.Mat, w *weight, add bool) bool {
	k := &o.linear
	if k.lt == nil {
		return false
	}
	shape := driver.Shape{M: x.Rows, N: w.rows, K: w.cols, StrideW: int(w.stride) / 2, StrideX: x.Stride, StrideY: y.Stride, WideY: y.DType == kernels.F32,
		AlignX: alignment(int(x.Buf.Addr), x.Stride*2), AlignY: alignment(int(y.Buf.Addr), y.Stride*y.DType.Size())}
	plan, ok := k.plans[shape]
	if !ok {
		var err error
		if plan, err = k.lt.Plan(shape, ltWorkspace); err != nil {
			return false
		}
		if len(k.plans) >= ltPlans {
			k.forget()
		}
		k.plans[shape] = plan
	}
	must(k.lt.Run(plan, o.dev.stream, addr(w.buf), addr(x.Buf), addr(y.Buf), add, k.workspace.Addr, ltWorkspace))
	o.foreign()
	return true
}
