package load

import (
	"math"
	"time"
)

// Timeline is a run second by second, or in longer bins where it is long.
type Timeline struct {
	Seconds []float64 // the middle of each bin
	Output  []float64 // tokens a second
	Running []float64 // requests under way, waiting ones included
}

const maxBins = 400

// NewTimeline counts what arrived when. Tokens of a chunk count when it came.
func NewTimeline(all []*Outcome) Timeline {
	end := time.Duration(0)
	for _, o := range all {
		end = max(end, o.End)
	}
	bin := roundBin(end.Seconds() / maxBins)
	n := int(end.Seconds()/bin) + 1
	t := Timeline{make([]float64, n), make([]float64, n), make([]float64, n)}
	for i := range n {
		t.Seconds[i] = (float64(i) + 0.5) * bin
	}
	at := func(d time.Duration) int { return min(max(int(d.Seconds()/bin), 0), n-1) }
	for _, o := range all {
		t.tokens(o, at, bin)
		for i := at(o.Intended); i <= at(o.End); i++ {
			from, to := max(o.Intended.Seconds(), float64(i)*bin), min(o.End.Seconds(), float64(i+1)*bin)
			t.Running[i] += max(to-from, 0) / bin
		}
	}
	return t
}

func (t *Timeline) tokens(o *Outcome, at func(time.Duration) int, bin float64) {
	if o.Chunks == 0 {
		return
	}
	perChunk := float64(o.Output) / float64(o.Chunks) / bin
	when := o.First
	t.Output[at(when)] += perChunk
	for _, g := range o.Gaps {
		when += time.Duration(g) * time.Microsecond
		t.Output[at(when)] += perChunk
	}
}

// roundBin is a tenth of a second, or the next 1, 2 or 5 times a power of ten from seconds up.
func roundBin(seconds float64) float64 {
	if seconds <= 0.1 {
		return 0.1
	}
	power := math.Pow(10, math.Floor(math.Log10(seconds)))
	for _, f := range [...]float64{1, 2, 5} {
		if f*power >= seconds {
			return f * power
		}
	}
	return 10 * power
}
