package kerneltest

import "reprise/kernels"

// matrix is rows x cols activations inside an array; with bench.wide it is a view of a wider matrix.
type matrix struct {
	*array
	dtype              kernels.DType
	rows, cols, stride int
	lead               int // columns of the wider matrix before the view
}

// Columns that a wide matrix has around the view.
const (
	wideLead = 3
	wideTail = 6
)

func (b *bench) matrix(name string, rows, cols int, v []float32) matrix {
	b.Helper()
	m := matrix{dtype: b.devices[device].Activations(), rows: rows, cols: cols, stride: cols}
	if b.wide {
		m.lead, m.stride = wideLead, wideLead+cols+wideTail
	}
	all := nans(rows * m.stride)
	for i := range rows {
		copy(all[i*m.stride+m.lead:], v[i*cols:(i+1)*cols])
	}
	m.array = b.array(name, encode(m.dtype, all))
	return m
}

// input is a matrix of normal numbers that must not change.
func (b *bench) input(name string, rows, cols int) matrix {
	b.Helper()
	return b.matrix(name, rows, cols, b.normal(rows*cols, 0, 1))
}

// output is a poisoned matrix of which rows [from, from+n) may be written.
func (b *bench) output(name string, rows, cols, from, n int) matrix {
	b.Helper()
	m := b.matrix(name, rows, cols, nans(rows*cols))
	m.allowRows(from, n)
	return m
}

// inout is an input that may change.
func (b *bench) inout(name string, rows, cols int) matrix {
	b.Helper()
	m := b.input(name, rows, cols)
	m.allowRows(0, rows)
	return m
}

// place is the byte range of row i.
func (m matrix) place(i int) span {
	size := m.dtype.Size()
	from := (i*m.stride + m.lead) * size
	return span{from, from + m.cols*size}
}

func (m matrix) allowRows(from, n int) {
	for i := from; i < from+n; i++ {
		m.mutable = append(m.mutable, m.place(i))
	}
}

// on is the matrix on one side.
func (m matrix) on(s side) kernels.Mat {
	mat := kernels.Mat{Rows: m.rows, Cols: m.cols, Stride: m.stride, DType: m.dtype}
	if m.rows > 0 {
		mat.Buf = m.buf[s].Slice(int64(m.place(0).from), int64(m.place(m.rows-1).to-m.place(0).from))
	}
	return mat
}

// row is row i as a side left it.
func (m matrix) row(s side, i int) []float64 {
	p := m.place(i)
	return decode(m.dtype, m.after[s][p.from:p.to])
}

// part is rows [from, from+n) for a comparison.
func (m matrix) part(from, n int) []piece {
	var list []piece
	for i := from; i < from+n; i++ {
		list = append(list, piece{m.array, m.place(i), m.dtype})
	}
	return list
}

func (m matrix) all() []piece { return m.part(0, m.rows) }
