package spec

import (
	"slices"
	"time"
)

// Tuning of depth control.
const (
	ownMemory    = 0.98  // a request's trials fade by this: the last 50 count
	allMemory    = 0.998 // all requests'
	firstChance  = 0.7   // believed before anything was tried
	firstWeight  = 4     // trials that this belief weighs
	othersWeight = 8     // trials that all requests weigh for a new one
	hysteresis   = 1.02  // what a change must gain that is not one back to plain decoding

	firstTrial   = 96 // most steps of a trial that has to find out what plain decoding or drafts cost at all
	manyRows     = 32 // the drafts of one step of so many rows say enough
	firstPause   = 24
	longestPause = 400
	longestDebt  = 1600  // a depth that costs much is tried again at last
	trialLoss    = 0.002 // share of the time that trials may lose
)

// Depth decides how many drafts to propose each step: what promises most tokens a second, from measured acceptance of
// the running requests and measured costs of steps. Depth 0 is plain decoding. All rows of a step are padded to the
// deepest one, so that one depth serves a whole step. Now and then another depth is tried, more and more seldom while
// that changes nothing, and no oftener than what such steps lose allows.
type Depth struct {
	max   int
	fixed bool
	all   Record
	costs []costs // by size class of steps

	current int
	trial   trial
	since   int     // steps since the last trial
	pause   int     // steps between trials
	debt    float64 // steps to wait until trials have lost no more than their share
	turn    int
}

// trial is some steps at another depth than the current one.
type trial struct {
	depth, left int
	size        int // class of steps that it is about
	want        int // durations
	took        window
}

func (t *trial) goesOn() bool { return t.left > 0 && t.took.count < t.want }

// NewDepth makes a control that starts at most drafts a step, and with fixed stays there.
func NewDepth(most int, fixed bool) *Depth {
	return &Depth{max: most, fixed: fixed, current: most, since: firstPause, pause: firstPause}
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
	case depth == t.depth && class == t.size && t.took.count < t.want:
		if t.took.add(took); t.took.count == t.want {
			c.compare(d.current, depth, &t.took)
		}
	}
}

// Next is the depth of the next step, of so many rows. running has the record of each running request, nil for one that
// never drafts.
func (d *Depth) Next(rows int, running []*Record) int {
	class := size(rows)
	switch {
	case d.fixed || !slices.ContainsFunc(running, func(r *Record) bool { return r != nil }):
		return d.current
	case d.trial.goesOn():
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
	d.since++
	d.debt = max(d.debt-1, 0)
	switch {
	case !c.recent.at(d.current).full():
		return d.current
	case d.uncertain(c) && d.since >= firstPause:
		c.at[d.current].asked = true
		return d.try(0, class, running)
	case d.since >= d.pause && d.debt == 0:
		d.pause = min(2*d.pause, longestPause)
		return d.try(d.another(), class, running)
	}
	return d.current
}

// uncertain reports whether nobody knows if drafts pay: what they cost was never compared with plain decoding with about so
// many rows, nor was it tried to.
func (d *Depth) uncertain(c *costs) bool {
	now := c.at[d.current]
	return d.current > 0 && !(now.asked || now.measured && c.at[0].measured)
}

// try begins a trial of a depth. One that repeats others is as short as can be: the first of its steps still verifies at another
// depth.
func (d *Depth) try(depth, class int, running []*Record) int {
	d.since, d.trial = 0, trial{depth: depth, size: class, left: firstTrial - 1, want: trialSteps}
	if c := d.class(class); c.known() {
		d.trial.want = againSteps
		if len(running) >= manyRows && c.at[depth].measured && c.at[d.current].measured {
			d.trial.want = 1
		}
		d.trial.left = d.trial.want
		d.debt = min(d.debt+float64(1+d.trial.want)*d.loss(c, depth, running)/trialLoss, longestDebt)
	}
	return depth
}

// loss is the steps at the current depth whose tokens a step at another one costs.
func (d *Depth) loss(c *costs, depth int, running []*Record) float64 {
	return max(0, c.of(depth)/c.of(d.current)-d.expected(running, depth)/d.expected(running, d.current))
}

// another is a depth to try: the neighbours and plain decoding in turn.
func (d *Depth) another() int {
	list := [...]int{d.current + 1, d.current - 1, 0}
	for {
		d.turn++
		if depth := list[d.turn%len(list)]; depth != d.current && depth >= 0 && depth <= d.max {
			return depth
		}
	}
}

// best is the depth with most expected tokens a second; drafts must be clearly better than the current depth, plain
// decoding as good as drafts.
func (d *Depth) best(c *costs, running []*Record) int {
	best, most := d.current, d.expected(running, d.current)/c.of(d.current)
	for depth := range d.max + 1 {
		rate := d.expected(running, depth) / c.of(depth)
		if depth > 0 {
			rate /= hysteresis
		}
		if depth != d.current && rate > most {
			best, most = depth, rate
		}
	}
	return best
}

// expected is the mean tokens a row of a step at some depth.
func (d *Depth) expected(running []*Record, depth int) float64 {
	sum := 0.0
	for _, own := range running {
		sum += d.tokens(own, depth)
	}
	return sum / float64(max(len(running), 1))
}

// tokens is the expected tokens of one row.
func (d *Depth) tokens(own *Record, depth int) float64 {
	sum, p := 1.0, 1.0
	if own == nil {
		return sum
	}
	for i := range depth {
		p *= own.chance(i, d.all.chance(i, firstChance, firstWeight), othersWeight)
		sum += p
	}
	return sum
}
