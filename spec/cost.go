package spec

import (
	"math"
	"slices"
	"time"
)

// Measuring durations.
const (
	windowSteps = 16
	trialSteps  = 5   // durations of the first trial of a class, and of the current depth before one
	againSteps  = 3   // of later trials, or 1
	costMemory  = 0.6 // of what earlier trials of a depth said, behind againSteps more durations
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

// cost is how long steps of one depth take, relative to those of the others.
type cost struct {
	relative float64 // 0 = not known
	measured bool    // with about as many rows; else adopted from other numbers of rows
	asked    bool    // a trial of plain decoding was begun to measure it
}

// costs is how long steps of about as many rows take at each depth, relative to one of them: a machine that others use too
// is slower at some times than at others, so that only steps that followed each other compare.
type costs struct {
	at     []cost // by depth
	recent recent // of the current depth
}

// known reports whether both ends are, and with them all between.
func (c *costs) known() bool { return c.at[0].relative > 0 && c.at[len(c.at)-1].relative > 0 }

// compare notes that the tried depth took so long where the current one takes what it took just before, if that is known.
// What was not measured before adapts to what was.
func (c *costs) compare(current, tried int, took *window) {
	now := c.recent.at(current)
	if !now.full() {
		return
	}
	ratio, base, other := took.usual()/now.usual(), &c.at[current], &c.at[tried]
	if base.relative == 0 {
		base.relative = c.guess(current)
	}
	switch {
	case other.measured && base.measured:
		memory := math.Pow(costMemory, float64(took.count)/againSteps)
		other.relative = memory*other.relative + (1-memory)*base.relative*ratio
	case other.measured:
		base.relative = other.relative / ratio
	default:
		other.relative = base.relative * ratio
	}
	base.measured, other.measured = true, true
	c.order()
}

// guess is the cost of a depth that nothing is known of: from others, or 1 for the first one.
func (c *costs) guess(depth int) float64 {
	if c.known() {
		return c.of(depth)
	}
	return 1
}

// order evens measurements out that say a deeper step takes less.
func (c *costs) order() {
	last := -1
	for depth := range c.at {
		cost := c.at[depth].relative
		if cost == 0 {
			continue
		}
		if last >= 0 && c.at[last].relative > cost {
			mean := (c.at[last].relative + cost) / 2
			c.at[last].relative, c.at[depth].relative = mean, mean
		}
		last = depth
	}
}

// of is the cost at some depth: what is known, or on the line between what is known around it.
func (c *costs) of(depth int) float64 {
	low, high := depth, depth
	for c.at[low].relative == 0 {
		low--
	}
	for c.at[high].relative == 0 {
		high++
	}
	from, to := c.at[low].relative, c.at[high].relative
	if low == high {
		return from
	}
	return from + float64(depth-low)/float64(high-low)*(to-from)
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
		d.costs = append(d.costs, costs{at: make([]cost, d.max+1)})
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
				for depth := range d.costs[i].at {
					d.costs[i].at[depth].relative = d.costs[j].at[depth].relative
				}
				return
			}
		}
	}
}
