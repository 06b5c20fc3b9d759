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
	if engine.AutoWindow(4) != 16 || engine.AutoWindow(5) != 32 || engine.AutoWindow(12) != 32 {
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

// TestKernelsRefuses: one line that names what is wrong, and no empty table.
func TestKernelsRefuses(t *testing.T) {
	for line, words := range map[string]string{
		"--windows=0":                              "from 1 to 1024",
		"--windows=x":                              "whole numbers",
		"--windows=1025":                           "from 1 to 1024",
		"--windows 8,16":                           "--windows=8,16",
		"foo":                                      "unexpected argument",
		"--windows --window-rows -1":               "--window-rows",
		"--windows --window-rows 100000000":        "--window-rows",
		"--windows --window-tokens 0":              "from 1 to 8",
		"--windows=8 --window-tokens 9":            "from 1 to 8",
		"--windows=2 --window-tokens 4":            "at least as long",
		"--windows --window-states fp7":            "float16+sr/fp8",
		"--windows --repeats 0":                    "--repeats",
		"--repeats -1":                             "--repeats",
		"--match zzz":                              "--match",
		"--windows --match zzz":                    "--match",
		"--windows=2,4 --match T=8":                "--match",
		"--windows=1024 --window-rows 4096":        "GB are free",
		"--windows=1024 --window-rows 4096 --json": "GB are free",
	} {
		err := kernelsCommand(append([]string{"--device", "cpu", "--skip-check"}, strings.Fields(line)...))
		if err == nil || !strings.Contains(err.Error(), words) || strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), "strconv") {
			t.Errorf("%s: %v, want a line with %q", line, err, words)
		}
	}
}

func TestCounts(t *testing.T) {
	list := []int{1, 32}
	c := counts{&list, 64}
	if c.String() != "1,32" {
		t.Errorf("the default is printed as %q", c.String())
	}
	if err := c.Set("8, 8,64,8"); err != nil || !slices.Equal(list, []int{8, 64}) {
		t.Errorf("%v, %v", list, err)
	}
	for _, bad := range []string{"", "8,", "0", "65", "1.5", "-1", "99999999999999999999"} {
		if err := c.Set(bad); err == nil {
			t.Errorf("%q: no error, %v", bad, list)
		}
	}
}
