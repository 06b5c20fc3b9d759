package main

import "reprise/engine"

// breakdownRow is one line.
type breakdownRow struct {
	Sequences int     `json:"sequences"`
	Operation string  `json:"operation"`
	Count     int     `json:"count"` // of a step
	Micros    float64 `json:"adds_us"`
	Share     float64 `json:"share"`
}

// breakdown prints what each kind of operation adds to a plain step: the time of a step less that of one captured without
// them. Where launches overlap, the parts add up to less than the whole.
func (r *engineRun) breakdown() error {
	r.meter = nil // time is all that counts here
	r.table = newTable(r.json, "sequences\toperation\tcount\tadds us\tof the step\t")
	for _, n := range r.batches {
		whole := 0.0
		for _, kind := range append([]engine.Kind{engine.Nothing}, engine.Kinds()...) {
			count, err := r.engine.Omit(kind, n)
			if err != nil {
				return err
			}
			if count == 0 && kind != engine.Nothing {
				continue
			}
			step, err := r.decode("", n, true)
			if err != nil {
				return err
			}
			row := breakdownRow{n, string(kind), count, 1e3 * (whole - step.StepMillis), 0}
			if kind == engine.Nothing {
				whole = step.StepMillis
				row.Operation, row.Micros = "the step", 1e3*whole
			}
			row.Share = row.Micros / (1e3 * whole)
			r.table.row(row, "%d\t%s\t%d\t%.1f\t%.1f %%\t", n, row.Operation, row.Count, row.Micros, 100*row.Share)
		}
	}
	r.table.flush()
	return nil
}
