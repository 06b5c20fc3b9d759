//go:build cuda

package cuda

import (
	"fmt"
	"testing"
	"time"

	"reprise/kernels"
)

// chain is 100 launches of a norm over few rows.
func (r *rig) chain(rows int) kernels.Program {
	x := kernels.NewMat(r.alloc(rows*2560*2), kernels.BF16, rows, 2560)
	y := kernels.NewMat(r.alloc(rows*2560*2), kernels.BF16, rows, 2560)
	w := r.alloc(2560 * 4)
	return kernels.ProgramFunc(func(o kernels.Ops) {
		for range 100 {
			o.Norm(kernels.Norm{X: x, Add: y, Y: y, Weight: w, Eps: 1e-5})
		}
	})
}

// A launch allocates nothing on the host.
func TestLaunchesAllocateNothing(t *testing.T) {
	r := newRig(t, kernels.BF16)
	p := r.chain(1)
	r.dev.Submit(p)
	if n := testing.AllocsPerRun(5, func() { r.dev.Submit(p) }); n > 0 {
		t.Errorf("%v allocations in 100 launches", n)
	}
	if err := r.dev.Wait(r.dev.Mark()); err != nil {
		t.Fatal(err)
	}
}

// Times of small launches: enqueued one by one, and from a graph.
func TestLaunchTimes(t *testing.T) {
	r := newTimer(t)
	for _, rows := range []int{1, 32, 256} {
		p := r.chain(rows)
		r.dev.Submit(p)
		r.dev.Wait(r.dev.Mark())
		start := time.Now()
		for range 10 {
			r.dev.Submit(p)
		}
		enqueued := time.Since(start)
		if err := r.dev.Wait(r.dev.Mark()); err != nil {
			t.Fatal(err)
		}
		all := time.Since(start)
		g, err := r.dev.Time(5, p)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Printf("norm of %d rows: enqueue %.2f us, eager %.2f us, in a graph %.2f us\n", rows, enqueued.Seconds()*1e3, all.Seconds()*1e3, g*1e4)
	}
}
