package ssm_test

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"reprise/kernels"
)

// precisions are the paper's: shared checkpoints, and a copy to read beside one that carries the recurrence.
func precisions() []kernels.Precision {
	var list []kernels.Precision
	for f := kernels.StateF16; f <= kernels.StateNVFP4; f++ {
		list = append(list, kernels.Precision{HP: f}, kernels.Precision{HP: f, Rounding: kernels.Stochastic})
	}
	return append(list, twoPrecisions()...)
}

func twoPrecisions() []kernels.Precision {
	var list []kernels.Precision
	for _, hp := range []kernels.StateFormat{kernels.StateF32, kernels.StateF16, kernels.StateF8} {
		for _, lp := range []kernels.StateFormat{kernels.StateBF16, kernels.StateF8, kernels.StateNVFP4} {
			if p := (kernels.Precision{HP: hp, LP: lp, Rounding: kernels.Stochastic}); p.Validate() == nil && p.Two() {
				list = append(list, p)
			}
		}
	}
	return list
}

// everyPrecision runs a test for each kind and precision, or one in five if short.
func everyPrecision(t *testing.T, list []kernels.Precision, run func(t *testing.T, k kind, q kernels.Precision)) {
	for _, k := range kinds() {
		for i, q := range list {
			if testing.Short() && i%5 != 1 {
				continue
			}
			t.Run(fmt.Sprintf("%s/%v", k.name, q), func(t *testing.T) { run(t, k, q) })
		}
	}
}

// tolerated is how far the outputs of rounded states may be from exact ones in the mean of squares: a few times the
// rounding of one element in the format that is read or carries the recurrence, as errors of earlier roundings have
// partly decayed.
func tolerated(q kernels.Precision) float64 {
	limit := map[kernels.StateFormat]float64{
		kernels.StateF32: 1e-5, kernels.StateF16: 5e-4, kernels.StateBF16: 5e-3, kernels.StateF8: 0.05, kernels.StateNVFP4: 0.2,
	}
	return max(limit[q.HP], limit[q.Read()])
}

// The whole protocol in every precision: ragged rows, any accepted length, forks, swaps, prefills on slots with records.
func TestProtocolInEveryPrecision(t *testing.T) {
	everyPrecision(t, precisions(), func(t *testing.T, k kind, q kernels.Precision) {
		w := newPreciseWalk(t, k, kernels.Window{L: 8, T: 4}, q, 21)
		w.run(60)
		w.settle()
		t.Logf("error %.2g", w.noise())
		if !(w.noise() <= tolerated(q)) {
			t.Errorf("error %.2g, allowed %.2g", w.noise(), tolerated(q))
		}
	})
}

// Neighbours, slots, blocks and threads change no bit of an output, a checkpoint or its copy, so neither do they change
// what stochastic rounding does.
func TestBitExactInEveryPrecision(t *testing.T) {
	everyPrecision(t, precisions(), bitExact)
}

// script is one sequence through steps of random depths and accepted lengths. between runs before every step, and after
// sees every step's outputs and whether it flushed.
type script struct {
	*harness
	s       *sequence
	between func(*script)
	after   func(out []float32, flushed bool)
}

func (c *script) run(steps, depth int) {
	r := rand.New(rand.NewPCG(77, uint64(depth)))
	c.s = c.admit()
	for range steps {
		if c.between != nil {
			c.between(c)
		}
		tokens := make([]int, 1+r.IntN(depth))
		for i := range tokens {
			tokens[i] = r.IntN(64)
		}
		flushed := kernels.Flushes(c.s.cursor.H, int32(len(tokens)), int32(c.window.L))
		out := c.step([]row{{s: c.s, tokens: tokens, accepted: 1 + r.IntN(len(tokens))}}, depth)[0]
		if c.after != nil {
			c.after(out, flushed)
		}
	}
}

// history is what a script left: outputs of steps that flushed and of others, and the shares of blocks after flushes.
type trace struct{ flushed, others, blocks [][]byte }

