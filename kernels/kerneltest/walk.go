package kerneltest

import (
	"bytes"
	"slices"

	"reprise/kernels"
)

// Sizes of a walk.
const (
	walkers   = 4 // sequences
	walkVocab = 40
	walkChunk = 7 // longest prefill chunk
)

// walk runs sequences over many steps of random kinds, depths and accepted lengths: begin, gather, step or fold and
// scan, commit, all on the device, as an engine enqueues them. The oracle scans the same tokens without ever replaying
// a record: a conventional recurrence.
type walk struct {
	b      *bench
	kind   recurrence
	window kernels.Window
	pool   *ssmPool // of the device
	slots  *slotSet
	oracle *ssmPool // sequence s: main state in block s, scratch in block walkers+s
	table  []matrix // a row of activations a token
	in     []matrix // of the device's batch
	out    matrix
	spare  []int // free blocks of the device
	seqs   []*walker
	memory map[string]*array
}

// walker is one sequence as the host knows it.
type walker struct {
	slot, tokens, last int // tokens are those in the state
	cursor             kernels.Cursor
	shared             []byte // contents of block Src, while somebody else holds it too

	chunk   bool  // this step: a prefill chunk
	ids     []int // this step's tokens; empty = idle
	samples []int
	accept  int // ids that stay
	first   int // first token in the batch
}

func newWalk(b *bench, k layerKind, w kernels.Window) *walk {
	kind := k.make(b)
	roomy := kernels.Window{L: 8, T: 8} // its convolution ring holds what a scan that is taken back has overwritten
	x := &walk{
		b: b, kind: kind, window: w, memory: map[string]*array{},
		pool: newSSMPool(b, kind, w, 1+walkers, 1+3*walkers),
	}
	precision := b.precision
	b.precision = kernels.Precision{}
	x.oracle = newSSMPool(b, kind, roomy, 1+walkers, 1+2*walkers)
	b.precision = precision
	specs := make([]slotSpec, walkers)
	for i := range specs {
		specs[i].MaxLen = 1 << 30
	}
	x.slots = newSlotSet(b, walkVocab, w.T, specs)
	all := (walkers+1)*w.T + walkers*max(walkChunk, w.T)
	for _, cols := range kind.inputs() {
		x.table = append(x.table, b.input("table", walkVocab, cols))
		x.in = append(x.in, b.inout("in", all, cols))
	}
	x.out = b.inout("out", all, kind.outputs())
	for _, name := range []string{"ids", "pos", "slot", "n", "want", "pslot", "pn", "start", "given", "sampled", "final", "accepted", "finish", "plain ids", "plain slot", "plain n", "plain start"} {
		x.memory[name] = b.outInts(name, all)
	}
	for i := range 3 * walkers {
		x.spare = append(x.spare, 1+i)
	}
	for i := range walkers {
		s := &walker{slot: 1 + i, cursor: kernels.Cursor{Src: x.take(), Dst: -1}}
		x.seqs = append(x.seqs, s)
		x.reset(s)
	}
	for _, a := range b.arrays {
		a.allow(0, len(a.before))
	}
	return x
}

// take is a random free block, release gives one back.
func (x *walk) take() int32 {
	i := x.b.IntN(len(x.spare))
	block := x.spare[i]
	x.spare = slices.Delete(x.spare, i, i+1)
	return int32(block)
}

func (x *walk) release(block int32) { x.spare = append(x.spare, int(block)) }

// reset gives a slot to a new sequence: its block is cleared, its rings keep the garbage of the one before.
func (x *walk) reset(s *walker) {
	if s.cursor.Dst >= 0 && s.cursor.Dst != s.cursor.Src {
		x.release(s.cursor.Dst)
	}
	s.cursor = kernels.Cursor{Src: s.cursor.Src, Dst: s.cursor.Src}
	s.tokens, s.last, s.shared = 0, x.b.IntN(walkVocab), nil
	own, main := x.pool.blockPiece(int(s.cursor.Src)), x.oracle.blockPiece(s.slot)
	x.b.do(device, func(o kernels.Ops) { o.Zero(x.pool.blocks.buf[device].Slice(int64(own.from), int64(own.to-own.from))) })
	for _, side := range []side{oracle, plain} {
		x.b.do(side, func(o kernels.Ops) {
			o.Zero(x.oracle.blocks.buf[side].Slice(int64(main.from), int64(main.to-main.from)))
		})
	}
	x.write(s)
}

// share has somebody else hold the block too: a flush must write another one.
func (x *walk) share(s *walker) {
	if s.cursor.Dst != s.cursor.Src {
		return
	}
	s.cursor.Dst = x.take()
	s.shared = x.block(s.cursor.Src)
	x.write(s)
}

func (x *walk) block(i int32) []byte {
	at := x.pool.blockPiece(int(i))
	data := make([]byte, at.to-at.from)
	x.b.do(device, func(o kernels.Ops) {
		o.Download(data, x.pool.blocks.buf[device].Slice(int64(at.from), int64(len(data))))
	})
	return data
}

