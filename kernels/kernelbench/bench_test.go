package kernelbench

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"reprise/kernels"
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

// TestWindows: every pair of L and T that can be has a row, and rows flush as often as whole windows do.
func TestWindows(t *testing.T) {
	dev, err := cpu.Open(cpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	rows := map[[2]int]int{}
	o := WindowOptions{Windows: []int{4, 8}, Tokens: []int{1, 2, 8}, Rows: 4, Repeats: 1, Small: true}
	o.Match = func(_ string, _ int, p kernels.Precision) bool {
		return p.LP == kernels.StateNVFP4 || p.HP == kernels.StateF32
	}
	err = Windows(dev, o, func(r WindowRow) {
		rows[[2]int{r.T, r.L}]++
		if !(r.Micro > 0 && r.Flush > 0 && r.Flush <= 1) || r.T == 1 && math.Abs(r.Flush-1/float64(r.L)) > 1e-9 {
			t.Errorf("%+v", r)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, pair := range [][2]int{{1, 4}, {1, 8}, {2, 4}, {2, 8}, {8, 8}} {
		if rows[pair] < 4 { // two mixers, float32 and others
			t.Errorf("T, L = %v: %d rows", pair, rows[pair])
		}
	}
	if len(rows) != 5 {
		t.Errorf("rows for %v", rows)
	}
}

// TestWindowPhases compares with chains that can be written down: T = 1 visits 1..L equally; L = T = 2 with one or two
// tokens accepted, each as often, always flushes and so stands at 1 and at 2 equally.
func TestWindowPhases(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	got := windowPhases(kernels.Window{L: 8, T: 1}, 16, rng.IntN)
	if want := []int{1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8}; !slices.Equal(got, want) {
		t.Errorf("T = 1: %v", got)
	}
	twos := 0
	for _, h := range windowPhases(kernels.Window{L: 2, T: 2}, 100, rng.IntN) {
		if h < 1 || h > 2 {
			t.Errorf("L = T = 2 stands at %d", h)
		}
		twos += h - 1
	}
	if twos < 45 || twos > 55 {
		t.Errorf("L = T = 2 stands at 2 in %d of 100 rows", twos)
	}
}
