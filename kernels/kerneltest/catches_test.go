package kerneltest

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"reprise/kernels"
	"reprise/kernels/ref"
)

// failures runs one case of the suite and returns what it complained about.
func failures(t *testing.T, dev kernels.Device, name string) []string {
	t.Helper()
	r := &report{name: name}
	found := false
	for _, f := range families(false) {
		for _, c := range f.cases {
			if c.name != name {
				continue
			}
			found = true
			r.run(c, dev)
		}
	}
	if !found {
		t.Fatalf("no case is called %q", name)
	}
	return r.failures
}

// faulty is the oracle with one planted error.
type faulty struct {
	*ref.Device
	plant func(real kernels.Ops) kernels.Ops
}

func (f faulty) Submit(p kernels.Program) {
	f.Device.Submit(kernels.ProgramFunc(func(o kernels.Ops) { p.Run(f.plant(o)) }))
}

// Each of these replaces one operation of the oracle.
type (
	onNorm       func(o kernels.Ops, p kernels.Norm)
	onLinear     func(o kernels.Ops, p kernels.Linear)
	onRoute      func(o kernels.Ops, p kernels.Route)
	onWriteKV    func(o kernels.Ops, p kernels.WriteKV)
	onAttend     func(o kernels.Ops, p kernels.Attend)
	onMamba2Step func(o kernels.Ops, p kernels.Mamba2)
	onMamba2Scan func(o kernels.Ops, p kernels.Mamba2)
	onMamba2Fold func(o kernels.Ops, p kernels.Mamba2)
	onDeltaStep  func(o kernels.Ops, p kernels.Delta)
	onDeltaScan  func(o kernels.Ops, p kernels.Delta)
	onSample     func(o kernels.Ops, p kernels.Sample)
	onCommit     func(o kernels.Ops, p kernels.Commit)
	onBegin      func(o kernels.Ops, p kernels.Begin)
	onDraftBegin func(o kernels.Ops, p kernels.DraftBegin)
	onDraftNext  func(o kernels.Ops, p kernels.DraftNext)
	onLookup     func(o kernels.Ops, p kernels.DraftLookup)
)

// hooked is the oracle with one operation replaced.
type hooked struct {
	kernels.Ops
	hook any
}

func (h hooked) Norm(p kernels.Norm)               { call1(h, p, onNorm(kernels.Ops.Norm)) }
func (h hooked) Linear(p kernels.Linear)           { call1(h, p, onLinear(kernels.Ops.Linear)) }
func (h hooked) Route(p kernels.Route)             { call1(h, p, onRoute(kernels.Ops.Route)) }
func (h hooked) WriteKV(p kernels.WriteKV)         { call1(h, p, onWriteKV(kernels.Ops.WriteKV)) }
func (h hooked) Attend(p kernels.Attend)           { call1(h, p, onAttend(kernels.Ops.Attend)) }
func (h hooked) Mamba2Step(p kernels.Mamba2)       { call1(h, p, onMamba2Step(kernels.Ops.Mamba2Step)) }
func (h hooked) Mamba2Scan(p kernels.Mamba2)       { call1(h, p, onMamba2Scan(kernels.Ops.Mamba2Scan)) }
func (h hooked) Mamba2Fold(p kernels.Mamba2)       { call1(h, p, onMamba2Fold(kernels.Ops.Mamba2Fold)) }
func (h hooked) DeltaStep(p kernels.Delta)         { call1(h, p, onDeltaStep(kernels.Ops.DeltaStep)) }
func (h hooked) DeltaScan(p kernels.Delta)         { call1(h, p, onDeltaScan(kernels.Ops.DeltaScan)) }
func (h hooked) Sample(p kernels.Sample)           { call1(h, p, onSample(kernels.Ops.Sample)) }
func (h hooked) Commit(p kernels.Commit)           { call1(h, p, onCommit(kernels.Ops.Commit)) }
func (h hooked) Begin(p kernels.Begin)             { call1(h, p, onBegin(kernels.Ops.Begin)) }
func (h hooked) DraftBegin(p kernels.DraftBegin)   { call1(h, p, onDraftBegin(kernels.Ops.DraftBegin)) }
func (h hooked) DraftNext(p kernels.DraftNext)     { call1(h, p, onDraftNext(kernels.Ops.DraftNext)) }
func (h hooked) DraftLookup(p kernels.DraftLookup) { call1(h, p, onLookup(kernels.Ops.DraftLookup)) }

