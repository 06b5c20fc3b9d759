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
	if s.Format != kernels.Dense {
		return nil, fmt.Errorf("cpu: weight %s: format %d: %w", s.Name, s.Format, kernels.ErrUnsupported)
	}
	if len(s.Parts) == 0 || s.Experts < 0 {
		return nil, fmt.Errorf("cpu: weight %s: %d parts, %d experts", s.Name, len(s.Parts), s.Experts)
	}
	w := &weight{experts: max(1, s.Experts), dtype: s.Parts[0].DType}
	if !w.dtype.Float() {
		return nil, fmt.Errorf("cpu: weight %s: dtype %s: %w", s.Name, w.dtype, kernels.ErrUnsupported)
	}
	groups, err := splitExperts(s)
	if err != nil {
		return nil, fmt.Errorf("cpu: weight %s: %w", s.Name, err)
	}
	if err := w.stack(groups); err != nil {
		return nil, fmt.Errorf("cpu: weight %s: %w", s.Name, err)
	}
	return w, nil
}

// splitExperts returns the [rows, cols] tensors by part and expert.
func splitExperts(s kernels.WeightSpec) ([][]kernels.HostTensor, error) {
	if s.Experts == 0 {
		groups := make([][]kernels.HostTensor, len(s.Parts))
		for i, t := range s.Parts {
			groups[i] = []kernels.HostTensor{t}
		}
		return groups, nil
	}
	var groups [][]kernels.HostTensor
	for left := s.Parts; len(left) > 0; {
		if len(left[0].Shape) == 3 {
			group, err := cutExperts(left[0], s.Experts)
			if err != nil {
				return nil, err
			}
			groups, left = append(groups, group), left[1:]
			continue
		}
		if len(left) < s.Experts {
			return nil, fmt.Errorf("tensor %s: %d tensors left for %d experts", left[0].Name, len(left), s.Experts)
		}
		groups, left = append(groups, left[:s.Experts]), left[s.Experts:]
	}
	return groups, nil
}

// cutExperts cuts an [experts, rows, cols] tensor.
func cutExperts(t kernels.HostTensor, experts int) ([]kernels.HostTensor, error) {
	if t.Shape[0] != experts || len(t.Data)%experts != 0 {
		return nil, fmt.Errorf("tensor %s: shape %v for %d experts", t.Name, t.Shape, experts)
	}
	group, size := make([]kernels.HostTensor, experts), len(t.Data)/experts
	for e := range group {
		group[e] = kernels.HostTensor{Name: t.Name, DType: t.DType, Shape: t.Shape[1:], Data: t.Data[e*size : (e+1)*size]}
	}
	return group, nil
}

// stack lays the groups over each other and fills in the shape.
func (w *weight) stack(groups [][]kernels.HostTensor) error {
	w.parts = make([]part, 0, w.experts*len(groups))
	for e := range w.experts {
		from := 0
		for _, group := range groups {
			t := group[e]
			if err := w.check(t, group[0]); err != nil {
				return err
			}
			w.parts = append(w.parts, part{alignTo(t.Data, w.dtype.Size()), from, t.Shape[0]})
			from += t.Shape[0]
		}
		w.rows = from
	}
	return nil
}

func (w *weight) check(t, first kernels.HostTensor) error {
	switch {
	case t.DType != w.dtype:
		return fmt.Errorf("tensor %s is %s, others %s", t.Name, t.DType, w.dtype)
	case len(t.Shape) != 2 || t.Shape[0] <= 0 || t.Shape[1] <= 0:
		return fmt.Errorf("tensor %s: shape %v is not [rows, cols]", t.Name, t.Shape)
	case w.cols != 0 && t.Shape[1] != w.cols:
		return fmt.Errorf("tensor %s: %d columns, others %d", t.Name, t.Shape[1], w.cols)
	case t.Shape[0] != first.Shape[0]:
		return fmt.Errorf("tensor %s: %d rows, expert 0 %d", t.Name, t.Shape[0], first.Shape[0])
	case len(t.Data) != t.Elements()*w.dtype.Size():
		return fmt.Errorf("tensor %s: %d bytes for shape %v of %s", t.Name, len(t.Data), t.Shape, t.DType)
	}
	w.cols = t.Shape[1]
	return nil
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
