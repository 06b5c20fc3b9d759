package ssm_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"reprise/kernels"
)

// limit on the error of an output or a state, relative to its largest element: float32 against float64. A norm makes an
// output of cancelled terms as large as any other, and its error too.
const limit = 1e-4

// walk drives sequences through steps at random: ragged rows, any accepted length, null rows, forks, swaps, prefills
// on slots that hold records, ends and new starts in reused slots.
type walk struct {
	*harness
	r         *rand.Rand
	sequences []*sequence
}

func newWalk(tb testing.TB, k kind, w kernels.Window, seed uint64) *walk {
	return newPreciseWalk(tb, k, w, kernels.Precision{}, seed)
}

func newPreciseWalk(tb testing.TB, k kind, w kernels.Window, q kernels.Precision, seed uint64) *walk {
	return &walk{harness: newPreciseHarness(tb, k, w, q, 2, seed), r: rand.New(rand.NewPCG(seed, 2))}
}

func (w *walk) tokens(n int) []int {
	ids := make([]int, n)
	for i := range ids {
		ids[i] = w.r.IntN(64)
	}
	return ids
}

func (w *walk) run(steps int) {
	for range 3 {
		w.sequences = append(w.sequences, w.admit())
	}
	for range steps {
		if w.event(); math.IsInf(w.worst, 1) {
			return // with a dropped rule the rings may have overflowed
		}
		t := 1 + w.r.IntN(w.window.T)
		var rows []row
		for _, s := range w.sequences {
			n := w.r.IntN(t + 1)
			rows = append(rows, row{s: s, tokens: w.tokens(n), accepted: min(n, 1+w.r.IntN(t))})
		}
		w.r.Shuffle(len(rows), func(i, j int) { rows[i], rows[j] = rows[j], rows[i] })
		w.step(append(rows, row{}), t)
	}
}

// event is something between two steps, mostly nothing.
func (w *walk) event() {
	i := w.r.IntN(len(w.sequences))
	s := w.sequences[i]
	switch n := w.r.IntN(24); {
	case n == 0 && len(w.sequences) < 6:
		w.sequences = append(w.sequences, w.fork(s))
	case n == 1:
		w.swap(s)
	case n == 2:
		w.prefill([]row{{s: s, tokens: w.tokens(1 + w.r.IntN(5))}})
	case n == 3:
		var rows []row
		for _, s := range w.sequences {
			rows = append(rows, row{s: s, tokens: w.tokens(w.r.IntN(40))})
		}
		w.prefill(rows)
	case n == 4 && len(w.sequences) > 2:
		w.release(s)
		w.sequences[i] = w.admit()
	case n == 5 && len(w.sequences) > 3:
		w.release(s)
		w.sequences = append(w.sequences[:i], w.sequences[i+1:]...)
	}
}

// settle releases everything and requires that no block is left over.
func (w *walk) settle() {
	for _, s := range w.sequences {
		w.release(s)
	}
	for b, n := range w.refs {
		if (b == 0) != (n == 1) || n > 1 {
			w.Errorf("block %d has %d owners at the end", b, n)
		}
	}
}

func TestProtocol(t *testing.T) {
	steps := 100
	if testing.Short() {
		steps = 25
	}
	for _, k := range kinds() {
		for _, l := range []int{1, 4, 8, 16, 32} {
			for n := 1; n <= min(l, 8); n++ {
				t.Run(fmt.Sprintf("%s/L%d/T%d", k.name, l, n), func(t *testing.T) {
					w := newWalk(t, k, kernels.Window{L: l, T: n}, uint64(100*l+n))
					w.run(steps)
					w.settle()
					if w.worst > limit {
						t.Errorf("error %.2g", w.worst)
					}
				})
			}
		}
	}
}

func TestProtocolLong(t *testing.T) {
	steps := 3000
	if testing.Short() {
		steps = 300
	}
	for _, k := range kinds() {
		t.Run(k.name, func(t *testing.T) {
			w := newWalk(t, k, kernels.Window{L: 16, T: 4}, 7)
			w.run(steps)
			w.settle()
			t.Logf("error %.2g", w.worst)
			if w.worst > limit {
				t.Errorf("error %.2g", w.worst)
			}
		})
	}
}

