package kernels

import (
	"math"
	"reflect"
	"strings"
	"testing"
)

// fakeWeight is a weight that has nothing but a shape.
type fakeWeight struct{ experts, rows, cols int }

func (w fakeWeight) Shape() (int, int, int) { return w.experts, w.rows, w.cols }
func (w fakeWeight) DType() DType           { return F32 }
func (w fakeWeight) Bytes() int64           { return 0 }
func (w fakeWeight) Top(rows int) Weight    { return fakeWeight{w.experts, rows, w.cols} }

// room is a buffer of n four-byte elements; nothing here looks inside.
func room(n int) Buffer { return Buffer{Addr: 4096, Size: int64(n) * 4} }

func f32(rows, cols int) Mat { return NewMat(room(rows*cols), F32, rows, cols) }

func stepRows(count, t int) Rows {
	return Rows{Count: count, Tokens: count * t, T: t, MaxLen: t, Slot: room(count), N: room(count)}
}

func packedRows(count, tokens int) Rows {
	return Rows{Count: count, Tokens: tokens, MaxLen: tokens, Slot: room(count), N: room(count), Start: room(count)}
}

func fakeCursors(n int) Cursors { return Cursors{room(n), room(n), room(n), room(n)} }

func fakeSlots(n int) Slots {
	return Slots{Active: room(n), Last: room(n), Drafts: room(n * 3), Params: room(n * SlotParamsBytes / 4), Stops: room(n * 2), DraftStride: 3, MaxStops: 2}
}

func fakeTables(n, vocab int) SlotTables {
	return SlotTables{Counts: room(n * vocab), Seen: room(n * 2), Allowed: room(n * 2), BiasID: room(n * 4), Bias: room(n * 4), Vocab: vocab, MaxBias: 4}
}

func fakeMamba2() Mamba2 {
	d, w := Mamba2Dims{Heads: 4, HeadDim: 8, State: 16, Groups: 2, Taps: 4}, Window{L: 8, T: 4}
	l := Mamba2Ring(d, w, F32)
	return Mamba2{Rows: stepRows(2, 4), Cursors: fakeCursors(3), Dims: d,
		State: State{Blocks: room(3 * 512), BlockStride: 2048, Rings: room(3 * int(l.Bytes)), RingStride: l.Bytes, Layout: l, Window: w},
		Z:     f32(8, 32), XBC: f32(8, 96), Dt: f32(8, 4), ConvW: room(96 * 4), ConvB: room(96), A: room(4), D: room(4), DtBias: room(4), NormW: room(32), Out: f32(8, 32)}
}

func fakeDelta() Delta {
	d, w := DeltaDims{KeyHeads: 2, ValueHeads: 4, KeyDim: 8, ValueDim: 16, Taps: 4}, Window{L: 8, T: 4}
	l := DeltaRing(d, w, F32, Precision{})
	return Delta{Rows: stepRows(2, 4), Cursors: fakeCursors(3), Dims: d,
		State: State{Blocks: room(3 * 512), BlockStride: 2048, Rings: room(3 * int(l.Bytes)), RingStride: l.Bytes, Layout: l, Window: w},
		QKV:   f32(8, 96), Z: f32(8, 64), B: f32(8, 4), A: f32(8, 4), ConvW: room(96 * 4), DecayA: room(4), DtBias: room(4), NormW: room(16), Out: f32(8, 64)}
}

// fakeScratch is a chunk of a prefill in float16 state with a scratch block for each row.
func fakeScratch() Delta {
	p := fakeDelta()
	p.Rows = packedRows(2, 8)
	p.Rows.Scratch, p.Rows.Stage = room(2), room(2)
	p.State.Precision.HP, p.State.Scratch, p.State.ScratchStride = StateF16, room(512), 2048
	return p
}

// fakeCuts is a chunk of a prefill with two cuts a row.
func fakeCuts() Mamba2 {
	p := fakeMamba2()
	p.Rows = packedRows(2, 8)
	p.Rows.Cuts = Cuts{2, room(4), room(4)}
	p.State.Tails, p.State.TailStride = room(3*300+3*96), 1200
	return p
}

