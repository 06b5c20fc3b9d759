package load

import (
	"encoding/json"
	"math"
	"slices"
	"time"
)

// Stats are milliseconds. A percentile between two samples is interpolated linearly, as numpy does. Without samples all is
// 0, and JSON leaves it out.
type Stats struct {
	Samples int     `json:"samples"`
	Mean    float64 `json:"mean"`
	P50     float64 `json:"p50"`
	P90     float64 `json:"p90"`
	P95     float64 `json:"p95"`
	P99     float64 `json:"p99"`
	Max     float64 `json:"max"`
}

// Rate is requests a second; an infinite one is "inf" in JSON.
type Rate float64

// MarshalJSON implements json.Marshaler.
func (r Rate) MarshalJSON() ([]byte, error) {
	if math.IsInf(float64(r), 1) {
		return []byte(`"inf"`), nil
	}
	return json.Marshal(float64(r))
}

// Row is what a run came to. Latencies are of measured requests that were answered in full, in milliseconds; they count
// from the intended arrival.
type Row struct {
	Load        string         `json:"load"`                  // "poisson 2/s", "concurrency 16"
	Rate        Rate           `json:"rate,omitempty"`        // requests that were meant to arrive; 0 = another load
	Concurrency int            `json:"concurrency,omitempty"` // of a closed loop
	Requests    int            `json:"requests"`              // measured
	Completed   int            `json:"completed"`
	Failed      int            `json:"failed"`
	Faults      int            `json:"faults"`                // failed ones but for overload, http 429 and 503
	Cut         int            `json:"cut"`                   // broken off by this program, neither completed nor failed
	Unmeasured  int            `json:"unmeasured"`            // sent during the ramp
	Short       int            `json:"short"`                 // completed with fewer tokens than asked for
	Errors      map[string]int `json:"errors"`                // failed ones by kind
	FirstError  string         `json:"first_error,omitempty"` // of the faults, where there are some
	Seconds     float64        `json:"seconds"`               // from the first measured arrival to the last answer
	RequestRate float64        `json:"requests_per_second"`   // completed
	InputRate   float64        `json:"input_tokens_per_second"`
	OutputRate  float64        `json:"output_tokens_per_second"`
	Goodput     float64        `json:"goodput_requests_per_second"` // completed within the objective; all without one
	GoodShare   float64        `json:"good_share"`                  // of completed and failed ones
	TTFT        Stats          `json:"ttft_ms,omitzero"`
	ITL         Stats          `json:"itl_ms,omitzero"`  // between chunks with tokens, of all requests together
	TPOT        Stats          `json:"tpot_ms,omitzero"` // of each request: (last - first) / (tokens - 1)
	E2E         Stats          `json:"e2e_ms,omitzero"`  // to the last token
	Late        Stats          `json:"late_ms,omitzero"` // from the intended arrival until this program sent the request
	LateSends   int            `json:"late_sends"`
	ChunkTokens float64        `json:"tokens_per_chunk"`
	PeakRunning int            `json:"peak_in_flight"`
	Backlog     int            `json:"backlog"`   // how many more arrived than ended in the second half of the arrivals
	Saturated   bool           `json:"saturated"` // the backlog grew, or a tenth was refused; not known where faults are
	ClientCores float64        `json:"client_cores"`
	Interrupted bool           `json:"interrupted,omitempty"`
}

// lateAfter is what counts as a late send: timers alone are good to about a millisecond.
const lateAfter = 10 * time.Millisecond

// samples collects what percentiles are made of, in milliseconds.
type samples struct{ ttft, itl, tpot, e2e, late []float64 }

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func (s *samples) add(o *Outcome) {
	s.ttft = append(s.ttft, millis(o.TTFT()))
	s.e2e = append(s.e2e, millis(o.E2E()))
	if o.Output > 1 {
		s.tpot = append(s.tpot, millis(o.TPOT()))
	}
	for _, g := range o.Gaps {
		s.itl = append(s.itl, float64(g)/1e3)
	}
}

