package kerneltest

import (
	"fmt"
	"math"

	"reprise/kernels"
)

// precisions is every format of a checkpoint that carries the recurrence and serves the reads, and every pair of formats
// of the paper and more, with both kinds of rounding; or some of them if short.
func precisions(short bool) []kernels.Precision {
	var list []kernels.Precision
	for hp := kernels.StateF32; hp <= kernels.StateNVFP4; hp++ {
		for lp := kernels.StateF32; lp <= kernels.StateNVFP4; lp++ {
			for _, r := range []kernels.Rounding{kernels.Nearest, kernels.Stochastic} {
				p := kernels.Precision{HP: hp, LP: lp, Rounding: r}
				valid := p.Validate() == nil && (p.Two() || lp == kernels.StateF32)
				plain := hp == kernels.StateF32 && (r == kernels.Stochastic || !p.Two())
				if valid && !plain && (!short || r == kernels.Stochastic || hp == kernels.StateF32) {
					list = append(list, p)
				}
			}
		}
	}
	return list
}

// inPrecision makes a case of one whose pools hold states of precision p; a device that does not take it passes.
func inPrecision(p kernels.Precision, c testcase) testcase {
	return testcase{c.name + " " + p.String(), func(b *bench) {
		if err := b.devices[device].StateSupport(p); err != nil {
			b.Logf("not run: %v", err)
			return
		}
		b.precision = p
		c.run(b)
	}}
}

// precisionCases are steps at every phase and depth, folds, scans with and without scratch blocks, placements and walks
// in every precision.
func precisionCases(short bool) []testcase {
	var list []testcase
	for _, p := range precisions(short) {
		add := func(name string, run func(b *bench)) { list = append(list, inPrecision(p, testcase{name, run})) }
		for _, k := range []layerKind{smallMamba2, smallDelta} {
			for t := 1; t <= 8; t++ {
				if w := (kernels.Window{L: 8, T: t}); !short || t == 1 || t == 4 {
					add(fmt.Sprintf("%s step T%d", k.name, t), func(b *bench) { stepCase(b, k, w, t, everyPhase(w.L)) })
				}
			}
			add(k.name+" fold", func(b *bench) { foldCase(b, k, kernels.Window{L: 8, T: 4}) })
			add(k.name+" scan", func(b *bench) { scanCase(b, k, kernels.Window{L: 8, T: 4}, []int{1, 3, 0, 65, 31}) })
			add(k.name+" scratch", func(b *bench) { scratchCase(b, k, false) })
			add(k.name+" fold and scratch", func(b *bench) { scratchCase(b, k, true) })
			add(k.name+" cuts", func(b *bench) { cutEndCase(b, k, kernels.Window{L: 8, T: 3}) })
			add(k.name+" placement", func(b *bench) { placementCase(b, k) })
			add(k.name+" scan placement", func(b *bench) { scanPlacementCase(b, k) })
			add(k.name+" walk", func(b *bench) { newWalk(b, k, kernels.Window{L: 8, T: 3}).run(20) })
		}
	}
	for i, p := range precisions(true) {
		if short && i%4 != 1 {
			continue
		}
		for _, k := range precisionKinds() {
			for _, w := range []kernels.Window{{L: 16, T: 1}, {L: 16, T: 4}, {L: 32, T: 8}} {
				if short && w.T != 4 {
					continue
				}
				list = append(list, inPrecision(p, testcase{fmt.Sprintf("%s step L%d T%d", k.name, w.L, w.T), func(b *bench) {
					stepCase(b, k, w, w.T, []int{0, 7, w.L - 2, w.L, w.L})
				}}))
			}
		}
	}
	many := precisionKinds()[1]
	return append(list, inPrecision(kernels.Precision{HP: kernels.StateNVFP4, Rounding: kernels.Stochastic}, testcase{many.name + " step of many rows", func(b *bench) {
		stepCase(b, many, kernels.Window{L: 16, T: 1}, 1, manyPhases(300, 16))
	}}))
}

// manyPhases are those of n rows of which a third flush, 40 rows in a row among them.
func manyPhases(n, window int) []int {
	phases := make([]int, n)
	for i := range phases {
		phases[i] = i % window
		if i%4 == 3 || i > 130 && i <= 170 {
			phases[i] = window
		}
	}
	return phases
}

// precisionKinds are heads as released models have them, and ones that divide into no block and no pair of elements.
func precisionKinds() []layerKind {
	return []layerKind{
		mamba2Kind(kernels.Mamba2Dims{Heads: 8, HeadDim: 80, State: 128, Groups: 2, Taps: 4}),
		mamba2Kind(kernels.Mamba2Dims{Heads: 4, HeadDim: 64, State: 128, Groups: 1, Taps: 4}),
		mamba2Kind(kernels.Mamba2Dims{Heads: 3, HeadDim: 5, State: 23, Groups: 1, Taps: 2}),
		deltaKind(kernels.DeltaDims{KeyHeads: 2, ValueHeads: 4, KeyDim: 128, ValueDim: 128, Taps: 4}),
		deltaKind(kernels.DeltaDims{KeyHeads: 1, ValueHeads: 3, KeyDim: 37, ValueDim: 7, Taps: 3}),
	}
}

