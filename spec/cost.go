package spec

import (
	"math"
	"slices"
	"time"
)

// Measuring durations.
const (
	windowSteps = 16
	trialSteps  = 5
	costMemory  = 0.6 // of what earlier trials of a depth said
)

// window is the last durations of steps, in turn.
type window struct {
	took  [windowSteps]time.Duration
	next  int
	count int
}

func (w *window) add(t time.Duration) {
	w.took[w.next] = t
	w.next = (w.next + 1) % windowSteps
	w.count = min(w.count+1, windowSteps)
}

func (w *window) full() bool { return w.count >= trialSteps }

// usual is the lower quartile: somebody else's work makes steps longer, never shorter.
func (w *window) usual() float64 {
	sorted := w.took
	slices.Sort(sorted[:w.count])
	return float64(sorted[w.count/4])
}

// recent is the window of one depth.
type recent struct {
	depth int
	window
}

// at is the window of depth; that of another is forgotten.
func (r *recent) at(depth int) *window {
	if r.depth != depth {
		*r = recent{depth: depth}
	}
	return &r.window
}

// costs is how long steps of about as many rows take at each depth, relative to one of them: a machine that others use too
// is slower at some times than at others, so that only steps that followed each other compare.
type costs struct {
	relative []float64 // by depth; 0 = not known
	recent   recent    // of the current depth
}

// known reports whether both ends are, and with them all between.
func (c *costs) known() bool { return c.relative[0] > 0 && c.relative[len(c.relative)-1] > 0 }

// compare notes that the tried depth took so long where the current one takes what it took just before, if that is known.
func (c *costs) compare(current, tried int, took *window) bool {
	now := c.recent.at(current)
	if !now.full() {
		return false
	}
	base := c.relative[current]
	if base == 0 {
		base = 1
		if c.known() {
			base = c.of(current)
		}
		c.relative[current] = base
	}
	measured := base * took.usual() / now.usual()
	if old := c.relative[tried]; old > 0 {
		measured = costMemory*old + (1-costMemory)*measured
	}
	c.relative[tried] = measured
	c.order()
	return true
}

// order evens measurements out that say a deeper step takes less.
func (c *costs) order() {
	last := -1
	for depth, cost := range c.relative {
		if cost == 0 {
			continue
		}
		if last >= 0 && c.relative[last] > cost {
			mean := (c.relative[last] + cost) / 2
			c.relative[last], c.relative[depth] = mean, mean
		}
		last = depth
	}
}

// of is the cost at some depth: measured, or on the line between the measured ones around it.
func (c *costs) of(depth int) float64 {
	low, high := depth, depth
	for c.relative[low] == 0 {
		low--
	}
	for c.relative[high] == 0 {
		high++
	}
	if low == high {
		return c.relative[low]
	}
	share := float64(depth-low) / float64(high-low)
	return c.relative[low] + share*(c.relative[high]-c.relative[low])
}

// size is the class of steps with about as many rows: one each up to 8, then four a doubling.
func size(rows int) int {
	if rows <= 8 {
		return rows
	}
	return 8 + int(math.Round(4*math.Log2(float64(rows)/8)))
}

func (d *Depth) class(i int) *costs {
	for len(d.costs) <= i {
		d.costs = append(d.costs, costs{relative: make([]float64, d.max+1)})
	}
	return &d.costs[i]
}

// adopt gives a class that knows nothing yet the costs of the nearest one that does.
func (d *Depth) adopt(i int) {
	if d.class(i).known() {
		return
	}
	for away := range len(d.costs) {
		for _, j := range [...]int{i - away, i + away} {
			if j >= 0 && j < len(d.costs) && d.costs[j].known() {
				copy(d.costs[i].relative, d.costs[j].relative)
				return
			}
		}
	}
}