func fakeKV() KV {
	k := KV{Pages: room(1 << 16), PageTokens: 16, Heads: 2, HeadDim: 8, DType: F8E4M3, Table: room(12), TableStride: 4}
	k.PageStride = k.PageBytes()
	return k
}

func fakeWriteKV() WriteKV {
	return WriteKV{Rows: packedRows(2, 5), Cursors: fakeCursors(3), Pos: room(5), KV: fakeKV(), Q: f32(5, 64), K: f32(5, 16), V: f32(5, 16),
		QHeads: 4, QStride: 16, QNorm: room(8), KNorm: room(8), Rotary: 4, InvFreq: room(2), QOut: f32(5, 32)}
}

func fakeAttend() Attend {
	return Attend{Rows: stepRows(2, 2), Cursors: fakeCursors(3), KV: fakeKV(), Q: f32(4, 32), QHeads: 4, Gate: f32(4, 64), GateStride: 16, Out: f32(4, 32)}
}

func fakeRoute() Route {
	return Route{Logits: f32(5, 8), Bias: room(8), TopK: 3, Groups: 4, TopGroups: 2, IDs: room(15), Weights: room(15)}
}

func fakeExperts() Experts {
	return Experts{X: f32(5, 8), Out: f32(5, 8), Up: fakeWeight{4, 12, 8}, Down: fakeWeight{4, 8, 6}, TopK: 2, IDs: room(10), Weights: room(10)}
}

func fakeSample() Sample {
	return Sample{Logits: f32(5, 40), Token: room(5), Slot: room(5), Target: room(5), Depth: room(5), IDs: room(9), Pos: room(9), Slots: fakeSlots(3),
		Tables: fakeTables(3, 40), TopN: 2, Out: room(5), LogProb: room(5), Rank: room(5), TopID: room(10), TopProb: room(10)}
}

func fakeCommit() Commit {
	return Commit{Step: stepRows(2, 4), Prefill: Rows{}, Cursors: fakeCursors(3), Slots: fakeSlots(3), Tables: fakeTables(3, 40), Window: Window{8, 4},
		Pos: room(8), Sampled: room(8), Accepted: room(2), Finish: room(2)}
}

func fakeBegin() Begin {
	return Begin{Step: stepRows(2, 4), Want: room(2), Cursors: fakeCursors(3), Slots: fakeSlots(3), IDs: room(8), Pos: room(8)}
}

func fakeDrafted(n int) Slots {
	s := fakeSlots(n)
	s.DraftCount = room(n)
	return s
}

func fakeCommitted() Committed {
	return Committed{Step: stepRows(2, 4), IDs: room(8), Pos: room(8), Sampled: room(8), Accepted: room(2), Slots: fakeDrafted(3), Want: room(2)}
}

func fakeDrafting() Drafting { return Drafting{room(3), room(3), room(3)} }

func fakeDraftBegin() DraftBegin {
	return DraftBegin{Committed: fakeCommitted(), Drafting: fakeDrafting(), Next: room(8), N: room(2), Last: room(2), Left: room(2)}
}

func fakeDraftNext() DraftNext {
	return DraftNext{Logits: f32(2, 40), Slot: room(2), Last: room(2), Left: room(2), Pos: room(8), Slots: fakeDrafted(3), Drafting: fakeDrafting(),
		N: room(2), Next: room(2), NextPos: room(2)}
}

func fakeDraftLookup() DraftLookup {
	return DraftLookup{Committed: fakeCommitted(), History: room(3 * 9), HistoryStride: 9, MinMatch: 2, MaxMatch: 3}
}

type validator interface{ Validate() error }

// broken is a struct of the kind of T with one thing wrong, and the field that the error must name.
func broken[T validator](whole T, field string, harm func(*T)) func(*testing.T) {
	return func(t *testing.T) {
		if err := whole.Validate(); err != nil {
			t.Fatalf("the whole struct: %v", err)
		}
		harm(&whole)
		if err := whole.Validate(); err == nil || !strings.Contains(err.Error(), ": "+field+": ") {
			t.Errorf("got %v, want an error that names %s", err, field)
		}
	}
}

