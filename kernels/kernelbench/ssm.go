package kernelbench

import (
	"fmt"

	"reprise/kernels"
)

// mixer is an SSM layer's shape under its name in the tables.
type mixer struct {
	name   string
	mamba2 kernels.Mamba2Dims
	delta  kernels.DeltaDims
}

var mixers = []mixer{
	{name: "nano", mamba2: kernels.Mamba2Dims{Heads: 96, HeadDim: 80, State: 128, Groups: 8, Taps: 4}},
	{name: "super", mamba2: kernels.Mamba2Dims{Heads: 128, HeadDim: 64, State: 128, Groups: 8, Taps: 4}},
	{name: "q4b", delta: kernels.DeltaDims{KeyHeads: 16, ValueHeads: 32, KeyDim: 128, ValueDim: 128, Taps: 4}},
	{name: "q122b", delta: kernels.DeltaDims{KeyHeads: 16, ValueHeads: 64, KeyDim: 128, ValueDim: 128, Taps: 4}},
}

// tinyMixers only show that the tables run.
var tinyMixers = []mixer{
	{name: "tiny", mamba2: kernels.Mamba2Dims{Heads: 4, HeadDim: 64, State: 128, Groups: 2, Taps: 4}},
	{name: "tiny", delta: kernels.DeltaDims{KeyHeads: 2, ValueHeads: 4, KeyDim: 128, ValueDim: 128, Taps: 4}},
}

func (m mixer) isDelta() bool { return m.delta.ValueHeads > 0 }

func (m mixer) op(kind string) string {
	if m.isDelta() {
		return "delta " + kind
	}
	return "mamba2 " + kind
}

// state is the elements of one checkpoint, conv the channels, out the width of the output, aux the narrow inputs.
func (m mixer) state() int {
	if d := m.delta; m.isDelta() {
		return d.ValueHeads * d.ValueDim * d.KeyDim
	}
	return m.mamba2.Heads * m.mamba2.HeadDim * m.mamba2.State
}

func (m mixer) widths() (conv, out, aux int) {
	if m.isDelta() {
		return m.delta.Conv(), m.delta.Values(), 2 * m.delta.ValueHeads
	}
	return m.mamba2.Conv(), m.mamba2.Inner(), m.mamba2.Heads
}

func (m mixer) ring(w kernels.Window, act kernels.DType, p kernels.Precision) kernels.RingLayout {
	if m.isDelta() {
		return kernels.DeltaRing(m.delta, w, act, p)
	}
	return kernels.Mamba2Ring(m.mamba2, w, act)
}

func (m mixer) checkpoint(p kernels.Precision) kernels.CheckpointLayout {
	if m.isDelta() {
		return kernels.DeltaCheckpoint(m.delta, p)
	}
	return kernels.Mamba2Checkpoint(m.mamba2, p)
}

func ssmCases(small bool) (out []maker) {
	rows, tokens, chunks := []int{1, 8, 32, 128, 256}, []int{1, 4, 8}, []int{64, 2048}
	shapes := mixers
	if small {
		rows, tokens, chunks = []int{2}, []int{1, 2}, []int{65}
		shapes = tinyMixers
	}
	for _, m := range shapes {
		for _, b := range rows {
			for _, t := range tokens {
				out = append(out, maker{m.op("step"), fmt.Sprintf("%s B=%d T=%d", m.name, b, t), func(l *lab) Case { return ssmStep(l, m, b, t, small) }})
			}
		}
		for _, n := range chunks {
			out = append(out, maker{m.op("scan"), fmt.Sprintf("%s %d tokens", m.name, n), func(l *lab) Case { return ssmScan(l, m, n) }})
		}
	}
	return out
}

// ssmLab is the memory of some layers for some rows each.
type ssmLab struct {
	mixer
	all ssmLayer // of all slots
	run func(o kernels.Ops, l ssmLayer, rows kernels.Rows, kind string)
}

// ssmLayer is what the steps of a layer find its rows in.
type ssmLayer struct {
	cursors kernels.Cursors
	state   kernels.State
}

// layer is slots i rows .. (i + 1) rows of all as slots 0 .. rows of a layer: devices may start on a layer before they have
// ended another, and steps of a model meet each layer once. The blocks are those of all.
func (l ssmLayer) layer(i, rows int) ssmLayer {
	from, slots := int64(i*rows), int64(rows+1)
	l.state.Rings = l.state.Rings.Slice(from*l.state.RingStride, slots*l.state.RingStride)
	for _, b := range []*kernels.Buffer{&l.cursors.Origin, &l.cursors.H, &l.cursors.Src, &l.cursors.Dst} {
		*b = b.Slice(4*from, 4*slots)
	}
	return l
}

