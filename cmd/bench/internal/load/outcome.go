package load

import "time"

// Outcome is what became of a request. Times count from the begin of the run.
type Outcome struct {
	Intended, Sent, First, Last, End time.Duration // First and Last: chunks with tokens
	Gaps                             []uint32      // microseconds between chunks with tokens
	Chunks                           int           // with tokens
	Input, Output                    int           // tokens, as the server counts them
	Asked                            int           // tokens that the answer may have
	Measured                         bool          // not part of a ramp
	Cut                              bool          // ended by this program
	Failure                          *Failure      // nil = it was answered
}

// arrived notes n tokens at a time.
func (o *Outcome) arrived(n int, at time.Duration) {
	if o.Chunks == 0 {
		o.First = at
		o.Gaps = make([]uint32, 0, min(o.Asked, 4096))
	} else {
		o.Gaps = append(o.Gaps, uint32(min(max((at-o.Last).Microseconds(), 0), 1<<32-1)))
	}
	o.Last = at
	o.Chunks++
	o.Output += n
}

func (o *Outcome) fail(f *Failure) {
	if f != nil {
		o.Failure = f
	}
}

// TTFT is the time from the intended arrival to the first token.
func (o *Outcome) TTFT() time.Duration { return o.First - o.Intended }

// E2E is the time from the intended arrival to the last token.
func (o *Outcome) E2E() time.Duration { return o.Last - o.Intended }

// TPOT is the mean time of a token behind the first; 0 for a single one.
func (o *Outcome) TPOT() time.Duration {
	if o.Output < 2 {
		return 0
	}
	return (o.Last - o.First) / time.Duration(o.Output-1)
}

// Late is how long after the intended arrival this program sent the request.
func (o *Outcome) Late() time.Duration { return o.Sent - o.Intended }
