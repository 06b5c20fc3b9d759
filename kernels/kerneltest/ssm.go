package kerneltest

import (
	"fmt"

	"reprise/kernels"
)

// layerKind makes a recurrence of some shape.
type layerKind struct {
	name string
	make func(b *bench) recurrence
}

func mamba2Kind(d kernels.Mamba2Dims) layerKind {
	return layerKind{fmt.Sprintf("mamba2 %v", d), func(b *bench) recurrence { return newMamba2(b, d) }}
}

func deltaKind(d kernels.DeltaDims) layerKind {
	return layerKind{fmt.Sprintf("delta %v", d), func(b *bench) recurrence { return newDelta(b, d) }}
}

// Every window is tried on the small layers; the others have odd, single and released shapes.
var (
	smallMamba2 = mamba2Kind(kernels.Mamba2Dims{Heads: 4, HeadDim: 8, State: 16, Groups: 2, Taps: 4})
	smallDelta  = deltaKind(kernels.DeltaDims{KeyHeads: 2, ValueHeads: 4, KeyDim: 8, ValueDim: 16, Taps: 4})
)

func otherKinds() []layerKind {
	clamped := kernels.Mamba2Dims{Heads: 4, HeadDim: 8, State: 16, Groups: 4, Taps: 3}
	return []layerKind{
		mamba2Kind(kernels.Mamba2Dims{Heads: 3, HeadDim: 5, State: 7, Groups: 1, Taps: 2}),
		mamba2Kind(kernels.Mamba2Dims{Heads: 1, HeadDim: 1, State: 1, Groups: 1, Taps: 4}),
		mamba2Kind(kernels.Mamba2Dims{Heads: 4, HeadDim: 64, State: 128, Groups: 2, Taps: 4}),
		{"mamba2 clamped", func(b *bench) recurrence { return newClampedMamba2(b, clamped) }},
		deltaKind(kernels.DeltaDims{KeyHeads: 1, ValueHeads: 3, KeyDim: 5, ValueDim: 7, Taps: 3}),
		deltaKind(kernels.DeltaDims{KeyHeads: 2, ValueHeads: 2, KeyDim: 1, ValueDim: 1, Taps: 4}),
		deltaKind(kernels.DeltaDims{KeyHeads: 1, ValueHeads: 2, KeyDim: 128, ValueDim: 128, Taps: 4}),
	}
}

// releasedKinds are heads as released models have them.
func releasedKinds() []layerKind {
	return []layerKind{
		mamba2Kind(kernels.Mamba2Dims{Heads: 8, HeadDim: 80, State: 128, Groups: 2, Taps: 4}),
		mamba2Kind(kernels.Mamba2Dims{Heads: 4, HeadDim: 64, State: 128, Groups: 1, Taps: 4}),
		deltaKind(kernels.DeltaDims{KeyHeads: 2, ValueHeads: 4, KeyDim: 128, ValueDim: 128, Taps: 4}),
	}
}

// walkCases walks every window, and released heads at those that kernels are made for; together they are some thousand
// steps, or some hundred if short.
func walkCases(short bool) []testcase {
	steps := 60
	if short {
		steps = 10
	}
	var list []testcase
	add := func(k layerKind, w kernels.Window) {
		list = append(list, testcase{fmt.Sprintf("%s walk L%d T%d", k.name, w.L, w.T), func(b *bench) { newWalk(b, k, w).run(steps) }})
	}
	for _, k := range []layerKind{smallMamba2, smallDelta} {
		for _, w := range windows(short) {
			add(k, w)
		}
	}
	for _, k := range releasedKinds() {
		for _, w := range []kernels.Window{{L: 16, T: 1}, {L: 16, T: 4}, {L: 32, T: 8}} {
			add(k, w)
		}
	}
	return list
}

// windows are the windows of the paper's sweep with every T up to 8, or some of them if short.
func windows(short bool) []kernels.Window {
	var list []kernels.Window
	for _, l := range []int{1, 4, 8, 16, 32} {
		for t := 1; t <= min(l, 8); t++ {
			if !short || t <= 1 || t == 3 && l < 16 || t == 4 && l == 16 || t == 8 && l == 32 {
				list = append(list, kernels.Window{L: l, T: t})
			}
		}
	}
	return list
}

