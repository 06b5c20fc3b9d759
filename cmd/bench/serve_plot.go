package main

import (
	"fmt"
	"io"
	"slices"

	"reprise/cmd/bench/internal/load"
	"reprise/internal/plot"
)

// Size of a panel.
const (
	plotWidth  = 900
	plotHeight = 330
)

// drawServe writes a picture: of several rows, latencies and throughput against the load; of one, the distribution of
// latencies and the run over time. objective says that there is one.
func drawServe(path string, rows []load.Row, last []*load.Outcome, objective bool) error {
	panels := singleRow(last)
	if len(rows) > 1 {
		panels = sweep(rows, objective)
	}
	if err := writeFile(path, func(w io.Writer) error { return plot.Write(w, plotWidth, plotHeight, panels...) }); err != nil {
		return fmt.Errorf("--plot: %w", err)
	}
	return nil
}

// sweep draws rows over their load, where an infinite rate has no place.
func sweep(rows []load.Row, objective bool) []plot.Panel {
	label := "requests a second that arrive"
	if rows[0].Concurrency > 0 {
		label = "requests under way"
	}
	series := func(name string, y func(load.Row) float64) plot.Series {
		s := plot.Series{Name: name}
		for _, r := range rows {
			s.X, s.Y = append(s.X, float64(r.Rate)+float64(r.Concurrency)), append(s.Y, y(r))
		}
		return s
	}
	requests := []plot.Series{series("completed", func(r load.Row) float64 { return r.RequestRate })}
	if objective {
		requests = append(requests, series("within the objective", func(r load.Row) float64 { return r.Goodput }))
	}
	return []plot.Panel{
		{Title: "Latency", XLabel: label, YLabel: "milliseconds", LogY: true, Series: []plot.Series{
			series("first token p50", func(r load.Row) float64 { return r.TTFT.P50 }), series("first token p99", func(r load.Row) float64 { return r.TTFT.P99 }),
			series("between tokens p50", func(r load.Row) float64 { return r.ITL.P50 }), series("between tokens p99", func(r load.Row) float64 { return r.ITL.P99 }),
			series("end to end p50", func(r load.Row) float64 { return r.E2E.P50 }), series("end to end p99", func(r load.Row) float64 { return r.E2E.P99 }),
		}},
		{Title: "Throughput", XLabel: label, YLabel: "tokens a second", Series: []plot.Series{series("output", func(r load.Row) float64 { return r.OutputRate })}},
		{Title: "Requests", XLabel: label, YLabel: "requests a second", Series: requests},
	}
}

func singleRow(all []*load.Outcome) []plot.Panel {
	var ttft, itl, e2e, late []float64
	first := plot.Series{Name: "first token", Points: true}
	whole := plot.Series{Name: "end to end", Points: true}
	for _, o := range all {
		if !o.Measured || o.Failure != nil {
			continue
		}
		t, e := 1e3*o.TTFT().Seconds(), 1e3*o.E2E().Seconds()
		ttft, e2e, late = append(ttft, t), append(e2e, e), append(late, 1e3*o.Late().Seconds())
		for _, g := range o.Gaps {
			itl = append(itl, float64(g)/1e3)
		}
		at := o.Intended.Seconds()
		first.X, first.Y = append(first.X, at), append(first.Y, t)
		whole.X, whole.Y = append(whole.X, at), append(whole.Y, e)
	}
	t := load.NewTimeline(all)
	return []plot.Panel{
		{Title: "Latency by percentile", XLabel: "percentile", YLabel: "milliseconds", LogY: true, Series: []plot.Series{
			percentiles("first token", ttft), percentiles("between tokens", itl), percentiles("end to end", e2e), percentiles("sent late", late),
		}},
		{Title: "Latency by arrival", XLabel: "seconds", YLabel: "milliseconds", LogY: true, Series: []plot.Series{first, whole}},
		{Title: "Output", XLabel: "seconds", YLabel: "tokens a second", Series: []plot.Series{{Name: "output", X: t.Seconds, Y: t.Output}}},
		{Title: "Under way", XLabel: "seconds", YLabel: "requests", Series: []plot.Series{{Name: "requests", X: t.Seconds, Y: t.Running}}},
	}
}

// percentiles is the curve of a distribution.
func percentiles(name string, x []float64) plot.Series {
	s := plot.Series{Name: name}
	if len(x) == 0 {
		return s
	}
	slices.Sort(x)
	for p := 0.0; p <= 100; p += 0.5 {
		s.X, s.Y = append(s.X, p), append(s.Y, load.Percentile(x, p))
	}
	return s
}
