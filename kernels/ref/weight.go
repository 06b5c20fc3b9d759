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
	m, err := s.Matrices()
	if err != nil {
		return nil, fmt.Errorf("ref: weight %s: %w", s.Name, err)
	}
	w := &weight{dtype: m.DType, rows: m.Rows, cols: m.Cols, experts: make([][][]float64, m.Experts)}
	for _, part := range m.Parts {
		for e, t := range part {
			w.stack(t, e)
		}
	}
	return w, nil
}

// stack appends the rows of t to an expert's.
func (w *weight) stack(t kernels.HostTensor, expert int) {
	v := row[float64]{values{t.DType, t.Data}}.load(t.Elements())
	for len(v) > 0 {
		w.experts[expert] = append(w.experts[expert], v[:w.cols:w.cols])
		v = v[w.cols:]
	}
	w.bytes += int64(len(t.Data))
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
