package spec

import (
	"math/rand/v2"
	"testing"
	"time"
)

// machine is a made-up device: what steps cost, how much slower it is at times, and how well drafts do.
type machine struct {
	*rand.Rand
	plain, each float64 // ms of a plain step and of each draft more
	noise       float64 // share of steps that somebody else makes up to three times longer
	waves       bool    // for thousands of steps the machine is twice as slow
	chance      float64
}

func (m *machine) cost(depth, step int) time.Duration {
	ms := m.plain + m.each*float64(depth)
	if m.Float64() < m.noise {
		ms *= 1 + 2*m.Float64()
	}
	if m.waves && step/3000%2 == 1 {
		ms *= 2
	}
	return time.Duration(ms * float64(time.Millisecond))
}

func (m *machine) accepted(drafted int) int {
	a := 0
	for a < drafted && m.Float64() < m.chance {
		a++
	}
	return a
}

// rate runs steps of so many rows and returns tokens a millisecond; the device verifies what the step before proposed.
func (m *machine) rate(d *Depth, rows, steps int) float64 {
	records, tokens, total, before := make([]Record, rows), 0, 0.0, 0
	running := make([]*Record, rows)
	for i := range records {
		running[i] = &records[i]
	}
	for step := range steps {
		depth := d.Next(rows, running)
		t := m.cost((depth+before)/2, step)
		total += t.Seconds() * 1e3
		if m.waves && step/3000%2 == 1 {
			total -= t.Seconds() * 1e3 / 2 // so that rates compare
		}
		for i := range records {
			a := m.accepted(before)
			if before > 0 {
				d.Accepted(&records[i], before, a)
			}
			tokens += 1 + a
		}
		if depth == before {
			d.Took(rows, depth, t)
		}
		before = depth
	}
	return float64(tokens) / total
}

// expected is the mean rate at a fixed depth.
func (m *machine) expected(rows, depth int) float64 {
	tokens, p := 0.0, 1.0
	for range depth + 1 {
		tokens += p
		p *= m.chance
	}
	return float64(rows) * tokens / ((m.plain + m.each*float64(depth)) * (1 + m.noise))
}

func TestDepthFindsTheBest(t *testing.T) {
	for _, noise := range []float64{0, 0.3} {
		for _, waves := range []bool{false, true} {
			for _, rows := range []int{1, 16} {
				for _, c := range []struct{ plain, each, chance float64 }{
					{10, 1, 0.9}, {10, 1, 0.3}, {10, 4, 0.6}, {10, 10, 0.8}, {10, 20, 0.3}, {10, 0.1, 0.05}, {10, 8, 0},
				} {
					m := &machine{newRand(), c.plain, c.each, noise, waves, c.chance}
					d, best, at := NewDepth(5, false), 0.0, 0
					for depth := range 6 {
						if r := m.expected(rows, depth); r > best {
							best, at = r, depth
						}
					}
					m.rate(d, rows, 500)
					got, plain := m.rate(d, rows, 12000), m.expected(rows, 0)
					if got < 0.93*best || got < 0.97*plain {
						t.Errorf("noise %g waves %v rows %d %+v: rate %.3f (depth %d at the end), plain %.3f, best %.3f at depth %d",
							noise, waves, rows, c, got, d.current, plain, best, at)
					}
				}
			}
		}
	}
}

func newRand() *rand.Rand { return rand.New(rand.NewPCG(1, 2)) }