// call1 calls the hook if it is of the operation's kind, else the operation.
func call1[P any, F ~func(kernels.Ops, P)](h hooked, p P, op F) {
	if f, ok := h.hook.(F); ok {
		op = f
	}
	op(h.Ops, p)
}

// first writes f over the first element of a matrix of float32.
func first(o kernels.Ops, m kernels.Mat, f float32) {
	o.Upload(m.Buf.Slice(0, 4), encode(kernels.F32, []float32{f}))
}

// scale multiplies the first element by 1 + e.
func scale(o kernels.Ops, m kernels.Mat, e float32) {
	b := make([]byte, 4)
	o.Download(b, m.Buf.Slice(0, 4))
	first(o, m, float32(decode(kernels.F32, b)[0])*(1+e))
}

// plant is an error, the case that must catch it and a word of its complaint.
type plant struct {
	name, testcase, complaint string
	hook                      any
}

func plants() []plant {
	return slices.Concat(densePlants(), replayPlants(), precisionPlants(), attentionPlants(), slotPlants(), draftPlants())
}

func densePlants() []plant {
	return []plant{
		{"an error of 1e-4", "norm 5x65", "y: ", onNorm(func(o kernels.Ops, p kernels.Norm) { o.Norm(p); scale(o, p.Y.RowRange(1, 1), 1e-4) })},
		{"an output not written", "norm 5x65", "y: ", onNorm(func(o kernels.Ops, p kernels.Norm) {
			p.X, p.Y = p.X.RowRange(0, 4), p.Y.RowRange(0, 4)
			o.Norm(p)
		})},
		{"a residual not stored", "norm add 5x65", "x: ", onNorm(func(o kernels.Ops, p kernels.Norm) { undo(o, p.X.Buf, func() { o.Norm(p) }) })},
		{"a write before the buffer", "norm 5x65", "changed", onNorm(func(o kernels.Ops, p kernels.Norm) {
			o.Norm(p)
			o.Zero(kernels.Buffer{Addr: p.Y.Buf.Addr - 4, Size: 4})
		})},
		{"a write behind the buffer", "norm 5x65", "changed", onNorm(func(o kernels.Ops, p kernels.Norm) {
			o.Norm(p)
			o.Zero(kernels.Buffer{Addr: p.Y.Buf.Addr + uintptr(p.Y.Buf.Size), Size: 1})
		})},
		{"a write between strided rows", "norm 5x65 wide", "changed", onNorm(func(o kernels.Ops, p kernels.Norm) {
			o.Norm(p)
			o.Zero(p.Y.Buf.Slice(int64(4*p.Y.Cols), 4))
		})},
		{"an input changed", "norm 5x65", "changed", onNorm(func(o kernels.Ops, p kernels.Norm) { o.Norm(p); scale(o, p.X.RowRange(1, 1), 1) })},
		{"an order of summation that depends on the rows", "linear float32 5x127x33", "same bits", onLinear(func(o kernels.Ops, p kernels.Linear) {
			o.Linear(p)
			if p.X.Rows == 1 {
				scale(o, p.Y, 1e-7)
			}
		})},
		{"bias in the weights of experts", "route sigmoid", "weights", onRoute(func(o kernels.Ops, p kernels.Route) {
			o.Route(p)
			scale(o, kernels.NewMat(p.Weights, kernels.F32, 1, 1), 0.01)
		})},
	}
}

