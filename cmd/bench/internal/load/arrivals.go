package load

import (
	"math"
	"math/rand/v2"
	"time"
)

// Arrivals gives the intended arrival of request after request, counted from the begin of the run; false = no more.
type Arrivals func() (time.Duration, bool)

// Fixed is one request every 1/rate seconds, the first at once. The rate grows linearly from 0 during ramp. An infinite
// rate sends everything at once.
func Fixed(rate float64, ramp time.Duration) Arrivals {
	n := -1.0
	return ramped(rate, ramp, func() float64 { n++; return n })
}

// Poisson has exponentially distributed gaps with mean 1/rate. The same seed gives the same arrivals.
func Poisson(rate float64, ramp time.Duration, seed uint64) Arrivals {
	r, sum := rand.New(rand.NewPCG(seed, arrivalStream)), 0.0
	return ramped(rate, ramp, func() float64 { sum += r.ExpFloat64(); return sum })
}

// ramped maps arrivals of mean rate 1 to arrivals of a rate that grows linearly to its value and then stays: the mean
// number until t is rate t*t / (2 ramp) inside the ramp and rate (t - ramp/2) behind it, and this is its inverse.
func ramped(rate float64, ramp time.Duration, unit func() float64) Arrivals {
	length := ramp.Seconds()
	return func() (time.Duration, bool) {
		u := unit()
		at := u/rate + length/2
		if u < rate*length/2 {
			at = math.Sqrt(2 * length * u / rate)
		}
		return time.Duration(min(at, maxSeconds) * float64(time.Second)), true
	}
}

// maxSeconds keeps times within a Duration.
const maxSeconds = 1e9

// Timed are the arrivals of a trace, speed times as fast.
func Timed(trace []TraceRow, speed float64) Arrivals {
	i := -1
	return func() (time.Duration, bool) {
		if i++; i >= len(trace) {
			return 0, false
		}
		return time.Duration(float64(trace[i].At) / speed), true
	}
}

// Streams of random numbers that follow from one seed.
const (
	arrivalStream = 1 + iota
	lengthStream
	promptStream
	sharedStream
)
