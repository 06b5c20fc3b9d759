package cpu

import (
	"fmt"
	"unsafe"

	"reprise/kernels"
)

// weight is one matrix, or experts matrices of equal shape, as the checkpoint stores them.
type weight struct {
	experts, rows, cols int
	dtype               kernels.DType
	parts               []part // of expert 0, of expert 1, ...; equally many each
}

// part is consecutive rows of a matrix.
type part struct {
	data []byte // [rows, cols] elements, aligned to an element
	from int    // first row in the matrix
	rows int
}

func (w *weight) Shape() (experts, rows, cols int) { return w.experts, w.rows, w.cols }
func (w *weight) DType() kernels.DType             { return w.dtype }

// Bytes is the size of the stored elements, which stay where the checkpoint has them.
func (w *weight) Bytes() int64 {
	return int64(w.experts) * int64(w.rows) * int64(w.cols) * int64(w.dtype.Size())
}

// Top cuts the parts off behind so many rows.
func (w *weight) Top(rows int) kernels.Weight {
	if w.experts != 1 || rows < 1 || rows > w.rows {
		fail("the first %d rows of a weight of %d x %d", rows, w.experts, w.rows)
	}
	top := &weight{experts: 1, rows: rows, cols: w.cols, dtype: w.dtype}
	for _, p := range w.parts {
		if p.rows = min(p.rows, rows-p.from); p.rows > 0 {
			p.data = p.data[:p.rows*w.cols*w.dtype.Size()]
			top.parts = append(top.parts, p)
		}
	}
	return top
}

// matrix is the parts of expert e.
func (w *weight) matrix(e int) []part {
	n := len(w.parts) / w.experts
	return w.parts[e*n : (e+1)*n]
}

// row is the stored bytes of row r of an ordinary weight.
func (w *weight) row(r int) []byte {
	size := w.cols * w.dtype.Size()
	for _, p := range w.parts {
		if r < p.from+p.rows {
			at := (r - p.from) * size
			return p.data[at : at+size]
		}
	}
	panic(fmt.Sprintf("cpu: row %d of a weight of %d rows", r, w.rows))
}

// Pack keeps references to the tensors' memory; a tensor that is not aligned to its elements is copied.
func (d *Device) Pack(s kernels.WeightSpec) (kernels.Weight, error) {
	m, err := s.Matrices()
	if err != nil {
		return nil, fmt.Errorf("cpu: weight %s: %w", s.Name, err)
	}
	w := &weight{experts: m.Experts, rows: m.Rows, cols: m.Cols, dtype: m.DType}
	w.parts = make([]part, 0, m.Experts*len(m.Parts))
	for e := range m.Experts {
		from := 0
		for _, group := range m.Parts {
			t := group[e]
			w.parts = append(w.parts, part{alignTo(t.Data, w.dtype.Size()), from, t.Shape[0]})
			from += t.Shape[0]
		}
	}
	return w, nil
}

// alignTo is data, or a copy of it whose address is a multiple of size.
func alignTo(data []byte, size int) []byte {
	if uintptr(unsafe.Pointer(unsafe.SliceData(data)))%uintptr(size) == 0 {
		return data
	}
	moved := alignedBytes(int64(len(data)))
	copy(moved, data)
	return moved
}