func ssmCases(short bool) []testcase {
	var list []testcase
	add := func(name string, run func(b *bench)) { list = append(list, testcase{name, run}) }
	for _, k := range []layerKind{smallMamba2, smallDelta} {
		for _, w := range windows(short) {
			add(fmt.Sprintf("%s step L%d T%d", k.name, w.L, w.T), func(b *bench) { stepCase(b, k, w, w.T, everyPhase(w.L)) })
		}
		add(k.name+" step below the window's T", func(b *bench) { stepCase(b, k, kernels.Window{L: 8, T: 6}, 2, everyPhase(8)) })
		add(k.name+" step wide", func(b *bench) { b.wide = true; stepCase(b, k, kernels.Window{L: 8, T: 3}, 3, everyPhase(8)) })
		add(k.name+" placement", func(b *bench) { placementCase(b, k) })
		add(k.name+" scan placement", func(b *bench) { scanPlacementCase(b, k) })
		add(k.name+" fold and scan", func(b *bench) { foldScanCase(b, k) })
		add(k.name+" wrong rows", func(b *bench) { wrongRowsCase(b, k) })
	}
	for _, k := range append(otherKinds(), smallMamba2, smallDelta) {
		w := kernels.Window{L: 8, T: 4}
		add(k.name+" step", func(b *bench) { stepCase(b, k, w, 4, []int{0, 1, 4, 5, 8}) })
		add(k.name+" fold", func(b *bench) { foldCase(b, k, w) })
		add(k.name+" scan", func(b *bench) { scanCase(b, k, w, []int{1, 2, 3, 0, 4, 63, 65, 31}) })
		add(k.name+" scan wide", func(b *bench) { b.wide = true; scanCase(b, k, w, []int{5, 17}) })
		add(k.name+" cuts", func(b *bench) { cutCase(b, k, w) })
		if !short {
			add(k.name+" split", func(b *bench) { splitCase(b, k, 70, []int{2, 33, 65}) })
			add(k.name+" split at cuts", func(b *bench) { cutSplitCase(b, k) })
		}
	}
	list = append(list, releasedCases(short)...)
	for _, k := range []layerKind{smallMamba2, smallDelta} {
		w := kernels.Window{L: 16, T: 4}
		add(k.name+" long scan", func(b *bench) { scanCase(b, k, w, []int{64, 127, 300, 128, 129, 257}) })
		add(k.name+" short split", func(b *bench) { splitCase(b, k, 40, []int{1, 2, 3, 4, 37, 39}) })
		if !short {
			add(k.name+" long split", func(b *bench) { splitCase(b, k, 300, []int{1, 128, 200}) })
		}
	}
	return list
}

// releasedCases are steps and scans of heads as released models have them, at windows that kernels are made for.
func releasedCases(short bool) []testcase {
	var list []testcase
	kinds := releasedKinds()
	for _, k := range append(kinds, mamba2Kind(kernels.Mamba2Dims{Heads: 2, HeadDim: 128, State: 128, Groups: 2, Taps: 4})) {
		list = append(list,
			testcase{k.name + " scan", func(b *bench) {
				scanCase(b, k, kernels.Window{L: 16, T: 4}, []int{64, 1, 129, 31, 2, 0, 65, 300, 3, 63})
			}},
			testcase{k.name + " cuts", func(b *bench) { cutCase(b, k, kernels.Window{L: 16, T: 4}) }},
			testcase{k.name + " fold and scan", func(b *bench) { foldScanCase(b, k) }},
			testcase{k.name + " scan placement", func(b *bench) { scanPlacementCase(b, k) }})
		if !short {
			list = append(list,
				testcase{k.name + " split", func(b *bench) { splitCase(b, k, 200, []int{1, 64, 130}) }},
				testcase{k.name + " split at cuts", func(b *bench) { cutSplitCase(b, k) }})
		}
	}
	for _, k := range kinds {
		add := func(name string, w kernels.Window, t int, phases []int) {
			list = append(list, testcase{fmt.Sprintf("%s %s L%d T%d", k.name, name, w.L, t), func(b *bench) { stepCase(b, k, w, t, phases) }})
		}
		for _, w := range []kernels.Window{{L: 16, T: 1}, {L: 16, T: 2}, {L: 16, T: 4}, {L: 16, T: 8}, {L: 32, T: 1}, {L: 32, T: 4}, {L: 32, T: 8}, {L: 48, T: 4}} {
			if short && w.T == 1 && w.L > 16 {
				continue
			}
			add("step", w, w.T, []int{0, 1, 7, w.L / 2, w.L/2 + 1, w.L - 1, w.L})
			add("single step", w, w.T, []int{w.L - w.T/2})
		}
		if !short {
			add("steps", kernels.Window{L: 16, T: 4}, 3, repeated(everyPhase(16), 5))
			add("steps", kernels.Window{L: 32, T: 8}, 8, repeated(everyPhase(32), 3))
		}
	}
	return list
}