func newSSM(l *lab, m mixer, w kernels.Window, format kernels.Precision, slots, tokens int, h func(slot int) int) *ssmLab {
	s := &ssmLab{mixer: m}
	layout, checkpoint := m.ring(w, l.act(), format), m.checkpoint(format)
	s.all.state = kernels.State{
		Blocks: l.checkpoints(checkpoint, slots+1), BlockStride: checkpoint.Bytes(),
		Rings: l.floats(l.act(), layout.Bytes/int64(l.act().Size())*int64(slots+1), 0.1), RingStride: layout.Bytes,
		Layout: layout, Window: w, Precision: format,
	}
	l.zeroDecays(s, slots)
	self := l.sequence(slots+1, func(i int) int { return i })
	s.all.cursors = kernels.Cursors{
		Origin: l.sequence(slots+1, func(i int) int { return 64 + i%7 }), H: l.sequence(slots+1, h), Src: self, Dst: self,
	}
	conv, out, aux := m.widths()
	in, z, narrow, y := l.mat(tokens, conv, 1), l.mat(tokens, out, 1), l.mat(tokens, aux, 1), l.mat(tokens, out, 0)
	f := func(n int, spread float32) kernels.Buffer { return l.floats(kernels.F32, int64(n), spread) }
	convW := f(conv*4, 0.5)
	if m.isDelta() {
		d := m.delta
		p := kernels.Delta{
			Dims: d, QKV: in, Z: z, B: narrow.ColRange(0, d.ValueHeads), A: narrow.ColRange(d.ValueHeads, d.ValueHeads),
			ConvW: convW, DecayA: l.negative(d.ValueHeads), DtBias: f(d.ValueHeads, 1), NormW: f(d.ValueDim, 1), Eps: 1e-6, Out: y,
		}
		s.run = func(o kernels.Ops, l ssmLayer, rows kernels.Rows, kind string) {
			p.Rows, p.Cursors, p.State = rows, l.cursors, l.state
			if kind == "step" {
				o.DeltaStep(p)
			} else {
				o.DeltaScan(p)
			}
		}
		return s
	}
	d := m.mamba2
	p := kernels.Mamba2{
		Dims: d, Z: z, XBC: in, Dt: narrow, ConvW: convW, ConvB: f(conv, 0.1),
		A: l.negative(d.Heads), D: f(d.Heads, 1), DtBias: f(d.Heads, 1), DtMax: inf, NormW: f(d.Inner(), 1), Eps: 1e-5, Out: y,
	}
	s.run = func(o kernels.Ops, l ssmLayer, rows kernels.Rows, kind string) {
		p.Rows, p.Cursors, p.State = rows, l.cursors, l.state
		if kind == "step" {
			o.Mamba2Step(p)
		} else {
			o.Mamba2Scan(p)
		}
	}
	return s
}

// checkpoints are n blocks of one random state.
func (l *lab) checkpoints(c kernels.CheckpointLayout, n int) kernels.Buffer {
	share := make([]byte, c.Bytes())
	state := make([]float32, c.HP.Rows*c.HP.Cols)
	for head := range c.HP.Heads {
		for i := range state {
			state[i] = (l.rng.Float32()*2 - 1) * 0.1
		}
		c.HP.EncodeHead(share, head, state, kernels.StateNoise{})
		c.LP.EncodeHead(share, head, state, kernels.StateNoise{})
	}
	b := l.alloc(int64(n) * c.Bytes())
	l.upload(b, share)
	l.run(func(o kernels.Ops) {
		for i := 1; i < n; i++ {
			o.Copy(b.Slice(int64(i)*c.Bytes(), c.Bytes()), b.Slice(0, c.Bytes()))
		}
	})
	return b
}

// negative are n decay rates around -1.
func (l *lab) negative(n int) kernels.Buffer {
	v := make([]float32, n)
	for i := range v {
		v[i] = -0.5 - l.rng.Float32()
	}
	b := l.alloc(int64(n) * 4)
	l.upload(b, bytesOf(v))
	return b
}

// zeroDecays makes the recorded decays valid: dt or log decay 0 is none, whatever the random fill left there.
func (l *lab) zeroDecays(s *ssmLab, slots int) {
	f := s.all.state.Layout.Decay
	l.run(func(o kernels.Ops) {
		for i := range slots + 1 {
			o.Zero(s.all.state.Rings.Slice(int64(i)*s.all.state.RingStride+f.Offset, int64(f.Rows*f.Cols*4)))
		}
	})
}