// scratchCase is prefill chunks of every kind: begun or not, ending or not, behind records or not, and without a scratch
// block. Where h > 0 a fold comes first, or has left its state in the scratch block or in dst.
func scratchCase(b *bench, k layerKind, folds bool) {
	if !b.precision.Scratch() {
		return
	}
	stages := []int32{0, kernels.Publish, kernels.Resume, kernels.Resume | kernels.Publish, 0, kernels.Publish, 0, 0}
	lengths := []int{5, 1, 40, 7, 66, 3, 9, 2}
	w := kernels.Window{L: 8, T: 3}
	p := newSSMPool(b, k.make(b), w, 1+2*len(lengths), 1+3*len(lengths))
	rows := b.scanRows(w, lengths)
	i := 0
	for at := range rows {
		r := &rows[at]
		if r.n == 0 {
			continue
		}
		r.stage, r.h = stages[i], 0
		if i >= 4 && i != 6 {
			r.h = 1 + i
		}
		if i < 6 {
			r.scratch = 1 + (5*i)%11
		}
		i++
	}
	p.fill(rows, !folds)
	x := newBatch(p, rows, 0, 1)
	p.allowScan(rows)
	for _, r := range rows {
		if folds && r.scratch > 0 && r.h > 0 {
			p.scratch.mutable = append(p.scratch.mutable, p.scratchPiece(r.scratch).span)
		}
	}
	b.run(func(o kernels.Ops, s side) {
		if folds {
			x.launch(o, s, fold)
		}
		x.launch(o, s, scan)
	})
	b.close("out", manyRoundings, x.outputs())
	p.compareScan(rows)
}

// compareBlocks compares whole blocks: float32 states as numbers, others code by code.
func (p *ssmPool) compareBlocks(blocks []int) {
	p.b.Helper()
	p.compareStates(blocks, manyRoundings, func(what string, pieces, wanted []piece) { p.b.closeTo(what, manyRoundings, pieces, wanted) })
}

// compareStates is compareBlocks with a comparison of float32 states, and the tolerance of others before their rounding.
func (p *ssmPool) compareStates(blocks []int, t tolerance, numbers func(what string, pieces, wanted []piece)) {
	p.b.Helper()
	for i, a := range p.copies() {
		name := []string{"blocks", "copies"}[i]
		if a.Format != kernels.StateF32 {
			p.compareCodes(name, t, a, blocks)
			continue
		}
		var pieces []piece
		for _, block := range blocks {
			from := p.blockPiece(block).from
			pieces = append(pieces, piece{p.blocks, span{from, from + int(a.End)}, kernels.F32})
		}
		numbers(name, pieces, pieces)
	}
}

// compareCodes requires the oracle's codes, but for one in fifty, which may be a neighbour: a state that differs by the
// order of its sums is seldom rounded to another code. Equal codes may differ by their scale, which inherits the state's
// error: 2^-16 is four times what manyRoundings allows it. What is small because large numbers cancel may be as far off
// as t of the largest.
func (p *ssmPool) compareCodes(what string, t tolerance, a kernels.StateArray, blocks []int) {
	p.b.Helper()
	total, differ := 0, 0
	for _, block := range blocks {
		got, want := p.widened(device, a, block), p.widened(oracle, a, block)
		unit := math.Ldexp(1, -24) * largest(want)
		for i, v := range want {
			total++
			d := math.Abs(got[i] - v)
			if d <= math.Abs(v)*math.Ldexp(1, -16)+unit {
				continue
			}
			differ++
			if limit := codeGap(a, want, i) + float64(t)*unit; !(d <= limit) {
				p.b.Errorf("%s: element %d of block %d is %v, want %v, a neighbour may be %v away", what, i, block, got[i], v, limit)
				return
			}
		}
	}
	if differ > 2+total/50 {
		p.b.Errorf("%s: %d of %d codes differ", what, differ, total)
	}
}

func (p *ssmPool) widened(s side, a kernels.StateArray, block int) []float64 {
	at := p.blockPiece(block)
	head := make([]float32, a.Rows*a.Cols)
	var v []float64
	for h := range a.Heads {
		a.DecodeRows(head, p.blocks.after[s][at.from:at.to], h, 0)
		for _, x := range head {
			v = append(v, float64(x))
		}
	}
	return v
}

// codeGap is at least the distance of stored element i to its neighbours: of an nvfp4 block a third of its largest, and
// half as much again for a block that a neighbouring scale was chosen for.
func codeGap(a kernels.StateArray, v []float64, i int) float64 {
	x := math.Abs(v[i])
	switch a.Format {
	case kernels.StateF16:
		return max(x*math.Ldexp(1, -10), math.Ldexp(1, -24))
	case kernels.StateBF16:
		return x*math.Ldexp(1, -7) + 1e-37
	case kernels.StateF8:
		return max(x/8, largest(blockOf(a, v, i, kernels.F8Block))/448/256)
	}
	size := a.Rows * a.Cols
	tiny := largest(v[i/size*size:(i/size+1)*size]) / 448 / 256
	return largest(blockOf(a, v, i, kernels.NVFP4Block))/2 + tiny
}

// blockOf is the elements that share a scale with element i.
func blockOf(a kernels.StateArray, v []float64, i, block int) []float64 {
	row, col := i/a.Cols*a.Cols, i%a.Cols
	from := row + col/block*block
	return v[from:min(row+a.Cols, from+block)]
}
