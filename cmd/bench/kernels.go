package main

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"strings"
	"text/tabwriter"

	"reprise/cmd/internal/cli"
	"reprise/kernels"
	"reprise/kernels/kernelbench"
	"reprise/kernels/kerneltest"
)

type kernelsFlags struct {
	model           cli.Model
	match           string
	repeats         int
	json, unchecked bool
	sweep           windowFlags
}

func kernelsCommand(args []string) error {
	f, err := parseKernels(args)
	if err != nil {
		return err
	}
	options := kernelbench.Options{
		Repeats: f.repeats,
		Match:   func(op, shape string) bool { return strings.Contains(op+" "+shape, f.match) },
	}
	if len(f.sweep.windows) == 0 && !options.Any() {
		return nothingMatches(f.match)
	}
	dev, why, err := f.model.OpenDevice()
	if err != nil {
		return err
	}
	if why != "" {
		fmt.Fprintln(os.Stderr, why)
	}
	defer dev.Close()
	if !f.unchecked {
		fmt.Fprintln(os.Stderr, "conformance suite ...")
		if failures := kerneltest.Failures(dev); len(failures) > 0 {
			return fmt.Errorf("the device computes wrong, so no figures: %d failures, first: %s", len(failures), failures[0])
		}
	}
	if len(f.sweep.windows) > 0 {
		return f.sweep.run(dev, f.match, f.repeats, f.json, f.unchecked)
	}
	return f.table(dev, options)
}

func parseKernels(args []string) (*kernelsFlags, error) {
	f := &kernelsFlags{}
	flags := cli.NewFlags("bench kernels", "usage: bench kernels [flags]\n\nOf the flags that say how a model runs, --device and --dtype count.\n")
	f.model.Register(flags)
	flags.StringVar(&f.match, "match", "", "only rows whose operation and shape contain this text")
	flags.IntVar(&f.repeats, "repeats", 5, "runs of each case; the median counts")
	flags.BoolVar(&f.json, "json", false, "one JSON object a row")
	flags.BoolVar(&f.unchecked, "skip-check", false, "do not run the conformance suite first; rows are then marked unchecked")
	f.sweep.register(flags)
	rest, err := cli.Parse(flags, args)
	switch {
	case err != nil:
		return nil, err
	case len(rest) > 0:
		return nil, cli.Usagef("unexpected argument %q (a list of windows takes an equals sign: --windows=8,16)", rest[0])
	case f.repeats < 1:
		return nil, cli.Usagef("--repeats %d must be 1 or more", f.repeats)
	}
	return f, f.sweep.check()
}

// table prints a row for every case.
func (f *kernelsFlags) table(dev kernels.Device, options kernelbench.Options) error {
	rates, err := measure(dev)
	if err != nil {
		return err
	}
	t := newTable(f.json, "operation\tshape\tus\tGB/s\tGFLOP/s\tfloor us\tratio\t")
	t.note("%s, %d threads, %s; read %.1f GB/s, multiply-add %.1f GFLOP/s%s", dev.Name(), runtime.GOMAXPROCS(0), runtime.Version(), rates.Read/1e9, rates.Flops/1e9,
		map[bool]string{true: "; UNCHECKED"}[f.unchecked])
	rows := 0
	err = kernelbench.Run(dev, rates, options, func(r kernelbench.Row) {
		rows++
		seconds := r.Micro / 1e6
		t.row(r, "%s\t%s\t%.1f\t%.1f\t%.1f\t%.1f\t%.2f\t", r.Op, r.Shape, r.Micro, r.Bytes/seconds/1e9, r.Flops/seconds/1e9, r.Floor, r.Ratio)
	})
	if rows == 0 && err == nil {
		return nothingMatches(f.match)
	}
	t.flush()
	return err
}

func nothingMatches(text string) error {
	return cli.Usagef("--match %q: no row that this device can compute contains it", text)
}

func measure(dev kernels.Device) (kernelbench.Rates, error) {
	p, ok := dev.(kernelbench.Prober)
	if !ok {
		return kernelbench.Rates{}, fmt.Errorf("%s does not measure its own rates", dev.Name())
	}
	read, flops, err := p.MeasuredRates()
	return kernelbench.Rates{Read: read, Flops: flops}, err
}

// table prints rows for a person or for a program.
type table struct {
	json    *json.Encoder
	columns *tabwriter.Writer
}

func newTable(asJSON bool, header string) *table {
	if asJSON {
		return &table{json: json.NewEncoder(os.Stdout)}
	}
	t := &table{columns: tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)}
	fmt.Fprintln(t.columns, header)
	return t
}

// note says how the figures were made; on standard error, so that JSON stays clean.
func (t *table) note(format string, a ...any) { fmt.Fprintf(os.Stderr, format+"\n", a...) }

func (t *table) row(v any, format string, a ...any) {
	if t.json != nil {
		if err := t.json.Encode(v); err != nil {
			panic(err) // rows are plain numbers
		}
		return
	}
	fmt.Fprintf(t.columns, format+"\n", a...)
}

func (t *table) flush() {
	if t.columns != nil {
		t.columns.Flush()
	}
}