func replayPlants() []plant {
	const m, d = "mamba2 {4 8 16 2 4}", "delta {2 4 8 16 4}"
	return []plant{
		{"padding not cleared", m + " step L4 T3", "padding", onMamba2Step(func(o kernels.Ops, p kernels.Mamba2) { keepPadding(o, p.Rows, p.Out, func() { o.Mamba2Step(p) }) })},
		{"a flush that does not reach the block", m + " step L4 T3", "blocks", onMamba2Step(func(o kernels.Ops, p kernels.Mamba2) { undo(o, p.State.Blocks, func() { o.Mamba2Step(p) }) })},
		{"a flush into src", m + " step L4 T3", "of blocks", onMamba2Step(func(o kernels.Ops, p kernels.Mamba2) { p.Cursors.Dst = p.Cursors.Src; o.Mamba2Step(p) })},
		{"a flush into src, while walking", m + " walk L4 T3", "shared", onMamba2Step(func(o kernels.Ops, p kernels.Mamba2) { p.Cursors.Dst = p.Cursors.Src; o.Mamba2Step(p) })},
		{"records not written", m + " step L4 T3", "records x", onMamba2Step(func(o kernels.Ops, p kernels.Mamba2) { undo(o, p.State.Rings, func() { o.Mamba2Step(p) }) })},
		{"records not written, while walking", d + " walk L16 T4", "norm error", onDeltaStep(func(o kernels.Ops, p kernels.Delta) { undo(o, p.State.Rings, func() { o.DeltaStep(p) }) })},
		{"a cursor written by a layer", m + " step L4 T3", "cursor 1", onMamba2Step(func(o kernels.Ops, p kernels.Mamba2) { o.Mamba2Step(p); o.Zero(p.Cursors.H) })},
		{"checkpoints rounded to bfloat16", d + " step L4 T3", "out", onDeltaStep(func(o kernels.Ops, p kernels.Delta) {
			roundBlocks(o, p.State.Blocks)
			o.DeltaStep(p)
		})},
		{"a scan that goes on from src", m + " scan", "out", onMamba2Scan(func(o kernels.Ops, p kernels.Mamba2) {
			undo(o, p.Cursors.Origin, func() {
				undo(o, p.Cursors.H, func() {
					o.Upload(p.Cursors.Origin, addInts(fetch(o, p.Cursors.Origin), fetch(o, p.Cursors.H)))
					o.Zero(p.Cursors.H)
					o.Mamba2Scan(p)
				})
			})
		})},
		{"no fold", m + " walk L4 T3", "norm error", onMamba2Fold(func(kernels.Ops, kernels.Mamba2) {})},
		{"a ring of the wrong capacity", m + " step L8 T3", "out", onMamba2Step(func(o kernels.Ops, p kernels.Mamba2) {
			p.State.Window.L++
			p.State.Layout = kernels.Mamba2Ring(p.Dims, p.State.Window, kernels.F32)
			o.Mamba2Step(p)
		})},
	}
}

func precisionPlants() []plant {
	const m, d = "mamba2 {4 8 16 2 4}", "delta {2 4 8 16 4}"
	return []plant{
		{"the noise of another layer", m + " step T4 float16+sr/nvfp4", "blocks", onMamba2Step(func(o kernels.Ops, p kernels.Mamba2) { p.State.Layer++; o.Mamba2Step(p) })},
		{"rounding to nearest", m + " step T4 fp8+sr", "blocks", onMamba2Step(func(o kernels.Ops, p kernels.Mamba2) { p.State.Precision.Rounding = kernels.Nearest; o.Mamba2Step(p) })},
		{"a copy not written", d + " step T4 float32/nvfp4", "copies", onDeltaStep(func(o kernels.Ops, p kernels.Delta) {
			at := kernels.DeltaCheckpoint(p.Dims, p.State.Precision).LP.Values
			undo(o, p.State.Blocks.Slice(at, p.State.Blocks.Size-at), func() { o.DeltaStep(p) })
		})},
		{"reads of HP", m + " step T4 float32/float16", "out", onMamba2Step(func(o kernels.Ops, p kernels.Mamba2) {
			undo(o, p.State.Blocks, func() {
				p.State.Precision = kernels.Precision{}
				o.Mamba2Step(p)
			})
		})},
		{"v not recorded", d + " step T4 float32/nvfp4", "records v", onDeltaStep(func(o kernels.Ops, p kernels.Delta) {
			at := p.State.Layout.V.Offset
			undo(o, p.State.Rings.Slice(at, p.State.Rings.Size-at), func() { o.DeltaStep(p) })
		})},
		{"an unfinished prefill rounded", m + " scratch float16+sr", "changed", onMamba2Scan(func(o kernels.Ops, p kernels.Mamba2) {
			p.Rows.Scratch, p.Rows.Stage = kernels.Buffer{}, kernels.Buffer{}
			o.Mamba2Scan(p)
		})},
	}
}