func traced(t *testing.T, k kind, q kernels.Precision, between func(*script)) trace {
	var x trace
	c := &script{harness: newPreciseHarness(t, k, kernels.Window{L: 6, T: 3}, q, 1, 31), between: between}
	c.after = func(out []float32, flushed bool) {
		if !flushed {
			x.others = append(x.others, floatBytes(out))
			return
		}
		x.flushed = append(x.flushed, floatBytes(out))
		x.blocks = append(x.blocks, c.share(c.s.cursor.Src)[:c.checkpoint.HP.End])
	}
	c.run(60, 3)
	return x
}

func equal(x, y [][]byte) bool {
	for i := range x {
		if !bytes.Equal(x[i], y[i]) {
			return false
		}
	}
	return len(x) == len(y) && len(x) > 0
}

// However wrong the copy is, what carries the recurrence stays the same, bit for bit: of GDN too, whose recorded
// corrections have seen the copy.
func TestErrorOfTheCopyNeverEntersTheRecurrence(t *testing.T) {
	everyPrecision(t, twoPrecisions(), func(t *testing.T, k kind, q kernels.Precision) {
		clean := traced(t, k, q, nil)
		planted := traced(t, k, q, func(c *script) {
			l, a := c.pool.Layers()[1], c.checkpoint.LP
			share := c.share(c.s.cursor.Src)
			for h := range a.Heads {
				wrong := normals(rand.New(rand.NewPCG(1, 1)), a.Rows*a.Cols, 3, 50)
				a.EncodeHead(share, h, wrong, kernels.StateNoise{})
			}
			c.do(func(o kernels.Ops) {
				o.Upload(l.Blocks.Slice(int64(c.s.cursor.Src)*l.BlockStride, int64(len(share))), share)
			})
		})
		if equal(clean.others, planted.others) {
			t.Error("a wrong copy shows in no output: it is not read")
		}
		if !equal(clean.blocks, planted.blocks) {
			t.Error("a wrong copy changed the recurrence")
		}
		if k.config.Mamba2Layers > 0 && !equal(clean.flushed, planted.flushed) {
			t.Error("a wrong copy changed the outputs of steps that flush")
		}
	})
}

// A float32 checkpoint carries the same recurrence whatever copy is read beside it: that of one float32 checkpoint, bit
// for bit of Mamba-2, and to 1e-6 of GDN, which derives its corrections anew in another order of summation.
func TestCopyLeavesTheRecurrenceAsItIs(t *testing.T) {
	list := []kernels.Precision{{Rounding: kernels.Stochastic}}
	for lp := kernels.StateF16; lp <= kernels.StateNVFP4; lp++ {
		list = append(list, kernels.Precision{LP: lp})
	}
	everyPrecision(t, list, func(t *testing.T, k kind, q kernels.Precision) {
		want, got := traced(t, k, kernels.Precision{}, nil), traced(t, k, q, nil)
		if k.config.Mamba2Layers > 0 || !q.Two() {
			if !equal(want.blocks, got.blocks) || !equal(want.flushed, got.flushed) || !q.Two() && !equal(want.others, got.others) {
				t.Error("bits differ")
			}
			return
		}
		for i := range want.blocks {
			x, y := floatsOf(want.blocks[i]), floatsOf(got.blocks[i])
			if e := relative(y, x); !(e <= 1e-6) {
				t.Errorf("flush %d: the checkpoint is off by %.2g", i, e)
			}
		}
	})
}

// relative is the error of x in the mean of squares.
func relative(x, want []float32) float64 {
	var d, n float64
	for i, v := range want {
		d, n = d+math.Pow(float64(x[i]-v), 2), n+math.Pow(float64(v), 2)
	}
	return math.Sqrt(d / n)
}

