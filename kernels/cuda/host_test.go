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

func TestLayOut(t *testing.T) {
	w, err := layOut(kernels.Matrices{Experts: 2, Rows: 8, Cols: 65, DType: kernels.BF16})
	if err != nil || w.experts != 2 || w.rows != 8 || w.cols != 65 || w.stride != 256 {
		t.Errorf("%+v, %v", w, err)
	}
	if _, err := layOut(kernels.Matrices{Experts: 1, Rows: 1, Cols: pieceBytes/2 + 1, DType: kernels.BF16}); !errors.Is(err, kernels.ErrUnsupported) {
		t.Errorf("rows wider than a piece: %v", err)
	}
}

// Step kernels read rows early behind a library's product only where a kernel of this program has waited for Begin.
func TestEarlyReads(t *testing.T) {
	layer := kernels.State{Rings: kernels.Buffer{Addr: 512, Size: 1}}
	o := &ops{}
	if o.foreign(); o.calmFor(layer) != 0 {
		t.Error("behind a library's product alone")
	}
	if o.waited(0); o.calmFor(layer) != 1 {
		t.Error("not behind a product of ours")
	}
	if o.waited(512); o.calmFor(layer) != 0 {
		t.Error("behind a step of the same layer")
	}
	if o.front = (front{}); o.calmFor(layer) != 0 {
		t.Error("behind any other kernel")
	}
	if o.foreign(); o.calmFor(layer) != 1 {
		t.Error("not behind a library's product later in the program")
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