// write puts a sequence's cursor and last token on the device.
func (x *walk) write(s *walker) {
	at := func(a *array) kernels.Buffer { return a.buf[device].Slice(int64(4*s.slot), 4) }
	c := s.cursor
	x.b.do(device, func(o kernels.Ops) {
		for i, v := range []int32{c.Origin, c.H, c.Src, c.Dst} {
			o.Upload(at(x.slots.cursor[i]), intBytes([]int{int(v)}))
		}
		o.Upload(at(x.slots.last), intBytes([]int{s.last}))
		o.Upload(at(x.slots.active), intBytes([]int{1}))
	})
}

// plan decides what every sequence does in the next step.
func (x *walk) plan() {
	for _, s := range x.seqs {
		switch x.b.IntN(20) {
		case 0:
			x.reset(s)
		case 1, 2:
			x.share(s)
		}
		s.ids, s.samples, s.accept = nil, nil, 0
		s.chunk = x.b.IntN(6) == 0
		switch {
		case s.chunk:
			s.ids, s.samples = x.tokens(1+x.b.IntN(walkChunk)), x.tokens(1)
			s.accept = len(s.ids)
		case x.b.IntN(8) > 0:
			x.planStep(s)
		}
	}
}

// planStep chooses drafts and the samples that accept some of them.
func (x *walk) planStep(s *walker) {
	n := 1 + x.b.IntN(x.window.T)
	s.ids = append([]int{s.last}, x.tokens(n-1)...)
	s.accept = 1 + x.b.IntN(n)
	s.samples = append(slices.Clone(s.ids[1:]), x.b.IntN(walkVocab))
	if s.accept < n {
		s.samples[s.accept-1] = (s.ids[s.accept] + 1) % walkVocab
	}
}

func (x *walk) tokens(n int) []int {
	list := make([]int, n)
	for i := range list {
		list[i] = x.b.IntN(walkVocab)
	}
	return list
}

// run walks the given number of steps. A step that goes astray ends it; the tolerance is for all outputs together, since
// the norm of a small output magnifies rounding, in the baseline as on the device.
func (x *walk) run(steps int) {
	var got, base, want []float64
	astray := 1e-3
	if x.out.dtype != kernels.F32 {
		astray = 8 * precision(x.out.dtype)
	}
	if x.b.precision != (kernels.Precision{}) {
		astray = coarse(x.b.precision)
	}
	for i := range steps {
		x.plan()
		out := x.onDevice()
		right := x.scan(oracle)
		if err := distance(out, right, norm); !(err <= astray*norm(right)) {
			x.b.Fatalf("step %d: norm error %.3g of %.3g", i, err, norm(right))
		}
		got, want, base = append(got, out...), append(want, right...), append(base, x.scan(plain)...)
	}
	if x.b.precision == (kernels.Precision{}) {
		x.b.compare("out", manyRoundings, x.out.dtype, got, base, want)
	}
	for _, a := range x.b.arrays {
		x.b.fetch(a, device)
	}
}

// coarse is how far the outputs of rounded states may be from those of exact ones, by the coarser format: a few times
// what the formats' units of the last place do to a sum of many elements.
func coarse(p kernels.Precision) float64 {
	switch min(p.HP.Bits(), p.Read().Bits()) {
	case 16:
		return 0.03
	case 8:
		return 0.2
	}
	return 0.7
}

// check follows the commit: cursors and last tokens must be as the rules say, and a block that is held by somebody else
// as it was.
func (x *walk) check() {
	read := func(a *array) []int {
		data := make([]byte, len(a.before))
		x.b.do(device, func(o kernels.Ops) { o.Download(data, a.buf[device]) })
		return ints(data)
	}
	var cursors [4][]int
	for i := range cursors {
		cursors[i] = read(x.slots.cursor[i])
	}
	last := read(x.slots.last)
	for _, s := range x.seqs {
		before := s.cursor
		x.advance(s)
		got := kernels.Cursor{Origin: int32(cursors[0][s.slot]), H: int32(cursors[1][s.slot]), Src: int32(cursors[2][s.slot]), Dst: int32(cursors[3][s.slot])}
		if got != s.cursor || last[s.slot] != s.last {
			x.b.Fatalf("slot %d after %d of %d tokens: cursor %+v, last %d, want %+v, %d", s.slot, s.accept, len(s.ids), got, last[s.slot], s.cursor, s.last)
		}
		if s.shared == nil {
			continue
		}
		if !bytes.Equal(x.block(before.Src), s.shared) {
			x.b.Fatalf("slot %d wrote block %d, which is shared", s.slot, before.Src)
		}
		if s.cursor.Src != before.Src {
			x.release(before.Src)
			s.shared = nil
		}
	}
}

// advance is the host's idea of a commit.
func (x *walk) advance(s *walker) {
	n := int32(len(s.ids))
	if s.chunk {
		s.cursor = s.cursor.CommitPrefill(n)
		s.last = s.samples[0]
	} else if n > 0 {
		s.cursor = s.cursor.CommitStep(n, int32(s.accept), int32(x.window.L))
		s.last = s.samples[s.accept-1]
	}
	s.tokens += s.accept
	if at := int(s.cursor.Origin + s.cursor.H); at != s.tokens {
		x.b.Fatalf("slot %d: cursor at %d, %d tokens accepted", s.slot, at, s.tokens)
	}
}