// ssmStep is the whole mixer of b rows of t tokens in the middle of their windows: phases spread evenly over the ring.
func ssmStep(l *lab, m mixer, b, t int, small bool) Case {
	w := kernels.Window{L: 16, T: t}
	if t > 4 {
		w.L = 32
	}
	bytes, flops := stepCost(m, w, t, l.act(), kernels.Precision{})
	c := Case{Bytes: bytes * float64(b), Flops: flops * float64(b), Sets: sets(bytes*float64(b), flops*float64(b), small)}
	c.Sets = min(c.Sets, 256/b+1)
	if l.dev.Graphs() && !small {
		c.Sets = max(2, c.Sets) // a launch behind one of the same layer has to wait for it
	}
	s := newSSM(l, m, w, kernels.Precision{}, b*c.Sets, b*t, func(slot int) int { return slot % (w.L + 1) })
	c.Run = s.steps(l, b, t, c.Sets)
	return c
}

// steps runs the mixer on sets of b rows of t tokens, in turns, each a layer of its own; slots are dealt to rows at random.
func (s *ssmLab) steps(l *lab, b, t, sets int) func(o kernels.Ops, set int) {
	n := l.sequence(b, func(int) int { return t })
	slots := make([]kernels.Buffer, sets)
	for i := range slots {
		order := l.rng.Perm(b)
		slots[i] = l.sequence(b, func(r int) int { return 1 + order[r] })
	}
	return func(o kernels.Ops, set int) {
		s.run(o, s.all.layer(set%sets, b), kernels.Rows{Count: b, Tokens: b * t, T: t, MaxLen: t, Slot: slots[set%sets], N: n}, "step")
	}
}

// Mamba2Cost is what a Mamba-2 mixer must move and compute for one row of t tokens in the middle of its window.
func Mamba2Cost(d kernels.Mamba2Dims, w kernels.Window, t int, act kernels.DType, p kernels.Precision) (bytes, flops float64) {
	return stepCost(mixer{mamba2: d}, w, t, act, p)
}

// DeltaCost is the same of a Gated DeltaNet mixer.
func DeltaCost(d kernels.DeltaDims, w kernels.Window, t int, act kernels.DType, p kernels.Precision) (bytes, flops float64) {
	return stepCost(mixer{delta: d}, w, t, act, p)
}

// stepCost is what one row must move and compute: the checkpoint (or its copy) read, at a flush instead read and written
// with its copy, the records of an average window read and the new ones written, inputs and outputs.
func stepCost(m mixer, w kernels.Window, t int, act kernels.DType, p kernels.Precision) (bytes, flops float64) {
	conv, out, aux := m.widths()
	h, flush := float64(w.L)/2, float64(t)/float64(w.L+1)
	state, a, T := float64(m.state()), float64(act.Size()), float64(t)
	bytes = checkpointCost(m.checkpoint(p), p.Two(), flush) + a*T*float64(conv+2*out+aux) + a*float64(conv)*(3+T)
	layout := m.ring(w, act, p)
	bytes += recordBytes(layout.X, layout.B, layout.Decay)*(h+T) + recordBytes(layout.V, layout.Beta)*(flush*h+T)
	reads := T
	if m.isDelta() {
		reads = 2 * T // S k and S q
	}
	flops = 2*state*(reads+flush*(h+1)) + 2*T*(h+T)*float64(out) + 8*T*float64(conv)
	return bytes, flops
}

// checkpointCost is the bytes of a checkpoint that a row reads and writes when so large a share of rows flush.
func checkpointCost(c kernels.CheckpointLayout, two bool, flush float64) float64 {
	size := func(a kernels.StateArray) float64 { return float64(a.Heads) * float64(a.HeadBytes()) }
	bytes := (1-flush)*size(c.LP) + flush*2*size(c.HP)
	if two {
		bytes += flush * size(c.LP)
	}
	return bytes
}

// recordBytes is the bytes of one record of the fields.
func recordBytes(fields ...kernels.Field) (n float64) {
	for _, f := range fields {
		n += float64(f.Cols * f.DType.Size())
	}
	return n
}

// ssmScan is the mixer of one prefill row; the arithmetic counted is that of the chunked form with chunks of 64.
func ssmScan(l *lab, m mixer, tokens int) Case {
	w := kernels.Window{L: 16, T: 1}
	s := newSSM(l, m, w, kernels.Precision{}, 1, tokens, func(int) int { return 0 })
	conv, out, aux := m.widths()
	n, state, a := float64(tokens), float64(m.state()), float64(l.act().Size())
	c := Case{Bytes: a*n*float64(conv+2*out+aux) + 8*state, Flops: n * (4*state + 2*64*float64(out)), Sets: 1}
	if m.isDelta() {
		c.Flops = n * (6*state + 4*64*float64(out))
	}
	slot, count, start := l.ints(1), l.ints(int32(tokens)), l.ints(0)
	c.Run = func(o kernels.Ops, _ int) {
		s.run(o, s.all, kernels.Rows{Count: 1, Tokens: tokens, MaxLen: tokens, Slot: slot, N: count, Start: start}, "scan")
	}
	return c
}
