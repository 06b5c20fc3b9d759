package kernelbench

import (
	"fmt"
	"math"
	"slices"

	"reprise/kernels"
)

// WindowOptions choose what a sweep over replay windows times.
type WindowOptions struct {
	Windows []int                                               // L
	Tokens  []int                                               // T; pairs with T > L are left out
	Rows    int                                                 // of a step
	Repeats int                                                 // replays, of which the fastest counts
	Match   func(shape string, t int, p kernels.Precision) bool // nil = everything
	Small   bool                                                // smallest shapes only: a check that the sweep runs
}

// WindowRow is the mean time of a step over whole replay windows, flushes included: rows stand where steps of T tokens
// leave them of which 1 to T are accepted, each number as often.
type WindowRow struct {
	Shape string  `json:"shape"`
	State string  `json:"state"` // kernels.Precision
	T     int     `json:"t"`
	L     int     `json:"l"`
	Rows  int     `json:"rows"`
	Micro float64 `json:"us"`
	Flush float64 `json:"flush_share"` // of rows
}

// Precisions are those of the paper, and what a device may be asked to hold besides.
func Precisions() (out []kernels.Precision) {
	type f = kernels.StateFormat
	for _, p := range []struct{ hp, lp f }{
		{kernels.StateF32, 0}, {kernels.StateF16, 0}, {kernels.StateBF16, 0}, {kernels.StateF8, 0}, {kernels.StateNVFP4, 0},
		{kernels.StateF32, kernels.StateF8}, {kernels.StateF32, kernels.StateNVFP4},
		{kernels.StateF16, kernels.StateF8}, {kernels.StateF16, kernels.StateNVFP4}, {kernels.StateF8, kernels.StateNVFP4},
	} {
		rounding := kernels.Stochastic
		if p.hp == kernels.StateF32 {
			rounding = kernels.Nearest
		}
		out = append(out, kernels.Precision{HP: p.hp, LP: p.lp, Rounding: rounding})
	}
	return out
}

// Windows times the mixers' steps at different replay windows, in all precisions that the device takes, and hands out
// each row as it is known.
func Windows(dev kernels.Device, o WindowOptions, emit func(WindowRow)) error {
	shapes := mixers
	if o.Small {
		shapes = tinyMixers
	}
	for _, m := range shapes {
		for _, p := range Precisions() {
			if dev.StateSupport(p) != nil {
				continue
			}
			for _, t := range o.Tokens {
				if o.Match != nil && !o.Match(m.name, t, p) {
					continue
				}
				if err := m.windows(dev, o, p, t, emit); err != nil {
					return fmt.Errorf("%s %v T=%d: %w", m.name, p, t, err)
				}
			}
		}
	}
	return nil
}

// windows times all windows in turns, so that what disturbs the machine meets each of them.
func (m mixer) windows(dev kernels.Device, o WindowOptions, p kernels.Precision, t int, emit func(WindowRow)) error {
	if need, free := m.windowBytes(dev, o, p, t), dev.MemoryFree(); need > free {
		return fmt.Errorf("%d rows at windows %v need %.1f GB, %.1f GB are free: fewer rows or shorter windows", o.Rows, o.Windows, float64(need)/1e9, float64(free)/1e9)
	}
	var runs []*windowRun
	defer func() {
		for _, r := range runs {
			r.lab.free()
		}
	}()
	for _, window := range o.Windows {
		if window < t {
			continue
		}
		r := &windowRun{lab: newLab(dev)}
		runs = append(runs, r)
		if err := r.build(m, o, p, kernels.Window{L: window, T: t}); err != nil {
			return err
		}
	}
	for range o.Repeats + 1 { // the first warms up
		for _, r := range runs {
			if err := r.replay(); err != nil {
				return err
			}
		}
	}
	for _, r := range runs {
		r.row.Micro = r.micro()
		emit(r.row)
	}
	return nil
}

// windowBytes are those of the states and rings of all windows, which exist at the same time.
func (m mixer) windowBytes(dev kernels.Device, o WindowOptions, p kernels.Precision, t int) (sum int64) {
	slots := int64(o.Rows*m.windowSets(o, p) + 1)
	for _, window := range o.Windows {
		if window >= t {
			sum += slots * (m.checkpoint(p).Bytes() + m.ring(kernels.Window{L: window, T: t}, dev.Activations(), p).Bytes)
		}
	}
	return sum
}

// windowSets is how many groups of rows take turns.
func (m mixer) windowSets(o WindowOptions, p kernels.Precision) int {
	n := max(1, 64/o.Rows)
	if !o.Small {
		n = max(n, int(coldBytes/m.checkpoint(p).Bytes())/o.Rows)
	}
	return n
}

// coldBytes are more than caches hold, all windows together: states are cold when their turn comes.
const coldBytes = 64 << 20

// windowRun is one pair of L and T. Each graph is timed for itself and its fastest replay counts: what disturbs a run
// only makes it slower, and short pieces are disturbed less often.
type windowRun struct {
	lab    *lab
	row    WindowRow
	graphs []kernels.Graph
	best   []float64 // seconds
	// launches are those of all graphs.
	launches int
}

// graphTurns is how often a graph launches the steps of a set.
const graphTurns = 10

func (r *windowRun) build(m mixer, o WindowOptions, p kernels.Precision, w kernels.Window) error {
	l := r.lab
	sets := m.windowSets(o, p)
	phases := windowPhases(w, o.Rows*sets, l.rng.IntN)
	s := newSSM(l, m, w, p, o.Rows*sets, o.Rows*w.T, func(slot int) int { return phases[max(slot-1, 0)] })
	c := Case{Sets: sets, Run: s.steps(l, o.Rows, w.T, sets)}
	r.row = WindowRow{Shape: m.name, State: p.String(), T: w.T, L: w.L, Rows: o.Rows}
	for _, h := range phases {
		if kernels.Flushes(int32(h), int32(w.T), int32(w.L)) {
			r.row.Flush += 1 / float64(len(phases))
		}
	}
	each := 1
	if l.dev.Graphs() { // launches in one graph need no host between them, and starting it counts once
		c.Sets, each = sets*graphTurns, sets*graphTurns
	}
	for from := 0; from < c.Sets; from += each {
		g, err := l.capture(c, from, from+each)
		if err != nil {
			return err
		}
		r.graphs, r.best = append(r.graphs, g), append(r.best, math.Inf(1))
	}
	r.launches = c.Sets
	return nil
}

func (r *windowRun) replay() error {
	for i, g := range r.graphs {
		seconds, err := r.lab.replay(g)
		if err != nil {
			return err
		}
		r.best[i] = min(r.best[i], seconds)
	}
	return nil
}

// micro is the microseconds of one launch.
func (r *windowRun) micro() float64 {
	sum := 0.0
	for _, s := range r.best {
		sum += s
	}
	return sum / float64(r.launches) * 1e6
}

// windowPhases are n committed counts h as a long run of steps of T tokens leaves them: even shares of its sorted values,
// so that few of them stand for all.
func windowPhases(w kernels.Window, n int, random func(int) int) []int {
	long := make([]int, 1<<14)
	c := kernels.Cursor{}
	for i := range long {
		c = c.CommitStep(int32(w.T), int32(1+random(w.T)), int32(w.L))
		long[i] = int(c.H)
	}
	slices.Sort(long)
	out := make([]int, n)
	for i := range out {
		out[i] = long[(2*i+1)*len(long)/(2*n)]
	}
	return out
}
