package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"reprise/cmd/bench/internal/load"
)

// report prints rows as they come, writes them to a file, and at the end a table of all and a picture.
type report struct {
	out     io.Writer
	json    bool
	file    *os.File // nil = none
	picture string
	slo     load.SLO
	rows    []load.Row
	last    []*load.Outcome // of the last row
}

// newReport opens the output file before anything is measured, and tries whether the picture can be written.
func newReport(out io.Writer, f *serveFlags) (*report, error) {
	r := &report{out: out, json: f.json, picture: f.plot, slo: f.slo}
	if err := writable("plot", f.plot); err != nil {
		return nil, err
	}
	if f.output != "" {
		file, err := os.Create(f.output)
		if err != nil {
			return nil, fmt.Errorf("--output-file: %w", err)
		}
		r.file = file
	}
	r.note("%s of %s; latencies count from the intended arrival; token ids below %d, seed %d", f.model, f.url, f.synthetic.Vocab, f.synthetic.Seed)
	return r, nil
}

// note goes to standard error, so that JSON stays clean.
func (r *report) note(format string, a ...any) { fmt.Fprintf(os.Stderr, format+"\n", a...) }

func (r *report) add(row load.Row, all []*load.Outcome) {
	r.rows, r.last = append(r.rows, row), all
	line, err := json.Marshal(row)
	if err != nil {
		panic(err) // rows are plain numbers
	}
	line = append(line, '\n')
	if r.file != nil {
		if _, err := r.file.Write(line); err != nil {
			r.note("--output-file: %v", err)
		}
	}
	if r.json {
		_, _ = r.out.Write(line)
		return
	}
	r.detail(row)
}

// detail prints one row in full.
func (r *report) detail(row load.Row) {
	fmt.Fprintf(r.out, "%s: %d requests in %.1f s, %d completed, %d failed%s\n", row.Load, row.Requests, row.Seconds, row.Completed, row.Failed, remarks(row))
	for _, kind := range slices.Sorted(maps.Keys(row.Errors)) {
		fmt.Fprintf(r.out, "  %d x %s\n", row.Errors[kind], kind)
	}
	if row.FirstError != "" {
		fmt.Fprintf(r.out, "  first: %s\n", row.FirstError)
	}
	fmt.Fprintf(r.out, "  %.2f requests/s, %.1f tokens/s in, %.1f tokens/s out, %.2f tokens a chunk, at most %d under way; this program used %.2f cores\n",
		row.RequestRate, row.InputRate, row.OutputRate, row.ChunkTokens, row.PeakRunning, row.ClientCores)
	if r.slo.String() != "" {
		fmt.Fprintf(r.out, "  goodput %.2f requests/s: %.1f %% kept %s\n", row.Goodput, 100*row.GoodShare, r.slo.String())
	}
	t := tabwriter.NewWriter(r.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "ms\tmean\tp50\tp90\tp95\tp99\tmax\t")
	for _, m := range []struct {
		name string
		s    load.Stats
	}{{"first token", row.TTFT}, {"between tokens", row.ITL}, {"time per token", row.TPOT}, {"end to end", row.E2E}, {"sent late", row.Late}} {
		fmt.Fprint(t, m.name, "\t")
		for _, v := range []float64{m.s.Mean, m.s.P50, m.s.P90, m.s.P95, m.s.P99, m.s.Max} {
			fmt.Fprint(t, orDash(m.s, v, 2), "\t")
		}
		fmt.Fprintln(t)
	}
	_ = t.Flush() // standard output; nothing else could say so
}

// orDash is a value of s, or a dash where nothing was measured.
func orDash(s load.Stats, value float64, digits int) string {
	if s.Samples == 0 {
		return "-"
	}
	return strconv.FormatFloat(value, 'f', digits, 64)
}

// remarks are what a reader must know before believing a row.
func remarks(row load.Row) string {
	var b strings.Builder
	for _, r := range []struct {
		applies bool
		text    string
	}{
		{row.Interrupted, "interrupted"},
		{row.Saturated, "the server does not keep up"},
		{row.Faults > 0, fmt.Sprintf("%d failed for another reason than load, so the row does not say whether the server keeps up", row.Faults)},
		{row.Cut > 0, fmt.Sprintf("%d broken off", row.Cut)},
		{row.Short > 0, fmt.Sprintf("%d answers shorter than asked for", row.Short)},
		{row.Unmeasured > 0, fmt.Sprintf("%d more during the ramp", row.Unmeasured)},
		{row.LateSends > 0, fmt.Sprintf("%d sent more than 10 ms late: this program queued them", row.LateSends)},
	} {
		if r.applies {
			b.WriteString("; " + r.text)
		}
	}
	return b.String()
}

// close prints the table of all rows, draws the picture and closes the file.
func (r *report) close() error {
	if len(r.rows) > 1 && !r.json {
		r.table()
	}
	var err error
	if r.picture != "" && len(r.rows) > 0 {
		err = drawServe(r.picture, r.rows, r.last, r.slo.String() != "")
	}
	if r.file != nil {
		err = errors.Join(err, r.file.Close())
	}
	return err
}

func (r *report) table() {
	t := tabwriter.NewWriter(r.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "\nload\tok\tfailed\trequests/s\ttokens/s in\ttokens/s out\tgoodput\tTTFT p50\tp99\tITL p50\tp99\tTPOT p50\te2e p50\tp99\t\t")
	for _, row := range r.rows {
		mark := ""
		switch {
		case row.Faults > 0:
			mark = "failures"
		case row.Saturated:
			mark = "saturated"
		}
		fmt.Fprintf(t, "%s\t%d\t%d\t%.2f\t%.1f\t%.1f\t%.2f\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", row.Load, row.Completed, row.Failed,
			row.RequestRate, row.InputRate, row.OutputRate, row.Goodput, orDash(row.TTFT, row.TTFT.P50, 1), orDash(row.TTFT, row.TTFT.P99, 1),
			orDash(row.ITL, row.ITL.P50, 2), orDash(row.ITL, row.ITL.P99, 2), orDash(row.TPOT, row.TPOT.P50, 2), orDash(row.E2E, row.E2E.P50, 1), orDash(row.E2E, row.E2E.P99, 1), mark)
	}
	_ = t.Flush()
}
