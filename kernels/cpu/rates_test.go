package cpu

import (
	"math"
	"testing"
)

func TestProbeKernels(t *testing.T) { eachLevel(t, testProbeKernels) }

func testProbeKernels(t *testing.T) {
	x := make([]float32, 256)
	want := float32(0)
	for i := range x {
		x[i] = float32(i)
		want += x[i]
	}
	if got := sum(x); got != want {
		t.Errorf("sum is %g, want %g", got, want)
	}
	if got := sumGo(x); got != want {
		t.Errorf("sumGo is %g, want %g", got, want)
	}
	if v := float64(fmaLoop(1000)); math.IsNaN(v) || v <= 0 {
		t.Errorf("the multiply-add loop ends at %g: not multiply-adds of ordinary numbers", v)
	}
}

func BenchmarkRates(b *testing.B) {
	d := open(b, 0)
	for b.Loop() {
		read, flops, err := d.MeasuredRates()
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(read/1e9, "GB/s")
		b.ReportMetric(flops/1e9, "GFLOP/s")
	}
}
