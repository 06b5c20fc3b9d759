package engine

import "time"

// pace decides how many prompt tokens a step may have beside running requests, which all wait for the whole step. It
// learns from measured steps how long one takes without prompts and what a prompt token adds, and lets the step take ratio
// times as long as without. Not safe for concurrent use.
type pace struct {
	ratio float64 // above 1; 0 = no bound
	least int     // tokens that a step with prompts may always have: what is less is not worth a step

	plain float64 // seconds of a step without prompts; 0 = not measured yet
	rows  int     // running requests of that step
	token float64 // seconds that a prompt token adds; 0 = not measured yet
	run   int     // steps with prompts beside running requests since the last without
}

// Values of least: about where a chunk's products stop being bound by reading the weights.
const (
	leastPaceCPU = 16
	leastPace    = 128
)

// remeasure is how many steps with prompts follow each other before one without, which alone shows what the rows of
// running requests take. It comes earlier when their number changes by more than a quarter.
const remeasure = 16

// budget is the prompt tokens of the next step beside running requests, as sched.SetMixedPrefill takes them.
func (p *pace) budget() int {
	switch {
	case p.ratio == 0:
		return 0
	case p.plain == 0 || p.run >= remeasure:
		return -1
	case p.token == 0:
		return p.least
	}
	room := (p.ratio - 1) * p.plain / p.token
	if room >= maxPace {
		return maxPace
	}
	return max(int(room), p.least)
}

// maxPace is no bound: no step has more tokens.
const maxPace = 1 << 20

// launched notes what kind of step was launched.
func (p *pace) launched(rows, prompt int) {
	switch {
	case rows > 0 && prompt > 0 && far(rows, p.rows):
		p.run = remeasure
	case rows > 0 && prompt > 0:
		p.run++
	case rows > 0:
		p.run = 0
	}
}

// far tells whether two numbers of rows differ by more than a quarter.
func far(a, b int) bool { return 4*a > 5*b || 4*b > 5*a }

// took notes how long a step of rows running requests and so many prompt tokens kept the device.
func (p *pace) took(rows, prompt int, d time.Duration) {
	switch seconds := d.Seconds(); {
	case seconds <= 0:
	case prompt == 0 && far(rows, p.rows):
		p.plain, p.rows = seconds, rows
	case prompt == 0:
		p.plain = blend(p.plain, seconds)
	case rows == 0 && p.token == 0:
		p.token = seconds / float64(prompt)
	case rows > 0 && p.plain > 0:
		p.token = blend(p.token, max(seconds-p.plain, seconds/1e3)/float64(prompt))
	}
}

// blend follows a series of measurements. One that is far off counts as four times more or less.
func blend(old, new float64) float64 {
	if old == 0 {
		return new
	}
	return old + (min(max(new, old/4), 4*old)-old)/4
}
