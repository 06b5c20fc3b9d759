package ref

import (
	"fmt"

	"reprise/kernels"
)

// weight keeps every matrix as float64 rows.
type weight struct {
	dtype      kernels.DType
	rows, cols int
	bytes      int64
	experts    [][][]float64 // [expert][row][col]
}

func (w *weight) Shape() (experts, rows, cols int) { return len(w.experts), w.rows, w.cols }
func (w *weight) DType() kernels.DType             { return w.dtype }
func (w *weight) Bytes() int64                     { return w.bytes }

// Top keeps the first rows of the only matrix.
func (w *weight) Top(rows int) kernels.Weight {
	return &weight{dtype: w.dtype, rows: rows, cols: w.cols, bytes: w.bytes / int64(w.rows) * int64(rows), experts: [][][]float64{w.experts[0][:rows]}}
}

// Pack widens a weight.
func (d *Device) Pack(s kernels.WeightSpec) (kernels.Weight, error) {
	w, err := pack(s)
	if err != nil {
		return nil, fmt.Errorf("ref: pack %s: %w", s.Name, err)
	}
	return w, nil
}

func pack(s kernels.WeightSpec) (*weight, error) {
	if s.Format != kernels.Dense {
		return nil, fmt.Errorf("format %d: %w", s.Format, kernels.ErrUnsupported)
	}
	if len(s.Parts) == 0 {
		return nil, fmt.Errorf("no parts")
	}
	first := s.Parts[0]
	w := &weight{dtype: first.DType, experts: make([][][]float64, max(s.Experts, 1))}
	if len(first.Shape) > 0 {
		w.cols = first.Shape[len(first.Shape)-1]
	}
	for i := 0; i < len(s.Parts); {
		n, err := w.part(s.Parts[i:], s.Experts)
		if err != nil {
			return nil, err
		}
		i += n
	}
	w.rows = len(w.experts[0])
	return w, nil
}

// part appends the first part of a list to every expert and returns how many tensors it was.
func (w *weight) part(list []kernels.HostTensor, experts int) (int, error) {
	t := list[0]
	if experts > 0 && len(t.Shape) == 2 {
		if len(list) < experts {
			return 0, fmt.Errorf("%s: %d tensors for %d experts", t.Name, len(list), experts)
		}
		for e, x := range list[:experts] {
			if len(x.Shape) != 2 || x.Shape[0] != t.Shape[0] {
				return 0, fmt.Errorf("%s: shape %v next to %v", x.Name, x.Shape, t.Shape)
			}
			if err := w.stack(x, e, 1, x.Shape[0]); err != nil {
				return 0, err
			}
		}
		return experts, nil
	}
	want := 2
	if experts > 0 {
		want = 3
	}
	if len(t.Shape) != want || experts > 0 && t.Shape[0] != experts {
		return 0, fmt.Errorf("%s: shape %v for %d experts", t.Name, t.Shape, experts)
	}
	return 1, w.stack(t, 0, max(experts, 1), t.Shape[want-2])
}

// stack appends rows rows of t to each of n experts.
func (w *weight) stack(t kernels.HostTensor, expert, n, rows int) error {
	switch {
	case t.DType != w.dtype || !t.DType.Float():
		return fmt.Errorf("%s holds %s, want %s: %w", t.Name, t.DType, w.dtype, kernels.ErrUnsupported)
	case t.Shape[len(t.Shape)-1] != w.cols || rows <= 0 || w.cols <= 0:
		return fmt.Errorf("%s: shape %v, want %d columns", t.Name, t.Shape, w.cols)
	case len(t.Data) != t.Elements()*t.DType.Size():
		return fmt.Errorf("%s: %d bytes for shape %v of %s", t.Name, len(t.Data), t.Shape, t.DType)
	}
	v := row[float64]{values{t.DType, t.Data}}.load(t.Elements())
	for i := range n {
		for range rows {
			w.experts[expert+i] = append(w.experts[expert+i], v[:w.cols:w.cols])
			v = v[w.cols:]
		}
	}
	w.bytes += int64(len(t.Data))
	return nil
}

// times is W x for one matrix of a weight.
func times[F real](w [][]float64, x []F) []F {
	y := make([]F, len(w))
	for r, weights := range w {
		var s F
		for i, v := range weights {
			s += F(v) * x[i]
		}
		y[r] = s
	}
	return y
}

func own(w kernels.Weight) *weight {
	p, ok := w.(*weight)
	if !ok {
		panic(fmt.Sprintf("ref: weight of another device: %T", w))
	}
	return p
}
