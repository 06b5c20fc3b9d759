package kernels

import "testing"

// TestMatrices: parts lie in the order of the list, whether their experts come stacked or one by one.
func TestMatrices(t *testing.T) {
	next := byte(0)
	tensor := func(shape ...int) HostTensor {
		h := HostTensor{Name: "t", DType: F8E4M3, Shape: shape}
		for range h.Elements() {
			h.Data = append(h.Data, next)
			next++
		}
		return h
	}
	for name, c := range map[string]struct {
		spec          WeightSpec
		experts, rows int
		parts         []int // rows
	}{
		"parts":   {WeightSpec{Parts: []HostTensor{tensor(3, 5), tensor(4, 5)}}, 1, 7, []int{3, 4}},
		"stacked": {WeightSpec{Experts: 2, Parts: []HostTensor{tensor(2, 1, 5), tensor(2, 2, 5)}}, 2, 3, []int{1, 2}},
		"mixed":   {WeightSpec{Experts: 2, Parts: []HostTensor{tensor(1, 5), tensor(1, 5), tensor(2, 2, 5)}}, 2, 3, []int{1, 2}},
	} {
		m, err := c.spec.Matrices()
		if err != nil || m.Experts != c.experts || m.Rows != c.rows || m.Cols != 5 || m.DType != F8E4M3 || len(m.Parts) != len(c.parts) {
			t.Fatalf("%s: %+v, %v", name, m, err)
		}
		want := c.spec.Parts[0].Data[0]
		for i, part := range m.Parts {
			for e, x := range part {
				if len(x.Shape) != 2 || x.Shape[0] != c.parts[i] || x.Elements() != len(x.Data) {
					t.Fatalf("%s: part %d of expert %d is %v with %d bytes", name, i, e, x.Shape, len(x.Data))
				}
				for _, v := range x.Data {
					if v != want {
						t.Fatalf("%s: part %d of expert %d has byte %d, want %d", name, i, e, v, want)
					}
					want++
				}
			}
		}
	}
}
