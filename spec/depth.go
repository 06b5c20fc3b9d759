package spec

import (
	"time"
)

// Tuning of depth control.
const (
	ownMemory    = 0.98  // a request's trials fade by this: the last 50 count
	allMemory    = 0.998 // all requests'
	firstChance  = 0.7   // believed before anything was tried
	firstWeight  = 4     // trials that this belief weighs
	othersWeight = 8     // trials that all requests weigh for a new one
	hysteresis   = 1.02  // what a change of depth must gain

	burst        = trialSteps + 2 // steps a depth is tried for: the first ones still verify or draft at another depth
	firstPause   = 24
	longestPause = 1600
)

// Depth decides how many drafts to propose each step: what promises most tokens a second, from measured acceptance of
// the running requests and measured costs of steps. Depth 0 is plain decoding. All rows of a step are padded to the
// deepest one, so that one depth serves a whole step. Now and then another depth is tried, more and more seldom while
// that changes nothing.
type Depth struct {
	max   int
	fixed bool
	all   Record
	costs []costs // by size class of steps

	current int
	trial   trial
	since   int // steps since the last trial
	pause   int // steps between trials
	turn    int
}

// trial is some steps at another depth than the current one.
type trial struct {
	depth, left int
	size        int // class of steps that it is about
	took        window
	done        bool // compared
}

// NewDepth makes a control that starts at most drafts a step, and with fixed stays there.
func NewDepth(most int, fixed bool) *Depth {
	return &Depth{max: most, fixed: fixed, current: most, pause: firstPause, trial: trial{done: true}}
}

// Accepted notes what became of the drafts of a row of the request with this record.
func (d *Depth) Accepted(own *Record, drafted, accepted int) {
	own.add(drafted, accepted, ownMemory)
	d.all.add(drafted, accepted, allMemory)
}

// Took notes how long a step of so many rows took that verified and proposed depth drafts a row.
func (d *Depth) Took(rows, depth int, took time.Duration) {
	class := size(rows)
	c, t := d.class(class), &d.trial
	switch {
	case depth == d.current:
		c.recent.at(depth).add(took)
	case depth == t.depth && class == t.size && t.took.count < trialSteps:
		if t.took.add(took); t.took.count == trialSteps {
			t.done = c.compare(d.current, depth, &t.took)
		}
	}
}

// Next is the depth of the next step, of so many rows, whose requests have the given records.
func (d *Depth) Next(rows int, running []*Record) int {
	class := size(rows)
	switch {
	case d.fixed || rows == 0:
		return d.current
	case d.trial.left > 0:
		d.trial.left--
		return d.trial.depth
	}
	d.adopt(class)
	c := d.class(class)
	if c.known() {
		if best := d.best(c, running); best != d.current {
			d.current, d.pause, d.since = best, firstPause, 0
		}
	}
	if d.since == burst && !d.trial.done {
		d.since = d.pause // it came to nothing: rows came or went
	}
	if d.since++; !c.recent.at(d.current).full() || c.known() && d.since < d.pause {
		return d.current
	}
	if c.known() {
		d.pause = min(2*d.pause, longestPause)
	}
	return d.try(d.another(c), class)
}

// try begins a trial of a depth.
func (d *Depth) try(depth, class int) int {
	d.since, d.trial = 0, trial{depth: depth, left: burst - 1, size: class}
	return depth
}

// another is a depth to try: plain decoding if its cost is not known, else the neighbours and plain decoding in turn.
func (d *Depth) another(c *costs) int {
	if !c.known() {
		return d.max - d.current // the current one is an end
	}
	list := [...]int{d.current + 1, d.current - 1, 0}
	for {
		d.turn++
		if depth := list[d.turn%len(list)]; depth != d.current && depth >= 0 && depth <= d.max {
			return depth
		}
	}
}

// best is the depth with most expected tokens a second; the current one if no other is clearly better.
func (d *Depth) best(c *costs, running []*Record) int {
	best, most := d.current, hysteresis*d.expected(running, d.current)/c.of(d.current)
	for depth := range d.max + 1 {
		if rate := d.expected(running, depth) / c.of(depth); depth != d.current && rate > most {
			best, most = depth, rate
		}
	}
	return best
}

// expected is the mean tokens a row of a step at some depth.
func (d *Depth) expected(running []*Record, depth int) float64 {
	sum := 0.0
	for _, own := range running {
		p := 1.0
		for i := range depth {
			sum += p
			p *= own.chance(i, d.all.chance(i, firstChance, firstWeight), othersWeight)
		}
		sum += p
	}
	return sum / float64(max(len(running), 1))
}