// Moving a sequence through host memory to another slot and other blocks before every step changes no bit.
func TestSwapKeepsEveryBit(t *testing.T) {
	everyPrecision(t, precisions(), func(t *testing.T, k kind, q kernels.Precision) {
		straight := traced(t, k, q, nil)
		swapped := traced(t, k, q, func(c *script) {
			c.takeBlock() // so that the block changes
			c.swap(c.s)
			for b := range c.refs {
				if b > 0 && int32(b) != c.s.cursor.Src {
					c.refs[b] = 0
				}
			}
		})
		if !equal(straight.blocks, swapped.blocks) || !equal(straight.flushed, swapped.flushed) || !equal(straight.others, swapped.others) {
			t.Error("bits differ")
		}
	})
}

// A fork (a shared block, a copied tail) goes on as the original would have.
func TestForkGoesOnWithTheSameBits(t *testing.T) {
	everyPrecision(t, precisions(), func(t *testing.T, k kind, q kernels.Precision) {
		h := newPreciseHarness(t, k, kernels.Window{L: 6, T: 3}, q, 1, 41)
		s := h.admit()
		r := rand.New(rand.NewPCG(4, 4))
		for range 9 {
			h.step([]row{{s: s, tokens: []int{r.IntN(64), r.IntN(64)}, accepted: 1 + r.IntN(2)}}, 3)
		}
		f := h.fork(s)
		for i := range 20 {
			tokens, n := []int{r.IntN(64), r.IntN(64), r.IntN(64)}, 1+r.IntN(3)
			outs := h.step([]row{{s: s, tokens: tokens, accepted: n}, {s: f, tokens: tokens, accepted: n}}, 3)
			if !bytes.Equal(floatBytes(outs[0]), floatBytes(outs[1])) {
				t.Fatalf("step %d: outputs differ", i)
			}
			if !bytes.Equal(h.share(s.cursor.Src), h.share(f.cursor.Src)) {
				t.Fatalf("step %d: blocks differ", i)
			}
		}
	})
}

// noiseOf is the error of a long run of one sequence.
func noiseOf(t *testing.T, k kind, q kernels.Precision, steps, depth int) float64 {
	c := &script{harness: newPreciseHarness(t, k, kernels.Window{L: 8, T: depth}, q, 1, 51)}
	c.run(steps, depth)
	return c.noise()
}

// Verifying drafts rounds at other places than single steps do, and more often: where a step may append T tokens a flush
// comes after as few as L-T+1. The error stays that of single steps in the same precision, to a factor for that and for
// the luck of a few hundred tokens.
func TestSpeculationRoundsNoWorse(t *testing.T) {
	everyPrecision(t, precisions(), func(t *testing.T, k kind, q kernels.Precision) {
		single := noiseOf(t, k, q, 150, 1)
		for _, depth := range []int{2, 4, 8} {
			if e := noiseOf(t, k, q, 80, depth); !(e <= 2.5*single+1e-6) {
				t.Errorf("T=%d: error %.3g, of single steps %.3g", depth, e, single)
			}
		}
	})
}

// remembering is a kind whose states decay slowly, so that what is rounded stays.
func remembering(k kind) kind {
	forgetful := k.params
	k.params = func(r *rand.Rand) *params {
		p := forgetful(r)
		for i := range p.a {
			p.a[i] *= 0.02
		}
		return p
	}
	return k
}

// With a copy the outputs bear one rounding of a clean state; a shared checkpoint of the copy's format feeds its
// rounding back. States that forget little show it.
func TestTwoPrecisionsBeatSharedOnes(t *testing.T) {
	for _, k := range kinds() {
		k = remembering(k)
		for _, lp := range []kernels.StateFormat{kernels.StateF8, kernels.StateNVFP4} {
			shared := noiseOf(t, k, kernels.Precision{HP: lp, Rounding: kernels.Stochastic}, 250, 1)
			two := noiseOf(t, k, kernels.Precision{HP: kernels.StateF16, LP: lp, Rounding: kernels.Stochastic}, 250, 1)
			t.Logf("%s %v: shared %.3g, two precisions %.3g", k.name, lp, shared, two)
			if !(two < shared) {
				t.Errorf("%s %v: error %.3g, of a shared checkpoint %.3g", k.name, lp, two, shared)
			}
		}
	}
}