func attentionPlants() []plant {
	return []plant{
		{"a position too many", "attend 8/2x64 page 16 float32 T3", "out", onAttend(func(o kernels.Ops, p kernels.Attend) {
			one := bytes.Repeat([]byte{1, 0, 0, 0}, int(p.Cursors.H.Size/4))
			undo(o, p.Cursors.H, func() { o.Upload(p.Cursors.H, addInts(fetch(o, p.Cursors.H), one)); o.Attend(p) })
		})},
		{"no gate", "attend 8/2x64 page 16 float32 T3", "out", onAttend(func(o kernels.Ops, p kernels.Attend) { p.Gate = kernels.Mat{}; o.Attend(p) })},
		{"padding of attention not cleared", "attend 8/2x64 page 16 float32 T3", "padding", onAttend(func(o kernels.Ops, p kernels.Attend) { keepPadding(o, p.Rows, p.Out, func() { o.Attend(p) }) })},
		{"no rotation", "write 8/2x64 page 16 float32 norm rope", "q: ", onWriteKV(func(o kernels.Ops, p kernels.WriteKV) { p.Rotary = 0; o.WriteKV(p) })},
		{"the checkpoint's scale ignored", "write 8/2x128 page 32 float8_e4m3 norm rope", "scales", onWriteKV(func(o kernels.Ops, p kernels.WriteKV) { p.KScale = 0; o.WriteKV(p) })},
		{"another eps", "write 4/2x8 page 16 float32 norm rope", "q: ", onWriteKV(func(o kernels.Ops, p kernels.WriteKV) { p.Eps = 1e-4; o.WriteKV(p) })},
		{"nothing cached", "write 8/2x64 page 16 float32 T1", "cache", onWriteKV(func(o kernels.Ops, p kernels.WriteKV) { undo(o, p.KV.Pages, func() { o.WriteKV(p) }) })},
	}
}

func slotPlants() []plant {
	return []plant{
		{"the next random number", "sample temperature vocab 1000 ties false", "out differs", onSample(func(o kernels.Ops, p kernels.Sample) {
			one := bytes.Repeat([]byte{1, 0, 0, 0}, int(p.Pos.Size/4))
			undo(o, p.Pos, func() { o.Upload(p.Pos, addInts(fetch(o, p.Pos), one)); o.Sample(p) })
		})},
		{"drafts not counted", "sample penalties", "out differs", onSample(func(o kernels.Ops, p kernels.Sample) { undo(o, p.Depth, func() { o.Zero(p.Depth); o.Sample(p) }) })},
		{"one log probability less", "sample top 5 of 33", "top ids", onSample(func(o kernels.Ops, p kernels.Sample) {
			o.Sample(p)
			o.Zero(p.TopID.Slice(p.TopID.Size-4, 4))
		})},
		{"a stop not seen", "commit stop middle", "accepted", onCommit(func(o kernels.Ops, p kernels.Commit) {
			undo(o, p.Slots.Stops, func() { o.Upload(p.Slots.Stops, bytes.Repeat([]byte{0xff}, int(p.Slots.Stops.Size))); o.Commit(p) })
		})},
		{"a slot that stays active", "commit length first", "active", onCommit(func(o kernels.Ops, p kernels.Commit) { undo(o, p.Slots.Active, func() { o.Commit(p) }) })},
		{"cursors left behind", "commit prefill final", "cursor", onCommit(func(o kernels.Ops, p kernels.Commit) { undo(o, p.Cursors.Origin, func() { o.Commit(p) }) })},
		{"positions of the step before", "begin T4", "pos differs", onBegin(func(o kernels.Ops, p kernels.Begin) { undo(o, p.Cursors.H, func() { o.Zero(p.Cursors.H); o.Begin(p) }) })},
	}
}

