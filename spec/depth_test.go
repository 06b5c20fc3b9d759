package spec

import (
	"math"
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
	never       int // rows that never draft
	mixed       int // a step in so many has no prompts beside it, so that its duration counts; 0 = all
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
	for i := range records[m.never:] {
		running[i] = &records[i]
	}
	for step := range steps {
		depth := d.Next(rows, running)
		t := m.cost((depth+before)/2, step)
		total += t.Seconds() * 1e3
		if m.waves && step/3000%2 == 1 {
			total -= t.Seconds() * 1e3 / 2 // so that rates compare
		}
		tokens += m.never
		for _, own := range running[:rows-m.never] {
			a := m.accepted(before)
			if before > 0 {
				d.Accepted(own, before, a)
			}
			tokens += 1 + a
		}
		if depth == before && (m.mixed == 0 || step%m.mixed == 0) {
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
					m := &machine{Rand: newRand(), plain: c.plain, each: c.each, noise: noise, waves: waves, chance: c.chance}
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

// h200 is about what steps of a 4B model take by rows, with drafts of which one in six is accepted: they do not pay.
func h200(rows int) *machine {
	m := &machine{Rand: newRand(), chance: 1. / 6}
	switch rows {
	case 1:
		m.plain, m.each = 2.6, 0.44
	case 32:
		m.plain, m.each = 3.8, 0.69
	case 128:
		m.plain, m.each = 5.86, 2.31
	case 256:
		m.plain, m.each = 9.2, 4.83
	}
	return m
}

// TestDepthLosesLittleToTrials: where drafts do not pay, trials cost at most a percent of any 90 steps behind the first ones,
// and a fifth of a percent of all. What a single row loses to luck with its drafts comes on top.
func TestDepthLosesLittleToTrials(t *testing.T) {
	for rows, luck := range map[int]float64{1: 0.01, 32: 0, 128: 0, 256: 0} {
		m, d := h200(rows), NewDepth(3, false)
		plain, worst, sum := m.expected(rows, 0), math.Inf(1), 0.0
		m.rate(d, rows, 90)
		const parts = 100
		for range parts {
			share := m.rate(d, rows, 90) / plain
			worst, sum = min(worst, share), sum+share
		}
		if mean := sum / parts; worst < 0.99-luck || mean < 1-trialLoss-luck/4 {
			t.Errorf("%d rows: %.3f of plain decoding at worst, %.4f on average", rows, worst, mean)
		}
	}
}

// TestDepthNoticesThatDraftsPay: however long they did not, and however dear a trial is.
func TestDepthNoticesThatDraftsPay(t *testing.T) {
	for _, rows := range []int{1, 32, 128, 256} {
		m, d := h200(rows), NewDepth(3, false)
		m.rate(d, rows, 5000)
		if d.current != 0 {
			t.Errorf("%d rows: depth %d where drafts do not pay", rows, d.current)
		}
		m.chance = 0.9
		m.rate(d, rows, 600)
		if d.current == 0 {
			t.Errorf("%d rows: 600 steps later drafts are still not used", rows)
		}
	}
}

// TestDepthBesidePrompts: most steps have prompts beside them, and say nothing about costs. Trials do not go on and on for
// that, and what pays is found out all the same.
func TestDepthBesidePrompts(t *testing.T) {
	for chance, want := range map[float64]float64{1. / 6: 0.985, 0.9: 1.15} {
		m, d := h200(256), NewDepth(3, false)
		m.chance, m.mixed = chance, 17
		m.rate(d, 256, 400)
		if got := m.rate(d, 256, 4000) / m.expected(256, 0); got < want {
			t.Errorf("chance %.2f: %.3f of plain decoding, want %.3f", chance, got, want)
		}
	}
}

// TestDepthCountsRowsThatNeverDraft: they wait for the drafts of others. Where those of a few rows do not pay for that, all are
// decoded plainly.
func TestDepthCountsRowsThatNeverDraft(t *testing.T) {
	for _, never := range []int{0, 200} {
		m, d := h200(256), NewDepth(3, false)
		m.chance, m.never = 0.9, never
		m.rate(d, 256, 400)
		if got := m.rate(d, 256, 2000) / m.expected(256, 0); got < 0.985 || (d.current > 0) != (never == 0) {
			t.Errorf("%d of 256 rows never draft: depth %d, %.3f of plain decoding", never, d.current, got)
		}
	}
}

// TestDepthWithOtherRows: drafts paid for fewer rows, and what that says about costs is far off. That is seen within a few
// steps: 0.85 of plain decoding is what some of these depths are worth at 256 rows.
func TestDepthWithOtherRows(t *testing.T) {
	for _, chance := range []float64{0.3, 0.5, 0.7} {
		for _, before := range []int{1, 32, 128} {
			few, many, d := h200(before), h200(256), NewDepth(3, false)
			few.chance, many.chance = chance, chance
			few.rate(d, before, 500)
			plain := many.expected(256, 0)
			first, then := many.rate(d, 256, 100)/plain, many.rate(d, 256, 500)/plain
			if first < 0.97 || then < 0.99 {
				t.Errorf("chance %g, %d rows before: %.3f of plain decoding in 100 steps, %.3f in 500 behind them", chance, before, first, then)
			}
		}
	}
}

// TestDepthRestsWithoutDrafts: nothing is tried where no row drafts.
func TestDepthRestsWithoutDrafts(t *testing.T) {
	m, d := h200(32), NewDepth(3, false)
	m.rate(d, 32, 200)
	before := *d
	for range 5000 {
		d.Next(32, make([]*Record, 32))
		d.Next(0, nil)
	}
	if d.pause != before.pause || d.since != before.since || d.turn != before.turn {
		t.Errorf("%+v, before %+v", *d, before)
	}
}

// TestDepthPrefersPlain: at equal promise a step has no drafts.
func TestDepthPrefersPlain(t *testing.T) {
	d, own := NewDepth(1, false), &Record{}
	for range 5000 {
		d.Accepted(own, 1, 0)
		d.Accepted(own, 1, 1)
	}
	one := []*Record{own}
	c := d.class(1)
	for _, test := range []struct {
		current  int
		relative float64
		want     int
	}{{1, 1.001, 0}, {1, 0.99, 1}, {0, 0.99, 0}, {0, 0.97, 1}} {
		d.current, c.at = test.current, []cost{{relative: 1}, {relative: test.relative * d.expected(one, 1)}}
		if got := d.best(c, one); got != test.want {
			t.Errorf("depth %d, drafts at %g of what they gain: %d, want %d", test.current, test.relative, got, test.want)
		}
	}
}

func newRand() *rand.Rand { return rand.New(rand.NewPCG(1, 2)) }
