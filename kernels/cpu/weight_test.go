package cpu

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"reprise/kernels"
)

func TestPackRefuses(t *testing.T) {
	d := open(t, 1)
	tensor := func(dtype kernels.DType, bytes int, shape ...int) kernels.HostTensor {
		return kernels.HostTensor{Name: "the.tensor", DType: dtype, Shape: shape, Data: make([]byte, bytes)}
	}
	good := tensor(kernels.F32, 24, 2, 3)
	for name, s := range map[string]kernels.WeightSpec{
		"no parts":         {},
		"negative experts": {Experts: -1, Parts: []kernels.HostTensor{good}},
		"format":           {Format: 99, Parts: []kernels.HostTensor{good}},
		"integers":         {Parts: []kernels.HostTensor{tensor(kernels.I32, 24, 2, 3)}},
		"vector":           {Parts: []kernels.HostTensor{tensor(kernels.F32, 24, 6)}},
		"no rows":          {Parts: []kernels.HostTensor{tensor(kernels.F32, 0, 0, 3)}},
		"negative rows":    {Parts: []kernels.HostTensor{tensor(kernels.F32, 24, -2, -3)}},
		"short data":       {Parts: []kernels.HostTensor{tensor(kernels.F32, 23, 2, 3)}},
		"long data":        {Parts: []kernels.HostTensor{tensor(kernels.F32, 25, 2, 3)}},
		"mixed dtypes":     {Parts: []kernels.HostTensor{good, tensor(kernels.BF16, 12, 2, 3)}},
		"mixed columns":    {Parts: []kernels.HostTensor{good, tensor(kernels.F32, 32, 2, 4)}},
		"missing expert":   {Experts: 3, Parts: []kernels.HostTensor{good, good}},
		"uneven experts":   {Experts: 2, Parts: []kernels.HostTensor{good, tensor(kernels.F32, 12, 1, 3)}},
		"wrong stack":      {Experts: 3, Parts: []kernels.HostTensor{tensor(kernels.F32, 48, 2, 2, 3)}},
		"stack of shorts":  {Experts: 2, Parts: []kernels.HostTensor{tensor(kernels.F32, 46, 2, 2, 3)}},
		"rank four":        {Experts: 2, Parts: []kernels.HostTensor{tensor(kernels.F32, 48, 2, 1, 2, 3)}},
	} {
		s.Name = "the.weight"
		w, err := d.Pack(s)
		if err == nil {
			t.Errorf("%s: packed as %v", name, w)
			continue
		}
		if !strings.Contains(err.Error(), "the.weight") {
			t.Errorf("%s: %v does not name the weight", name, err)
		}
		if unsupported := errors.Is(err, kernels.ErrUnsupported); unsupported != (name == "format" || name == "integers") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Experts come stacked in one tensor a part, or one tensor each; both are the same weight, at any address.
func TestPackExperts(t *testing.T) {
	d := open(t, 1)
	r := rand.New(rand.NewPCG(1, 2))
	for _, dtype := range storage {
		gate, _ := hostTensor(r, dtype, 3, 4, 5)
		up, _ := hostTensor(r, dtype, 3, 2, 5)
		split := kernels.WeightSpec{Name: "w", Experts: 3}
		for _, t := range []kernels.HostTensor{gate, up} {
			size := len(t.Data) / 3
			for e := range 3 {
				moved := append([]byte{0}, t.Data[e*size:(e+1)*size]...)[1:]
				split.Parts = append(split.Parts, kernels.HostTensor{Name: t.Name, DType: dtype, Shape: t.Shape[1:], Data: moved})
			}
		}
		one, err := d.Pack(kernels.WeightSpec{Name: "w", Experts: 3, Parts: []kernels.HostTensor{gate, up}})
		if err != nil {
			t.Fatal(err)
		}
		other, err := d.Pack(split)
		if err != nil {
			t.Fatal(err)
		}
		if e, rows, cols := one.Shape(); e != 3 || rows != 6 || cols != 5 {
			t.Fatalf("shape %d, %d, %d", e, rows, cols)
		}
		if one.Bytes() != int64(len(gate.Data)+len(up.Data)) || one.DType() != dtype {
			t.Errorf("%d bytes of %s", one.Bytes(), one.DType())
		}
		size := 5 * dtype.Size()
		for e := range 3 {
			for row := range 6 {
				a := elements[byte](rowAddress(one.(*weight).matrix(e), row, size), size)
				b := elements[byte](rowAddress(other.(*weight).matrix(e), row, size), size)
				if string(a) != string(b) {
					t.Errorf("%s: expert %d row %d differs", dtype, e, row)
				}
			}
		}
	}
}
