package kernelbench

import (
	"testing"

	"reprise/kernels/cpu"
)

// TestTableRuns runs every case at its smallest shape; times are not looked at.
func TestTableRuns(t *testing.T) {
	dev, err := cpu.Open(cpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	ops := map[string]int{}
	err = Run(dev, Rates{Read: 1e10, Flops: 1e10}, Options{Small: true, Repeats: 1}, func(r Row) {
		ops[r.Op]++
		if !(r.Micro > 0 && r.Floor > 0 && r.Bytes > 0 && r.Flops > 0) {
			t.Errorf("%+v", r)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, op := range []string{"linear bf16", "norm + residual", "mamba2 step", "delta step", "mamba2 scan", "delta scan", "attend step", "attend prefill", "experts", "sample greedy"} {
		if ops[op] == 0 {
			t.Errorf("no row for %s", op)
		}
	}
}