// TestDroppedRules shows that the walk notices when a rule of the protocol is not kept.
func TestDroppedRules(t *testing.T) {
	rules := map[string]func(*harness){
		"commit of a prefill by the rule of a step": func(h *harness) { h.commitPrefillAsStep = true },
		"scan on records that were not folded":      func(h *harness) { h.scanWithoutFold = true },
		"sharing a block without a reserved one":    func(h *harness) { h.keepOldBlock = true },
	}
	for name, drop := range rules {
		for _, k := range kinds() {
			t.Run(name+"/"+k.name, func(t *testing.T) {
				w := newWalk(t, k, kernels.Window{L: 8, T: 3}, 11)
				drop(w.harness)
				w.run(200)
				if w.worst < 100*limit {
					t.Errorf("error %.2g: not noticed", w.worst)
				}
			})
		}
	}
}

// TestPrefill cuts a long prompt at every kind of place and goes on with steps.
func TestPrefill(t *testing.T) {
	for _, k := range kinds() {
		for _, cuts := range [][]int{{1}, {2, 1, 3}, {15}, {16, 1}, {63, 2}, {64, 64}, {65, 127}, {200}, {130, 1, 64}} {
			t.Run(fmt.Sprint(k.name, cuts), func(t *testing.T) {
				w := newWalk(t, k, kernels.Window{L: 4, T: 2}, 3)
				s, other := w.admit(), w.admit()
				for _, n := range cuts {
					w.prefill([]row{{s: other, tokens: w.tokens(3)}, {s: s, tokens: w.tokens(n)}})
				}
				w.step([]row{{s: s, tokens: w.tokens(2), accepted: 2}}, 2)
				if w.worst > limit {
					t.Errorf("error %.2g", w.worst)
				}
			})
		}
	}
}

// TestBitExact runs sequences together and each alone, in other slots, blocks and with another number of threads.
func TestBitExact(t *testing.T) {
	for _, k := range kinds() {
		t.Run(k.name, func(t *testing.T) {
			bitExact(t, k, kernels.Precision{})
		})
	}
}

func bitExact(t *testing.T, k kind, q kernels.Precision) {
	together := bitExactRun(t, k, q, 2, []int{0, 1, 2, 3})
	for i := range together {
		alone := bitExactRun(t, k, q, 1, []int{i})[i]
		for j, v := range alone {
			if math.Float32bits(v) != math.Float32bits(together[i][j]) {
				t.Fatalf("sequence %d: number %d is %v alone, %v together", i, j, v, together[i][j])
			}
		}
	}
}

// bitExactRun is everything that the given sequences put out, by sequence.
func bitExactRun(t *testing.T, k kind, q kernels.Precision, threads int, which []int) map[int][]float32 {
	h := newPreciseHarness(t, k, kernels.Window{L: 5, T: 3}, q, threads, 5)
	for range 3 - len(which)/2 { // other slots and blocks
		h.takeSlot()
		h.takeBlock()
	}
	outs, sequences, random := map[int][]float32{}, map[int]*sequence{}, map[int]*rand.Rand{}
	for _, i := range which {
		sequences[i], random[i] = h.admit(), rand.New(rand.NewPCG(uint64(i), 9))
	}
	for round := range 30 {
		var rows []row
		for _, i := range which {
			r := random[i]
			n := 1 + r.IntN(3)
			if round%7 == 0 {
				n = 1 + r.IntN(70)
			}
			rows = append(rows, row{s: sequences[i], tokens: r.Perm(64 + 7)[:n], accepted: 1 + r.IntN(min(n, 3))})
			for j := range rows[len(rows)-1].tokens {
				rows[len(rows)-1].tokens[j] %= 64
			}
		}
		var got [][]float32
		if round%7 == 0 {
			got = h.prefill(rows)
		} else {
			got = h.step(rows, 3)
		}
		for j, i := range which {
			outs[i] = append(outs[i], got[j]...)
			for _, v := range h.state(sequences[i]) {
				outs[i] = append(outs[i], float32(v))
			}
			for _, v := range h.widened(h.checkpoint.LP, sequences[i].cursor.Src) {
				outs[i] = append(outs[i], float32(v))
			}
		}
	}
	if q == (kernels.Precision{}) && h.worst > limit {
		t.Errorf("error %.2g", h.worst)
	}
	return outs
}