func repeated(v []int, n int) []int {
	var list []int
	for range n {
		list = append(list, v...)
	}
	return list
}

func everyPhase(l int) []int {
	var list []int
	for h := 0; h <= l; h++ {
		list = append(list, h)
	}
	return list
}

// origins are tried in turn: the start of a sequence, inside the convolution's reach, and far behind.
var origins = []int{0, 1, 2, 5, 1000, 123_457}

// stepRows is a row at every given phase, n from 1 to t in turn, every other one sharing its source block, and between
// them null rows and rows that are not active. Slots and blocks are in a random order.
func (b *bench) stepRows(phases []int, t int) []ssmRow {
	slots, blocks := b.Perm(len(phases)*2), b.Perm(len(phases)*3)
	var list []ssmRow
	for i, h := range phases {
		r := ssmRow{slot: 1 + slots[i], n: 1 + (t-1+i)%t, h: h, origin: origins[b.IntN(len(origins))], src: 1 + blocks[2*i], seed: b.Uint64()}
		r.dst = r.src
		if i%2 == 1 {
			r.dst = 1 + blocks[2*i+1]
		}
		list = append(list, r)
		if i%5 == 0 {
			list = append(list, ssmRow{})
		}
		if i%7 == 1 {
			idle := r
			idle.slot, idle.n, idle.src, idle.dst = 1+slots[len(phases)+i], 0, 1+blocks[2*len(phases)+i], 1+blocks[2*len(phases)+i]
			list = append(list, idle)
		}
	}
	return list
}

// stepCase is one launch of step rows: outputs, records, raw rows and flushed blocks, and nothing else changed.
func stepCase(b *bench, k layerKind, w kernels.Window, t int, phases []int) {
	p := newSSMPool(b, k.make(b), w, 1+2*len(phases), 1+3*len(phases))
	rows := b.stepRows(phases, t)
	p.fill(rows, false)
	x := newBatch(p, rows, t, 2)
	p.allowStep(rows)
	b.run(func(o kernels.Ops, s side) { x.launch(o, s, step) })
	b.close("out", manyRoundings, x.outputs())
	b.zero("padding", x.padding())
	p.compareStep(rows)
}

// allowStep lets a step write its records, its raw rows and the blocks of flushing rows.
func (p *ssmPool) allowStep(rows []ssmRow) {
	p.rings.fixed()
	p.blocks.fixed()
	for _, r := range rows {
		for i := range r.n {
			for _, f := range p.recordFields() {
				p.rings.mutable = append(p.rings.mutable, p.ringRow(r.slot, f, r.position()+i).span)
			}
		}
		if r.flushes(p.window) {
			p.blocks.mutable = append(p.blocks.mutable, p.blockPiece(r.dst).span)
		}
	}
}

func (p *ssmPool) compareStep(rows []ssmRow) {
	p.b.Helper()
	p.b.close("records x", manyRoundings, p.records(rows, p.layout.X))
	p.b.close("records b", manyRoundings, p.records(rows, p.layout.B))
	p.b.close("records decay", fewRoundings, p.records(rows, p.layout.Decay))
	p.b.close("raw rows", exactly, p.records(rows, p.layout.Conv))
	if p.layout.V.Rows > 0 {
		p.b.close("records v", manyRoundings, p.records(rows, p.layout.V))
		p.b.close("records beta", fewRoundings, p.records(rows, p.layout.Beta))
	}
	var flushed []int
	for _, r := range rows {
		if r.flushes(p.window) {
			flushed = append(flushed, r.dst)
		}
	}
	p.compareBlocks(flushed)
}

// records is what the rows append to one ring.
func (p *ssmPool) records(rows []ssmRow, f kernels.Field) []piece {
	var list []piece
	for _, r := range rows {
		for i := range r.n {
			list = append(list, p.ringRow(r.slot, f, r.position()+i))
		}
	}
	return list
}

// foldCase folds rows at every phase, also ones with n = 0, which are left alone.
func foldCase(b *bench, k layerKind, w kernels.Window) {
	p := newSSMPool(b, k.make(b), w, 1+2*(w.L+1), 1+3*(w.L+1))
	rows := b.stepRows(everyPhase(w.L), 3)
	p.fill(rows, false)
	x := newBatch(p, rows, 0, 0)
	x.out.fixed()
	var folded []int
	for _, r := range rows {
		if r.n > 0 && r.h > 0 {
			folded = append(folded, r.dst)
			p.blocks.mutable = append(p.blocks.mutable, p.blockPiece(r.dst).span)
		}
	}
	b.run(func(o kernels.Ops, s side) { x.launch(o, s, fold) })
	p.compareBlocks(folded)
}