func TestValidateNamesTheField(t *testing.T) {
	nan := float32(math.NaN())
	for name, f := range map[string]func(*testing.T){
		"scatter":      broken(Scatter{Dst: room(4), Index: room(3), Value: room(3), Count: 3}, "Value", func(p *Scatter) { p.Value = room(2) }),
		"begin drafts": broken(fakeBegin(), "Slots.DraftStride", func(p *Begin) { p.Slots.DraftStride = 2 }),
		"begin ids":    broken(fakeBegin(), "IDs", func(p *Begin) { p.IDs = room(7) }),
		"draft counts": broken(fakeBegin(), "Slots.DraftCount", func(p *Begin) { p.Slots.DraftCount = room(2) }),
		"draft want":   broken(fakeDraftBegin(), "Want", func(p *DraftBegin) { p.Want = room(1) }),
		"draft next":   broken(fakeDraftBegin(), "Next", func(p *DraftBegin) { p.Next = room(7) }),
		"draft pairs":  broken(fakeDraftBegin(), "Pairs", func(p *DraftBegin) { p.Pairs = room(2) }),
		"draft slots":  broken(fakeDraftBegin(), "Slots.DraftCount", func(p *DraftBegin) { p.Slots.DraftCount = Buffer{} }),
		"draft index":  broken(fakeDraftNext(), "Index", func(p *DraftNext) { p.Index = 3 }),
		"draft logits": broken(fakeDraftNext(), "Logits", func(p *DraftNext) { p.Logits.DType = BF16; p.Logits.Buf.Size /= 2 }),
		"draft match":  broken(fakeDraftLookup(), "MinMatch", func(p *DraftLookup) { p.MinMatch = 4 }),
		"draft past":   broken(fakeDraftLookup(), "History", func(p *DraftLookup) { p.HistoryStride = 10 }),
		"embed":        broken(Embed{fakeWeight{1, 9, 6}, room(2), f32(2, 6)}, "Out", func(p *Embed) { p.Out = f32(2, 5) }),
		"embed nil":    broken(Embed{fakeWeight{1, 9, 6}, room(2), f32(2, 6)}, "Table", func(p *Embed) { p.Table = nil }),
		"norm add":     broken(Norm{X: f32(2, 6), Y: f32(2, 6), Weight: room(6)}, "Add", func(p *Norm) { p.Add = f32(1, 6) }),
		"norm eps":     broken(Norm{X: f32(2, 6), Y: f32(2, 6), Weight: room(6)}, "Eps", func(p *Norm) { p.Eps = nan }),
		"linear":       broken(Linear{X: f32(2, 6), Y: f32(2, 3), W: fakeWeight{1, 3, 6}}, "W", func(p *Linear) { p.W = fakeWeight{1, 6, 3} }),
		"linear dtype": broken(Linear{X: f32(2, 6), Y: f32(2, 3), W: fakeWeight{1, 3, 6}}, "X", func(p *Linear) { p.X.DType = I32 }),
		"linear short": broken(Linear{X: f32(2, 6), Y: f32(2, 3), W: fakeWeight{1, 3, 6}}, "X", func(p *Linear) { p.X.Buf.Size-- }),
		"linear odd":   broken(Linear{X: f32(2, 6), Y: f32(2, 3), W: fakeWeight{1, 3, 6}}, "X", func(p *Linear) { p.X.Buf.Addr += 2 }),
		"stride":       broken(Linear{X: f32(2, 6), Y: f32(2, 3), W: fakeWeight{1, 3, 6}}, "Y", func(p *Linear) { p.Y.Stride = 2 }),
		"activate":     broken(Activate{SiLUMul, f32(2, 12), f32(2, 6)}, "X", func(p *Activate) { p.Kind = ReLU2 }),
		"gather":       broken(GatherRows{f32(2, 6), f32(3, 6), room(3)}, "Index", func(p *GatherRows) { p.Index = room(2) }),
		"kv dtype":     broken(fakeWriteKV(), "KV.DType", func(p *WriteKV) { p.KV.DType = F16 }),
		"kv stride":    broken(fakeAttend(), "KV.PageStride", func(p *Attend) { p.KV.PageStride -= 256 }),
		"write heads":  broken(fakeWriteKV(), "QHeads", func(p *WriteKV) { p.QHeads = 3 }),
		"write q":      broken(fakeWriteKV(), "Q", func(p *WriteKV) { p.Q = f32(5, 55) }),
		"write start":  broken(fakeWriteKV(), "Rows.Start", func(p *WriteKV) { p.Rows.Start = Buffer{} }),
		"write rotary": broken(fakeWriteKV(), "Rotary", func(p *WriteKV) { p.Rotary = 3 }),
		"write scale":  broken(fakeWriteKV(), "KScale", func(p *WriteKV) { p.VScale = nan }),
		"attend first": broken(fakeAttend(), "Q", func(p *Attend) { p.Rows.First = 1 }),
		"attend gate":  broken(fakeAttend(), "Gate", func(p *Attend) { p.GateStride = 20 }),
		"rows tokens":  broken(fakeAttend(), "Rows", func(p *Attend) { p.Rows.Tokens = 3 }),
		"rows slot":    broken(fakeAttend(), "Rows.Slot", func(p *Attend) { p.Rows.Slot = room(1) }),
		"cursors":      broken(fakeMamba2(), "Cursors.Src", func(p *Mamba2) { p.Cursors.Src = room(2) }),
		"window":       broken(fakeMamba2(), "Window", func(p *Mamba2) { p.State.Window.L = 3 }),
		"window rows":  broken(fakeMamba2(), "Rows.T", func(p *Mamba2) { p.Rows = stepRows(1, 5) }),
		"layout":       broken(fakeMamba2(), "State.Layout", func(p *Mamba2) { p.State.Window.L = 9 }),
		"blocks":       broken(fakeMamba2(), "State.BlockStride", func(p *Mamba2) { p.State.BlockStride = 2044 }),
		"state":        broken(fakeMamba2(), "State.Precision", func(p *Mamba2) { p.State.Precision.LP = 9 }),
		"state copy":   broken(fakeMamba2(), "State.BlockStride", func(p *Mamba2) { p.State.Precision.LP = StateNVFP4 }),
		"state rings":  broken(fakeDelta(), "State.Layout", func(p *Delta) { p.State.Precision.LP = StateF16 }),
		"scratch":      broken(fakeScratch(), "State.ScratchStride", func(p *Delta) { p.State.ScratchStride = 2044 }),
		"scratch none": broken(fakeScratch(), "State.Scratch", func(p *Delta) { p.State.Scratch = Buffer{} }),
		"scratch half": broken(fakeScratch(), "Rows.Stage", func(p *Delta) { p.Rows.Stage = Buffer{} }),
		"scratch step": broken(fakeScratch(), "Rows.Scratch", func(p *Delta) { p.Rows.T, p.Rows.MaxLen = 4, 4 }),
		"cuts":         broken(fakeCuts(), "Rows.Cuts.PerRow", func(p *Mamba2) { p.Rows.Cuts.PerRow = MaxCuts + 1 }),
		"cuts less":    broken(fakeCuts(), "Rows.Cuts.PerRow", func(p *Mamba2) { p.Rows.Cuts.PerRow = -1 }),
		"cuts step":    broken(fakeCuts(), "Rows.Cuts", func(p *Mamba2) { p.Rows.T, p.Rows.MaxLen = 4, 4 }),
		"cuts place":   broken(fakeCuts(), "Rows.Cuts.Place", func(p *Mamba2) { p.Rows.Cuts.Place = room(3) }),
		"cuts block":   broken(fakeCuts(), "Rows.Cuts.Block", func(p *Mamba2) { p.Rows.Cuts.Block = Buffer{} }),
		"cuts stride":  broken(fakeCuts(), "State.TailStride", func(p *Mamba2) { p.State.TailStride = 1148 }),
		"cuts tails":   broken(fakeCuts(), "State.Tails", func(p *Mamba2) { p.State.Tails = room(3*300 + 3*96 - 1) }),
		"dims":         broken(fakeMamba2(), "Dims", func(p *Mamba2) { p.Dims.Groups = 3 }),
		"xbc":          broken(fakeMamba2(), "XBC", func(p *Mamba2) { p.XBC = f32(8, 95) }),
		"delta z":      broken(fakeDelta(), "Z", func(p *Delta) { p.Z = f32(7, 64) }),
		"delta dims":   broken(fakeDelta(), "Dims", func(p *Delta) { p.Dims.ValueHeads = 3 }),
		"delta normw":  broken(fakeDelta(), "NormW", func(p *Delta) { p.NormW = room(15) }),
		"route k":      broken(fakeRoute(), "TopK", func(p *Route) { p.TopK = 5 }),
		"route groups": broken(fakeRoute(), "Groups", func(p *Route) { p.Groups = 3 }),
		"experts":      broken(fakeExperts(), "Up", func(p *Experts) { p.Act = ReLU2 }),
		"experts ids":  broken(fakeExperts(), "IDs", func(p *Experts) { p.IDs = room(9) }),
		"add gated":    broken(AddGated{f32(2, 1), f32(2, 6), f32(2, 6)}, "Gate", func(p *AddGated) { p.Gate = f32(2, 2) }),
		"sample vocab": broken(fakeSample(), "Logits", func(p *Sample) { p.Tables.Vocab = 41; p.Tables.Counts = Buffer{} }),
		"sample top":   broken(fakeSample(), "TopID", func(p *Sample) { p.TopID = room(9) }),
		"sample slots": broken(fakeSample(), "Slots.Params", func(p *Sample) { p.Slots.Params = room(1) }),
		"commit":       broken(fakeCommit(), "Sampled", func(p *Commit) { p.SampleFirst = 1 }),
		"commit rows":  broken(fakeCommit(), "Accepted", func(p *Commit) { p.Accepted = room(1) }),
		"commit T":     broken(fakeCommit(), "Rows.T", func(p *Commit) { p.Window = Window{3, 3} }),
	} {
		t.Run(name, f)
	}
}

