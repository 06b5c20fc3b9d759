package kernels

import "fmt"

// Matrices is a weight's tensors, checked and sorted.
type Matrices struct {
	Experts    int // 1 unless experts
	Rows, Cols int // of one matrix
	DType      DType
	// Parts are [rows, Cols] tensors by part and expert; a part has as many rows in every expert.
	Parts [][]HostTensor
}

// Matrices checks that the tensors are as WeightSpec says, dense, and of a floating-point type. An error names the tensor.
func (s WeightSpec) Matrices() (Matrices, error) {
	if s.Format != Dense {
		return Matrices{}, fmt.Errorf("format %d: %w", s.Format, ErrUnsupported)
	}
	if len(s.Parts) == 0 || s.Experts < 0 {
		return Matrices{}, fmt.Errorf("%d parts, %d experts", len(s.Parts), s.Experts)
	}
	m := Matrices{Experts: max(1, s.Experts), DType: s.Parts[0].DType}
	if !m.DType.Float() {
		return Matrices{}, fmt.Errorf("dtype %s: %w", m.DType, ErrUnsupported)
	}
	for left := s.Parts; len(left) > 0; {
		part, rest, err := s.cut(left)
		if err != nil {
			return Matrices{}, err
		}
		if err := m.add(part); err != nil {
			return Matrices{}, err
		}
		left = rest
	}
	return m, nil
}

// cut takes the first part of a list of tensors, by expert, and returns what is left.
func (s WeightSpec) cut(list []HostTensor) (part, left []HostTensor, err error) {
	switch t := list[0]; {
	case s.Experts == 0:
		return list[:1], list[1:], nil
	case len(t.Shape) == 3:
		part, err := t.unstack(s.Experts)
		return part, list[1:], err
	case len(list) < s.Experts:
		return nil, nil, fmt.Errorf("tensor %s: %d tensors left for %d experts", t.Name, len(list), s.Experts)
	}
	return list[:s.Experts], list[s.Experts:], nil
}

// unstack makes matrices of an [experts, rows, cols] tensor.
func (t HostTensor) unstack(experts int) ([]HostTensor, error) {
	if t.Shape[0] != experts || len(t.Data)%experts != 0 {
		return nil, fmt.Errorf("tensor %s: shape %v for %d experts", t.Name, t.Shape, experts)
	}
	part, size := make([]HostTensor, experts), len(t.Data)/experts
	for e := range part {
		part[e] = HostTensor{Name: t.Name, DType: t.DType, Shape: t.Shape[1:], Data: t.Data[e*size : (e+1)*size]}
	}
	return part, nil
}

// add checks a part and puts it below the others.
func (m *Matrices) add(part []HostTensor) error {
	for _, t := range part {
		switch {
		case t.DType != m.DType:
			return fmt.Errorf("tensor %s is %s, others %s", t.Name, t.DType, m.DType)
		case len(t.Shape) != 2 || t.Shape[0] <= 0 || t.Shape[1] <= 0:
			return fmt.Errorf("tensor %s: shape %v is not [rows, cols]", t.Name, t.Shape)
		case m.Cols != 0 && t.Shape[1] != m.Cols:
			return fmt.Errorf("tensor %s: %d columns, others %d", t.Name, t.Shape[1], m.Cols)
		case t.Shape[0] != part[0].Shape[0]:
			return fmt.Errorf("tensor %s: %d rows, expert 0 %d", t.Name, t.Shape[0], part[0].Shape[0])
		case len(t.Data) != t.Elements()*m.DType.Size():
			return fmt.Errorf("tensor %s: %d bytes for shape %v of %s", t.Name, len(t.Data), t.Shape, t.DType)
		}
		m.Cols = t.Shape[1]
	}
	m.Rows += part[0].Shape[0]
	m.Parts = append(m.Parts, part)
	return nil
}