// scanRows is rows of the given lengths, at phase 0 and others in turn.
func (b *bench) scanRows(w kernels.Window, lengths []int) []ssmRow {
	rows := b.stepRows(make([]int, len(lengths)), 1)
	i := 0
	for at := range rows {
		if rows[at].n == 0 {
			continue
		}
		rows[at].n, rows[at].h = lengths[i], i%2*b.IntN(w.L+1)
		i++
	}
	return rows
}

// scanCase is one launch of packed rows. Where h > 0 it must read what the fold left in dst.
func scanCase(b *bench, k layerKind, w kernels.Window, lengths []int) {
	p := newSSMPool(b, k.make(b), w, 1+2*len(lengths), 1+3*len(lengths))
	rows := b.scanRows(w, lengths)
	p.scans(rows, manyRoundings)
}

// scans launches a scan of rows from what is random, and compares all that it leaves, outputs to t.
func (p *ssmPool) scans(rows []ssmRow, t tolerance) {
	p.b.Helper()
	p.fill(rows, true)
	x := newBatch(p, rows, 0, 3)
	p.allowScan(rows)
	p.b.run(func(o kernels.Ops, s side) { x.launch(o, s, scan) })
	p.b.close("out", t, x.outputs())
	p.compareScan(rows)
}

// allowScan lets a scan write its blocks, scratch blocks and convolution rings, and what it leaves at cuts.
func (p *ssmPool) allowScan(rows []ssmRow) {
	p.rings.fixed()
	p.blocks.fixed()
	cuts, tails := p.cuts(rows)
	for _, block := range cuts {
		p.blocks.mutable = append(p.blocks.mutable, p.blockPiece(block).span)
	}
	for _, t := range tails {
		p.tails.mutable = append(p.tails.mutable, t.span)
	}
	for _, r := range rows {
		if r.n == 0 {
			continue
		}
		if r.publishes() {
			p.blocks.mutable = append(p.blocks.mutable, p.blockPiece(r.dst).span)
		} else {
			p.scratch.mutable = append(p.scratch.mutable, p.scratchPiece(r.scratch).span)
		}
		for i := range p.layout.Conv.Rows {
			p.rings.mutable = append(p.rings.mutable, p.ringRow(r.slot, p.layout.Conv, i).span)
		}
	}
}

// cuts is the blocks and the raw rows of the cuts that there are.
func (p *ssmPool) cuts(rows []ssmRow) (blocks []int, tails []piece) {
	most := mostCuts(rows)
	for i, r := range rows {
		for j, c := range r.cuts {
			if c.place > r.n {
				continue
			}
			blocks = append(blocks, c.block)
			for t := range p.kind.taps() - 1 {
				tails = append(tails, p.tail(i*most+j, t))
			}
		}
	}
	return blocks, tails
}

// compareScan compares the final blocks, the raw rows that the next token's convolution needs, and both at cuts.
func (p *ssmPool) compareScan(rows []ssmRow) {
	p.b.Helper()
	var scratch []piece
	blocks, tails := p.cuts(rows)
	for _, r := range rows {
		if r.n == 0 {
			continue
		}
		if r.publishes() {
			blocks = append(blocks, r.dst)
		} else {
			scratch = append(scratch, p.scratchPiece(r.scratch))
		}
		end := r.position() + r.n
		for i := max(0, end-p.kind.taps()+1); i < end; i++ {
			tails = append(tails, p.ringRow(r.slot, p.layout.Conv, i))
		}
	}
	p.compareStates(blocks, p.scanned(), p.closeScanned)
	p.closeScanned("scratch", scratch, scratch)
	p.b.close("raw tail", exactly, tails)
}

// scanned is the tolerance of a state behind a scan.
func (p *ssmPool) scanned() tolerance {
	if through := p.layout.X.DType; through != kernels.F32 {
		return rounded(manyRoundings, through)
	}
	return manyRoundings
}

