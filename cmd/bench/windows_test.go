package main

import (
	"slices"
	"strings"
	"testing"

	"reprise/engine"
	"reprise/kernels/kernelbench"
)

// TestWindowSheet: one line a shape, format and T, a dash for pairs that cannot be, the best window and how far auto is
// from it.
func TestWindowSheet(t *testing.T) {
	rows := []kernelbench.WindowRow{
		{Shape: "a", State: "float32", T: 1, L: 8, Micro: 120}, {Shape: "a", State: "float32", T: 1, L: 16, Micro: 100},
		{Shape: "a", State: "float32", T: 1, L: 32, Micro: 110}, {Shape: "a", State: "float32", T: 12, L: 16, Micro: 200}, {Shape: "a", State: "float32", T: 12, L: 32, Micro: 250},
	}
	if engine.AutoWindow(1) != 16 || engine.AutoWindow(12) != 32 {
		t.Fatal("the rows were made for another rule")
	}
	text := printed(t, func() error {
		s := windowSheet{table: newTable(false, "shape\tstate\tT\tL=8\tL=16\tL=32\tbest\tauto\tauto / best\t"), windows: []int{8, 16, 32}}
		for _, r := range rows {
			s.add(r)
		}
		s.line()
		s.table.flush()
		return nil
	})
	lines := strings.Split(strings.TrimSpace(text), "\n")
	want := [][]string{{"a", "float32", "1", "120", "100", "110", "16", "16", "1.00"}, {"a", "float32", "12", "-", "200", "250", "16", "32", "1.25"}}
	if len(lines) != 3 || !slices.Equal(strings.Fields(lines[1]), want[0]) || !slices.Equal(strings.Fields(lines[2]), want[1]) {
		t.Errorf("got\n%s", text)
	}
}

func TestWindowsRefuses(t *testing.T) {
	for _, args := range [][]string{{"--windows=0"}, {"--windows", "--window-rows", "-1"}, {"--windows", "--window-tokens", "0"}, {"--windows", "--repeats", "0"}} {
		if err := kernelsCommand(append([]string{"--device", "cpu", "--skip-check"}, args...)); err == nil {
			t.Errorf("%v: no error", args)
		}
	}
}