// Summarise makes a row of the outcomes of a run. exact says that answers should have the length that was asked for.
func Summarise(all []*Outcome, slo SLO, exact bool) Row {
	r := Row{Errors: map[string]int{}}
	var s samples
	var measured []*Outcome
	input, output, chunks, good := 0, 0, 0, 0
	for _, o := range all {
		if !o.Measured {
			r.Unmeasured++
			continue
		}
		measured = append(measured, o)
		s.late = append(s.late, millis(o.Late()))
		if o.Late() > lateAfter {
			r.LateSends++
		}
		switch {
		case o.Cut:
			r.Cut++
			continue
		case o.Failure != nil:
			r.failed(o.Failure)
			continue
		}
		s.add(o)
		r.Completed++
		input, output, chunks = input+o.Input, output+o.Output, chunks+o.Chunks
		if exact && o.Output < o.Asked {
			r.Short++
		}
		if slo.met(o) {
			good++
		}
	}
	r.Requests = len(measured)
	r.TTFT, r.ITL, r.TPOT, r.E2E, r.Late = stats(s.ttft), stats(s.itl), stats(s.tpot), stats(s.e2e), stats(s.late)
	r.Seconds = span(measured).Seconds()
	r.RequestRate, r.Goodput = ratio(float64(r.Completed), r.Seconds), ratio(float64(good), r.Seconds)
	r.InputRate, r.OutputRate = ratio(float64(input), r.Seconds), ratio(float64(output), r.Seconds)
	r.GoodShare, r.ChunkTokens = ratio(float64(good), float64(r.Completed+r.Failed)), ratio(float64(output), float64(chunks))
	r.PeakRunning = peak(all)
	return r
}

func (r *Row) failed(f *Failure) {
	r.Failed++
	r.Errors[f.Kind]++
	fault := f.Kind != "http 429" && f.Kind != "http 503"
	if fault {
		r.Faults++
	}
	if r.FirstError == "" || fault && r.Faults == 1 {
		r.FirstError = f.Kind + ": " + f.Detail
	}
}

func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// span is the time from the first intended arrival to the end of the last answer.
func span(outcomes []*Outcome) time.Duration {
	if len(outcomes) == 0 {
		return 0
	}
	first, last := outcomes[0].Intended, time.Duration(0)
	for _, o := range outcomes {
		first, last = min(first, o.Intended), max(last, o.End)
	}
	return last - first
}

// stats sorts x.
func stats(x []float64) Stats {
	if len(x) == 0 {
		return Stats{}
	}
	slices.Sort(x)
	sum := 0.0
	for _, v := range x {
		sum += v
	}
	return Stats{len(x), sum / float64(len(x)), Percentile(x, 50), Percentile(x, 90), Percentile(x, 95), Percentile(x, 99), x[len(x)-1]}
}

// Percentile interpolates in sorted samples, of which there must be one or more; p is 0 to 100.
func Percentile(sorted []float64, p float64) float64 {
	at := p / 100 * float64(len(sorted)-1)
	i := int(math.Floor(at))
	if i+1 >= len(sorted) {
		return sorted[len(sorted)-1]
	}
	return sorted[i] + (at-float64(i))*(sorted[i+1]-sorted[i])
}

// peak is the most requests that were under way at once.
func peak(all []*Outcome) int {
	type event struct {
		at   time.Duration
		more int
	}
	var events []event
	for _, o := range all {
		events = append(events, event{o.Intended, 1}, event{o.End, -1})
	}
	slices.SortFunc(events, func(a, b event) int {
		if a.at != b.at {
			return int(min(max(a.at-b.at, -1), 1))
		}
		return a.more - b.more
	})
	now, most := 0, 0
	for _, e := range events {
		now += e.more
		most = max(most, now)
	}
	return most
}

// Judge says whether an open loop's server kept up. In the second half of the arrivals as many requests end as arrive, but
// for chance, which grows with the root of what is under way, and a last burst; when clearly more arrive, the queue grows
// without end. A run shorter than a few answers counts as saturated, because nothing shows that it is not; so does one
// where more than a tenth was refused. Requests that failed for another reason take part in no queue: a row with some says
// nothing of saturation.
func (r *Row) Judge(all []*Outcome) {
	var last time.Duration
	first := time.Duration(math.MaxInt64)
	for _, o := range all {
		if o.Measured {
			first, last = min(first, o.Intended), max(last, o.Intended)
		}
	}
	middle := first + (last-first)/2
	arrived, ended, running := 0, 0, 0
	for _, o := range all {
		if o.Intended > middle && o.Intended <= last {
			arrived++
		}
		if o.End > middle && o.End <= last {
			ended++
		}
		if o.Intended <= middle && o.End > middle {
			running++
		}
	}
	r.Backlog = arrived - ended
	grew := float64(r.Backlog) > 0.1*float64(arrived)+2*math.Sqrt(float64(running))+3
	r.Saturated = r.Faults == 0 && (grew || 10*r.Failed > r.Requests)
}
