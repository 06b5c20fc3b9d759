//go:build cuda

package cuda

import (
	"reprise/kernels"
	"reprise/kernels/cuda/driver"
)

// denseKernels are those of src/dense.cu.
type denseKernels struct {
	scatter, embed, norm, addGated driver.Function
	activate, activateMany         driver.Function
	gather                         [3]driver.Function // by units of 16, 4 and 2 bytes
}

func (k *denseKernels) load(l *loader) error {
	l.open("dense")
	k.scatter, k.embed, k.norm = l.kernel("scatter", 0), l.active("embed", 0), l.active("norm", 0)
	k.activate, k.activateMany, k.addGated = l.active("activate", 0), l.kernel("activate_many", 0), l.active("add_gated", 0)
	k.gather = [3]driver.Function{l.kernel("gather_16", 0), l.kernel("gather_4", 0), l.kernel("gather_2", 0)}
	return nil
}

// Scatter writes single numbers.
func (o *ops) Scatter(p kernels.Scatter) {
	o.enter("Scatter")
	must(p.Validate())
	type params struct {
		dst, index, value uint64
		count, size       int32
	}
	launch(o, o.dense.scatter, line(ceil(p.Count, 256), 256), params{addr(p.Dst), addr(p.Index), addr(p.Value), int32(p.Count), int32(p.Dst.Size / 4)})
}

// Embed looks rows up.
func (o *ops) Embed(p kernels.Embed) {
	o.enter("Embed")
	must(p.Validate())
	o.is(p.Out, "Out")
	w := own(p.Table)
	type params struct {
		table, ids, trouble uint64
		bytes               int64
		out                 mat
		dtype, rows, cols   int32
		copies              int32
	}
	copies := int32(0)
	if w.dtype == kernels.BF16 && p.Out.DType == kernels.BF16 {
		copies = wide(p.Out.Cols, p.Out) // rows of the table are aligned to 128 bytes
	}
	launch(o, o.dense.embed, line(p.Out.Rows, 256), params{
		table: addr(w.buf), ids: addr(p.IDs), trouble: o.dev.memory.trouble.addr(), bytes: w.stride, out: matOf(p.Out),
		dtype: int32(w.dtype), rows: int32(w.rows), cols: int32(w.cols), copies: copies})
}

// wide is 1 if eight columns at a time of all the matrices can be read at addresses of 16 bytes.
func wide(cols int, list ...kernels.Mat) int32 {
	if cols%8 != 0 {
		return 0
	}
	for _, m := range list {
		if m.Buf.Addr%16 != 0 || m.Stride*m.DType.Size()%16 != 0 {
			return 0
		}
	}
	return 1
}

// normThreads is the most threads of a block of the norm kernel: NORM_THREADS of src/dense.cu.
const normThreads = 512

// Norm adds into the residual and normalises.
func (o *ops) Norm(p kernels.Norm) {
	o.enter("Norm")
	must(p.Validate())
	o.is(p.X, "X")
	o.is(p.Y, "Y")
	type params struct {
		x, add, y mat
		weight    uint64
		eps       float32
		cols      int32
		wide      int32
		_         int32
	}
	k := params{x: matOf(p.X), y: matOf(p.Y), weight: addr(p.Weight), eps: p.Eps, cols: int32(p.X.Cols)}
	k.wide = wide(p.X.Cols, p.X, p.Y)
	if !p.Add.Nil() {
		o.is(p.Add, "Add")
		k.add, k.wide = matOf(p.Add), wide(p.X.Cols, p.X, p.Y, p.Add)
	}
	if p.Weight.Addr%16 != 0 {
		k.wide = 0
	}
	threads := normThreads
	if k.wide == 1 {
		threads = min(threads, (ceil(p.X.Cols, 8)+31)&^31)
	}
	launch(o, o.dense.norm, line(p.X.Rows, threads), k)
}

// pieceCols is the columns that a block of an elementwise kernel does, activateRows the rows where there are manyRows.
const pieceCols, activateRows, manyRows = 2048, 4, 1024

// Activate applies an MLP's nonlinearity.
func (o *ops) Activate(p kernels.Activate) {
	o.enter("Activate")
	must(p.Validate())
	o.is(p.X, "X")
	o.is(p.Y, "Y")
	type params struct {
		x, y                   mat
		cols, kind, wide, rows int32
	}
	f, each, aligned := o.dense.activate, 1, wide(p.Y.Cols, p.X, p.Y)
	if aligned == 1 && p.Y.Rows >= manyRows && o.dev.act == kernels.BF16 {
		f, each = o.dense.activateMany, activateRows
	}
	parts(p.Y.Rows, gridRows*each, func(from, n int) {
		x, y := matOf(p.X.RowRange(from, n)), matOf(p.Y.RowRange(from, n))
		launch(o, f, grid(ceil(p.Y.Cols, pieceCols), ceil(n, each), 1, 256), params{x, y, int32(p.Y.Cols), int32(p.Kind), aligned, int32(n)})
	})
}

// AddGated adds gated rows.
func (o *ops) AddGated(p kernels.AddGated) {
	o.enter("AddGated")
	must(p.Validate())
	o.is(p.X, "X")
	o.is(p.Y, "Y")
	type params struct {
		gate, x, y             mat
		cols, wide, gateF32, _ int32
	}
	k := params{cols: int32(p.Y.Cols), wide: wide(p.Y.Cols, p.X, p.Y), gateF32: flag(p.Gate.DType == kernels.F32)}
	if !p.Gate.Nil() && k.gateF32 == 0 {
		o.is(p.Gate, "Gate")
	}
	parts(p.Y.Rows, gridRows, func(from, n int) {
		k.x, k.y = matOf(p.X.RowRange(from, n)), matOf(p.Y.RowRange(from, n))
		if !p.Gate.Nil() {
			k.gate = matOf(p.Gate.RowRange(from, n))
		}
		launch(o, o.dense.addGated, grid(ceil(p.Y.Cols, pieceCols), n, 1, 256), k)
	})
}

// GatherRows copies chosen rows.
func (o *ops) GatherRows(p kernels.GatherRows) {
	o.enter("GatherRows")
	must(p.Validate())
	type params struct {
		x, y  mat
		index uint64
		units int32
		_     int32
	}
	size := p.Y.DType.Size()
	for i, unit := range [...]int{16, 4, 2} {
		if p.Y.Cols*size%unit == 0 && p.X.Stride*size%unit == 0 && p.Y.Stride*size%unit == 0 && (p.X.Buf.Addr|p.Y.Buf.Addr)%uintptr(unit) == 0 {
			x, y := mat{addr(p.X.Buf), int64(p.X.Stride * size / unit)}, mat{addr(p.Y.Buf), int64(p.Y.Stride * size / unit)}
			launch(o, o.dense.gather[i], line(p.Y.Rows, 256), params{x: x, y: y, index: addr(p.Index), units: int32(p.Y.Cols * size / unit)})
			return
		}
	}
	panic("cuda: rows of " + p.Y.DType.String() + ", or not aligned to their elements")
}