// chunks prefills a sequence of n tokens cut into pieces, in a scratch block until the last of them ends.
func (c *script) chunks(cuts ...int) {
	r := rand.New(rand.NewPCG(6, 6))
	for i, n := range cuts {
		p := row{s: c.s, scratched: true, scratch: 1, tokens: make([]int, n)}
		for j := range p.tokens {
			p.tokens[j] = r.IntN(64)
		}
		if i > 0 {
			p.stage = kernels.Resume
		}
		if i == len(cuts)-1 {
			p.stage |= kernels.Publish
		}
		if c.between != nil && i > 0 {
			c.between(c)
		}
		c.prefill([]row{{s: c.other(), tokens: []int{i}}, p})
	}
}

// other is a sequence without a scratch block.
func (c *script) other() *sequence {
	s := c.admit()
	c.release(s)
	return s
}

// prefilled is a sequence after steps and a prompt in chunks, and the error of the prompt's outputs.
func prefilled(t *testing.T, k kind, q kernels.Precision, steps int, between func(*script), cuts ...int) (share []byte, noise float64) {
	c := &script{harness: newPreciseHarness(t, k, kernels.Window{L: 8, T: 1}, q, 2, 61), between: between}
	if c.s = c.admit(); steps > 0 {
		var rows []row
		for i := range steps {
			rows = append(rows, row{s: c.s, tokens: []int{i % 64}, accepted: 1})
		}
		for i := range rows {
			c.step(rows[i:i+1], 1)
		}
	}
	c.squares, c.wanted = 0, 0
	c.chunks(cuts...)
	return c.share(c.s.cursor.Src), c.noise()
}

// A prompt is computed in float32 and rounded once: where it is cut, at the scan's own chunks, changes no bit of the
// checkpoint; wherever it is cut, its outputs are those of a float32 state.
func TestPrefillIsRoundedOnce(t *testing.T) {
	everyPrecision(t, precisions(), func(t *testing.T, k kind, q kernels.Precision) {
		whole, _ := prefilled(t, k, q, 0, nil, 192)
		parts, _ := prefilled(t, k, q, 0, nil, 64, 128)
		if !bytes.Equal(whole, parts) {
			t.Error("a prompt in two chunks leaves another checkpoint than in one")
		}
		if _, noise := prefilled(t, k, q, 0, nil, 1, 70, 3, 33, 2); !(noise <= 1e-5) {
			t.Errorf("outputs are off by %.2g", noise)
		}
	})
}

// With records before it a prompt starts from a fold into the scratch block: that is not a rounding either. A float32
// state that a copy accompanies loses nothing at all; the error before the prompt is what the steps have left.
func TestPrefillBehindRecords(t *testing.T) {
	everyPrecision(t, precisions(), func(t *testing.T, k kind, q kernels.Precision) {
		if _, noise := prefilled(t, k, q, 5, nil, 40, 3); !(noise <= 1e-5) {
			t.Errorf("no flush yet: outputs are off by %.2g", noise)
		}
		if _, noise := prefilled(t, k, q, 30, nil, 40, 3); !(noise <= tolerated(kernels.Precision{HP: q.HP})) {
			t.Errorf("outputs are off by %.2g", noise)
		}
	})
}

// The scratch block of an unfinished prefill can be kept in host memory meanwhile.
func TestScratchSurvivesASwap(t *testing.T) {
	everyPrecision(t, precisions(), func(t *testing.T, k kind, q kernels.Precision) {
		straight, _ := prefilled(t, k, q, 3, nil, 20, 30, 5)
		swapped, _ := prefilled(t, k, q, 3, func(c *script) {
			saved := make([]byte, c.pool.ScratchBytes())
			c.do(func(o kernels.Ops) { c.pool.SaveScratch(o, 1, saved) })
			c.do(func(o kernels.Ops) {
				c.pool.LoadScratch(o, nans(int64(len(saved))), 1)
				c.pool.LoadScratch(o, saved, 1)
			})
		}, 20, 30, 5)
		if !bytes.Equal(straight, swapped) {
			t.Error("bits differ")
		}
	})
}