func TestValidateFold(t *testing.T) {
	m, d := fakeMamba2(), fakeDelta()
	bare := Mamba2{Rows: packedRows(2, 0), Cursors: m.Cursors, State: m.State, Dims: m.Dims, A: m.A}
	if err := bare.ValidateFold(); err != nil {
		t.Error(err)
	}
	if err := (Delta{Rows: packedRows(2, 0), Cursors: d.Cursors, State: d.State, Dims: d.Dims}).ValidateFold(); err != nil {
		t.Error(err)
	}
	bare.A = Buffer{}
	if err := bare.ValidateFold(); err == nil || !strings.Contains(err.Error(), ": A: ") {
		t.Errorf("got %v, want an error that names A", err)
	}
}

func TestValidateEmptyBatches(t *testing.T) {
	for _, v := range []validator{Scatter{}, Begin{}, WriteKV{}, Attend{}, Mamba2{}, Delta{}, Commit{}} {
		if err := v.Validate(); err != nil {
			t.Errorf("%T: %v", v, err)
		}
	}
}

func TestValidateAllocatesNothing(t *testing.T) {
	m, d, w, a, r, e, s, c, b := fakeMamba2(), fakeDelta(), fakeWriteKV(), fakeAttend(), fakeRoute(), fakeExperts(), fakeSample(), fakeCommit(), fakeBegin()
	first, next, lookup := fakeDraftBegin(), fakeDraftNext(), fakeDraftLookup()
	l := Linear{X: f32(2, 6), Y: f32(2, 3), W: fakeWeight{1, 3, 6}}
	n := testing.AllocsPerRun(10, func() {
		for _, err := range [...]error{m.Validate(), d.Validate(), w.Validate(), a.Validate(), r.Validate(), e.Validate(), s.Validate(), c.Validate(), b.Validate(), l.Validate(), first.Validate(), next.Validate(), lookup.Validate()} {
			if err != nil {
				t.Fatal(err)
			}
		}
	})
	if n != 0 {
		t.Errorf("%v allocations a round", n)
	}
}

func TestSlotParamsBytes(t *testing.T) {
	if n := int(reflect.TypeFor[SlotParams]().Size()); n != SlotParamsBytes {
		t.Errorf("SlotParams has %d bytes, SlotParamsBytes says %d", n, SlotParamsBytes)
	}
}