// closeScanned compares states behind a scan. It leaves no records, so that it may round corrections as records are, or
// later, or not at all; every one depends on all before it. Mamba-2's x and B are rounded by the convolution, once.
func (p *ssmPool) closeScanned(what string, blocks, wanted []piece) {
	p.b.Helper()
	_, corrects := p.kind.(*delta)
	switch through := p.layout.X.DType; {
	case through == kernels.F32 || len(blocks) == 0:
		p.b.closeTo(what, manyRoundings, blocks, wanted)
	case corrects:
		p.b.closeTo(what, p.scanned(), blocks, wanted)
	default:
		p.b.closeMostly(what, manyRoundings, through, blocks, wanted)
	}
}

// splitCase scans one sequence whole and cut in two: the parts must agree with the whole.
func splitCase(b *bench, k layerKind, length int, cuts []int) {
	kind, w := k.make(b), kernels.Window{L: 8, T: 4}
	seed := b.Uint64()
	for _, cut := range cuts {
		p := newSSMPool(b, kind, w, 3, 3)
		whole := ssmRow{slot: 1, n: length, origin: 1, src: 1, dst: 1, seed: seed}
		parts := whole
		parts.slot, parts.src, parts.dst = 2, 2, 2
		rows := []ssmRow{whole, parts}
		p.fill(rows, false)
		x := newBatch(p, rows, 0, 0)
		p.allowScan(rows)
		p.cutScan(x, parts, cut)
		b.closeTo(fmt.Sprintf("cut at %d", cut), manyRoundings, x.out.part(length, length), x.out.part(0, length))
		p.closeScanned(fmt.Sprintf("block after a cut at %d", cut), []piece{p.blockPiece(2)}, []piece{p.blockPiece(1)})
	}
}

// cutScan runs the whole row, then the first and the second part of the other.
func (p *ssmPool) cutScan(x *batch, parts ssmRow, cut int) {
	b, from := p.b, x.rows[1].first
	slots, lengths := b.ints("slots", 1, 2), b.ints("n", parts.n, cut, parts.n-cut)
	starts := b.ints("starts", 0, from, from+cut)
	p.cursor[0].allow(0, 4*p.slots)
	launch := func(o kernels.Ops, s side, slot, row int, n int) {
		c := call{cursors: p.cursors(s), state: p.state(s), out: x.out.on(s)}
		for _, m := range x.in {
			c.in = append(c.in, m.on(s))
		}
		c.rows = kernels.Rows{Count: 1, Tokens: n, MaxLen: n, Slot: slots.buf[s].Slice(int64(4*slot), 4), N: lengths.buf[s].Slice(int64(4*row), 4), Start: starts.buf[s].Slice(int64(4*row), 4)}
		if row > 0 {
			c.rows.First = from + cut*(row-1)
		}
		p.kind.launch(o, s, scan, c)
	}
	at := intBytes([]int{parts.origin + cut})
	b.run(func(o kernels.Ops, s side) {
		launch(o, s, 0, 0, parts.n)
		launch(o, s, 1, 1, cut)
		o.Upload(p.cursor[0].buf[s].Slice(8, 4), at)
		launch(o, s, 1, 2, parts.n-cut)
	})
}

// foldScanCase does what a prefill chunk on a slot with records does: fold, then scan, in one program.
func foldScanCase(b *bench, k layerKind) {
	w := kernels.Window{L: 8, T: 3}
	lengths := []int{1, 40, 7, 2, 19, 65}
	p := newSSMPool(b, k.make(b), w, 1+2*len(lengths), 1+3*len(lengths))
	rows := b.scanRows(w, lengths)
	p.fill(rows, false)
	x := newBatch(p, rows, 0, 1)
	p.allowScan(rows)
	b.run(func(o kernels.Ops, s side) {
		x.launch(o, s, fold)
		x.launch(o, s, scan)
	})
	b.close("out", manyRoundings, x.outputs())
	p.compareScan(rows)
}

// wrongRowsCase gives packed rows to the step, and step rows to scan and fold.
func wrongRowsCase(b *bench, k layerKind) {
	p := newSSMPool(b, k.make(b), kernels.Window{L: 8, T: 3}, 2, 2)
	rows := []ssmRow{{slot: 1, n: 2, h: 1, src: 1, dst: 1}}
	p.fill(rows, false)
	padded, packed := newBatch(p, rows, 3, 0), newBatch(p, rows, 0, 0)
	b.refused("step of packed rows", func(o kernels.Ops) { packed.launch(o, device, step) })
	b.refused("scan of step rows", func(o kernels.Ops) { padded.launch(o, device, scan) })
	b.refused("fold of step rows", func(o kernels.Ops) { padded.launch(o, device, fold) })
}
