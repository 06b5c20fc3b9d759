//go:build cuda

package cuda

import (
	"errors"
	"strings"
	"testing"

	"reprise/kernels"
)

// These tests need no GPU.

func TestOpenRefuses(t *testing.T) {
	if _, err := Open(Options{Activations: kernels.F16}); !errors.Is(err, kernels.ErrUnsupported) {
		t.Errorf("float16 activations: %v", err)
	}
	d, err := Open(Options{Ordinal: 1 << 20})
	if err == nil {
		d.Close()
		t.Fatal("device 2^20 opened")
	}
	if strings.Contains(err.Error(), "\n") || !strings.HasPrefix(err.Error(), "cuda: ") {
		t.Errorf("not one line that says where: %q", err)
	}
}

func TestAlignment(t *testing.T) {
	for _, c := range []struct {
		list []int
		want int
	}{{[]int{0, 512}, 256}, {[]int{256, 48}, 16}, {[]int{6, 1024}, 2}, {[]int{3}, 1}} {
		if got := alignment(c.list...); got != c.want {
			t.Errorf("%v: %d, want %d", c.list, got, c.want)
		}
	}
}

func TestPlan(t *testing.T) {
	tensor := func(shape ...int) kernels.HostTensor {
		h := kernels.HostTensor{Name: "t", DType: kernels.BF16, Shape: shape}
		h.Data = make([]byte, 2*h.Elements())
		return h
	}
	for name, c := range map[string]struct {
		spec                  kernels.WeightSpec
		experts, rows, groups int
	}{
		"parts":   {kernels.WeightSpec{Parts: []kernels.HostTensor{tensor(3, 65), tensor(4, 65)}}, 1, 7, 2},
		"stacked": {kernels.WeightSpec{Experts: 2, Parts: []kernels.HostTensor{tensor(2, 3, 65), tensor(2, 5, 65)}}, 2, 8, 2},
		"mixed":   {kernels.WeightSpec{Experts: 2, Parts: []kernels.HostTensor{tensor(3, 65), tensor(3, 65), tensor(2, 5, 65)}}, 2, 8, 2},
	} {
		w, groups, err := plan(c.spec)
		if err != nil || w.experts != c.experts || w.rows != c.rows || w.cols != 65 || w.stride != 256 || len(groups) != c.groups {
			t.Errorf("%s: %+v, %d groups, %v", name, w, len(groups), err)
		}
	}
}

// A fault is reported once, by the first wait for a ticket behind it.
func TestFaultsInOrder(t *testing.T) {
	var x tickets
	first, second := &kernels.Fault{Op: "first"}, &kernels.Fault{Op: "second"}
	x.fault(first)
	x.last = 1
	x.fault(second)
	x.fault(first)
	if got := x.take(0); got != nil {
		t.Errorf("before ticket 1: %v", got)
	}
	if got := x.take(1); got != first {
		t.Errorf("ticket 1: %v", got)
	}
	if got := x.take(1); got != nil {
		t.Errorf("ticket 1 again: %v", got)
	}
	if got := x.take(5); got != second {
		t.Errorf("ticket 5: %v", got)
	}
	if got := x.take(5); got != nil {
		t.Errorf("ticket 5 again: %v", got)
	}
}
