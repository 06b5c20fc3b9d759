package main

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"reprise/cmd/internal/cli"
	"reprise/engine"
	"reprise/kernels"
	"reprise/kernels/kernelbench"
	"reprise/spec"
	"reprise/ssm"
)

// windowFlags choose a sweep over replay windows instead of the table of operations.
type windowFlags struct {
	windows, tokens []int
	states          []string // of kernels.Precision; none = all
	rows            int
}

func (f *windowFlags) register(fs *pflag.FlagSet) {
	fs.Var(counts{&f.windows, ssm.MaxWindow}, "windows", "replay windows to compare: mean time of the recurrent steps over whole windows, in every state format; the list takes an equals sign, without one 8,16,24,32,64 (default: none)")
	fs.Lookup("windows").NoOptDefVal = "8,16,24,32,64"
	f.tokens = []int{1, 2, 4, 8}
	fs.Var(counts{&f.tokens, 1 + spec.MaxDepth}, "window-tokens", "tokens a step of that sweep")
	fs.StringSliceVar(&f.states, "window-states", nil, "state formats of that sweep, as its table names them: float32,float16+sr/fp8 (default: all)")
	fs.IntVar(&f.rows, "window-rows", 0, "rows of a step of that sweep; 0 = 8 on the CPU, 256 on a GPU")
}

// mostRows bounds --window-rows.
const mostRows = 1 << 12

// check refuses what needs no device to be refused.
func (f *windowFlags) check() error {
	switch {
	case f.rows < 0 || f.rows > mostRows:
		return cli.Usagef("--window-rows %d must be from 0 to %d", f.rows, mostRows)
	case len(f.windows) > 0 && slices.Max(f.windows) < slices.Min(f.tokens):
		return cli.Usagef("--windows %v: a window must be at least as long as a step of --window-tokens %v", f.windows, f.tokens)
	}
	var known []string
	for _, p := range kernelbench.Precisions() {
		known = append(known, p.String())
	}
	for _, s := range f.states {
		if !slices.Contains(known, s) {
			return cli.Usagef("--window-states %s: want some of %s", s, strings.Join(known, ", "))
		}
	}
	return nil
}

func (f *windowFlags) run(dev kernels.Device, match string, repeats int, asJSON, unchecked bool) error {
	if f.rows == 0 {
		f.rows = 256
		if dev.Activations() == kernels.F32 && !dev.Graphs() {
			f.rows = 8
		}
	}
	fmt.Fprintf(os.Stderr, "%s, %d threads, %s; steps of %d rows, us, the fastest of %d runs%s\n", dev.Name(), runtime.GOMAXPROCS(0), runtime.Version(), f.rows, repeats,
		map[bool]string{true: "; UNCHECKED"}[unchecked])
	header := "shape\tstate\tT\t"
	for _, w := range f.windows {
		header += fmt.Sprintf("L=%d\t", w)
	}
	s := windowSheet{table: newTable(asJSON, header+"best\tauto\tauto / best\t"), windows: f.windows}
	o := kernelbench.WindowOptions{
		Windows: f.windows, Tokens: f.tokens, Rows: f.rows, Repeats: repeats,
		Match: func(shape string, t int, p kernels.Precision) bool {
			wanted := len(f.states) == 0 || slices.Contains(f.states, p.String())
			return wanted && strings.Contains(fmt.Sprintf("%s %v T=%d", shape, p, t), match)
		},
	}
	rows := 0
	err := kernelbench.Windows(dev, o, func(r kernelbench.WindowRow) {
		rows++
		s.add(r)
	})
	if rows == 0 && err == nil {
		return nothingMatches(match)
	}
	s.line()
	s.table.flush()
	return err
}

// windowSheet gathers the windows of one shape, format and T into a line.
type windowSheet struct {
	table   *table
	windows []int
	rows    []kernelbench.WindowRow // of the line
}

func (s *windowSheet) add(r kernelbench.WindowRow) {
	if len(s.rows) > 0 && !sameLine(s.rows[0], r) {
		s.line()
	}
	s.rows = append(s.rows, r)
}

func sameLine(a, b kernelbench.WindowRow) bool {
	return a.Shape == b.Shape && a.State == b.State && a.T == b.T
}

// line prints what was gathered, the best window, and how far that of auto is from it.
func (s *windowSheet) line() {
	if len(s.rows) == 0 {
		return
	}
	if s.table.json != nil {
		for _, r := range s.rows {
			s.table.row(r, "")
		}
		s.rows = s.rows[:0]
		return
	}
	first, times := s.rows[0], map[int]float64{}
	best := first
	for _, r := range s.rows {
		times[r.L] = r.Micro
		if r.Micro < best.Micro {
			best = r
		}
	}
	text := fmt.Sprintf("%s\t%s\t%d\t", first.Shape, first.State, first.T)
	for _, w := range s.windows {
		text += cell(times[w], "%.0f") + "\t"
	}
	auto := engine.AutoWindow(first.T)
	s.table.row(nil, "%s%d\t%d\t%s\t", text, best.L, auto, cell(times[auto]/best.Micro, "%.2f"))
	s.rows = s.rows[:0]
}

// cell is a number, or a dash where there is none.
func cell(v float64, format string) string {
	if v == 0 {
		return "-"
	}
	return fmt.Sprintf(format, v)
}
