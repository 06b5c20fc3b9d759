package plot

import (
	"math"
	"strconv"
)

// span is the range of what is shown.
type span struct{ low, high float64 }

func newSpan() span { return span{math.Inf(1), math.Inf(-1)} }

func (s *span) add(v float64) { s.low, s.high = min(s.low, v), max(s.high, v) }

// axis maps values to shares of its length.
type axis struct {
	span
	log   bool
	ticks []float64
}

// newAxis covers s with about n ticks at round values. A linear axis of values that are not negative begins at 0; an
// empty span becomes one that can be drawn.
func newAxis(s span, log bool, n int) axis {
	if s.low > s.high {
		s = span{1, 1}
	}
	if log {
		return logAxis(s, n)
	}
	if s.low > 0 {
		s.low = 0
	}
	if s.high == s.low {
		s.high = s.low + max(1, math.Abs(s.low))
	}
	step := roundStep((s.high/2 - s.low/2) / float64(max(n, 1)) * 2)
	first, last := math.Floor(s.low/step), math.Ceil(s.high/step)
	a := axis{span: span{first * step, last * step}}
	for i := first; i <= last && len(a.ticks) <= 4*max(n, 1)+4; i++ {
		a.ticks = append(a.ticks, i*step)
	}
	return a
}

// roundStep is the next of 1, 2 and 5 times a power of ten from v up.
func roundStep(v float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, f := range [...]float64{1, 2, 5} {
		if f*power >= v*(1-1e-9) {
			return f * power
		}
	}
	return 10 * power
}

// logAxis has ticks at 1, 2 and 5 times powers of ten, or where that is too many, at powers of ten.
func logAxis(s span, n int) axis {
	low, high := math.Floor(math.Log10(s.low)), math.Ceil(math.Log10(s.high))
	if high == low {
		high++
	}
	factors := []float64{1, 2, 5}
	if 3*(high-low) > float64(2*max(n, 1)) {
		factors = factors[:1]
	}
	every := max(1, math.Ceil((high-low)/float64(4*max(n, 1))))
	a := axis{log: true}
	for e := low; e <= high; e += every {
		for _, f := range factors {
			a.ticks = append(a.ticks, f*math.Pow(10, e))
		}
	}
	first, last := 0, len(a.ticks)-1
	for first < last && a.ticks[first+1] <= s.low {
		first++
	}
	for last > first+1 && a.ticks[last-1] >= s.high {
		last--
	}
	a.ticks = a.ticks[first : last+1]
	a.span = span{min(s.low, a.ticks[0]), max(s.high, a.ticks[len(a.ticks)-1])}
	return a
}

// share is where v lies between the ends, 0 to 1.
func (a axis) share(v float64) float64 {
	if a.log {
		return (math.Log(v) - math.Log(a.low)) / (math.Log(a.high) - math.Log(a.low))
	}
	return (v/2 - a.low/2) / (a.high/2 - a.low/2)
}

// tickLabel writes a round value shortly: 0.05, 250, 20k, 3M, 1e+12.
func tickLabel(v float64) string {
	switch size := math.Abs(v); {
	case size >= 1e4 && size < 1e6:
		return strconv.FormatFloat(v/1e3, 'g', 4, 64) + "k"
	case size >= 1e6 && size < 1e9:
		return strconv.FormatFloat(v/1e6, 'g', 4, 64) + "M"
	}
	return strconv.FormatFloat(v, 'g', 4, 64)
}