func draftPlants() []plant {
	return []plant{
		{"more drafts than there are", "begin T4", "n differs", onBegin(func(o kernels.Ops, p kernels.Begin) { p.Slots.DraftCount = kernels.Buffer{}; o.Begin(p) })},
		{"drafts of the step before", "commit one", "drafts are left", onCommit(func(o kernels.Ops, p kernels.Commit) { p.Slots.DraftCount = kernels.Buffer{}; o.Commit(p) })},
		{"pairs not counted", "draft begin T5", "pairs differs", onDraftBegin(func(o kernels.Ops, p kernels.DraftBegin) { undo(o, p.Pairs, func() { o.DraftBegin(p) }) })},
		{"the token itself", "draft begin T5", "next differs", onDraftBegin(func(o kernels.Ops, p kernels.DraftBegin) {
			p.Sampled = p.IDs
			p.SampleFirst = 0
			o.DraftBegin(p)
		})},
		{"a draft too few", "draft next 2 vocab 1000", "n differs", onDraftNext(func(o kernels.Ops, p kernels.DraftNext) { o.DraftNext(p); o.Zero(p.N) })},
		{"shorter repetitions", "draft lookup 2..5 of 2 tokens", "differs", onLookup(func(o kernels.Ops, p kernels.DraftLookup) { p.MaxMatch = p.MinMatch; o.DraftLookup(p) })},
	}
}

func TestSuiteCatchesPlantedErrors(t *testing.T) {
	for _, p := range plants() {
		t.Run(p.name, func(t *testing.T) { p.caught(t, func(f faulty) kernels.Device { return f }) })
	}
}

// caught requires that the case passes on the oracle, as made a device, and fails with the error in it.
func (p plant) caught(t *testing.T, made func(faulty) kernels.Device) {
	t.Helper()
	if clean := failures(t, made(faulty{ref.New(), func(real kernels.Ops) kernels.Ops { return real }}), p.testcase); len(clean) > 0 {
		t.Fatalf("without the error: %v", clean)
	}
	got := failures(t, made(faulty{ref.New(), func(real kernels.Ops) kernels.Ops { return hooked{real, p.hook} }}), p.testcase)
	if !strings.Contains(strings.Join(got, "\n"), p.complaint) {
		t.Errorf("complaints %q do not mention %q", got, p.complaint)
	}
}

func TestCaseNamesDiffer(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range families(false) {
		for _, c := range f.cases {
			if seen[c.name] {
				t.Errorf("two cases are called %q", c.name)
			}
			seen[c.name] = true
		}
	}
}

func fetch(o kernels.Ops, b kernels.Buffer) []byte {
	data := make([]byte, b.Size)
	o.Download(data, b)
	return data
}

// undo runs f and puts back what the buffer held before.
func undo(o kernels.Ops, b kernels.Buffer, f func()) {
	before := fetch(o, b)
	f()
	o.Upload(b, before)
}

// roundBlocks cuts every float32 to bfloat16.
func roundBlocks(o kernels.Ops, b kernels.Buffer) {
	data := fetch(o, b)
	for i := range data {
		if i%4 < 2 {
			data[i] = 0
		}
	}
	o.Upload(b, data)
}

// keepPadding runs a step and puts back what the padding held before.
func keepPadding(o kernels.Ops, r kernels.Rows, out kernels.Mat, run func()) {
	before := make([]byte, out.Buf.Size)
	o.Download(before, out.Buf)
	run()
	n := make([]byte, r.N.Size)
	o.Download(n, r.N)
	for i, count := range ints(n) {
		for j := count; j < r.T; j++ {
			at := int64(r.First+i*r.T+j) * int64(out.Stride) * 4
			o.Upload(out.Buf.Slice(at, int64(4*out.Cols)), before[at:at+int64(4*out.Cols)])
		}
	}
}

func addInts(x, y []byte) []byte {
	sum := ints(x)
	for i, v := range ints(y) {
		sum[i] += v
	}
	return intBytes(sum)
}
