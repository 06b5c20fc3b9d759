package load

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// SLO is what a request must keep to count as good; 0 = any. It implements pflag.Value.
type SLO struct {
	TTFT time.Duration
	ITL  time.Duration // of 99 % of the gaps between its chunks
	TPOT time.Duration
	E2E  time.Duration

	text string
}

// Set reads ttft=500ms,itl=50ms,tpot=30ms,e2e=10s; each may be left out.
func (s *SLO) Set(text string) error {
	out := SLO{text: text}
	bounds := map[string]*time.Duration{"ttft": &out.TTFT, "itl": &out.ITL, "tpot": &out.TPOT, "e2e": &out.E2E}
	for _, part := range strings.Split(text, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		to := bounds[name]
		d, err := time.ParseDuration(value)
		if to == nil || err != nil || d <= 0 {
			return fmt.Errorf("%q is no objective; write ttft=500ms,itl=50ms,tpot=30ms,e2e=10s or a part of it", part)
		}
		if *to != 0 {
			return fmt.Errorf("%q names %s a second time", text, name)
		}
		*to = d
	}
	*s = out
	return nil
}

// String implements pflag.Value.
func (s *SLO) String() string { return s.text }

// Type implements pflag.Value.
func (s *SLO) Type() string { return "OBJECTIVE" }

// met reports whether a completed request is good.
func (s SLO) met(o *Outcome) bool {
	return within(o.TTFT(), s.TTFT) && within(o.TPOT(), s.TPOT) && within(o.E2E(), s.E2E) && s.gapsWithin(o.Gaps)
}

func within(d, bound time.Duration) bool { return bound == 0 || d <= bound }

func (s SLO) gapsWithin(gaps []uint32) bool {
	if s.ITL == 0 || len(gaps) == 0 {
		return true
	}
	x := make([]float64, len(gaps))
	for i, g := range gaps {
		x[i] = float64(g)
	}
	slices.Sort(x)
	return Percentile(x, 99) <= float64(s.ITL.Microseconds())
}
