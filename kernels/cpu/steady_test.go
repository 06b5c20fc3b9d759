package cpu

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"reprise/kernels"
)

// Sizes of the fixture: two step rows of three tokens behind a long context and a prefill row.
const (
	fixtureSlots  = 4
	fixtureStep   = 2
	fixtureT      = 3
	fixtureChunk  = 37
	fixtureTokens = fixtureStep*fixtureT + fixtureChunk
	fixtureVocab  = 1000
	fixtureHeads  = 6
	fixtureDim    = 32
	fixturePage   = 48
	fixtureStride = 40 // pages of a slot
)

// fixture is a device with the operands of every operation but the recurrent ones.
type fixture struct {
	testing.TB
	*rand.Rand
	device  *Device
	outputs []kernels.Buffer

	step, prefill kernels.Rows
	cursors       kernels.Cursors
	slots         kernels.Slots
	kv            kernels.KV
	begin         kernels.Begin
	program       []func(kernels.Ops)
}

func (f *fixture) ints(v ...int32) kernels.Buffer {
	b := alloc(f, f.device, int64(4*len(v)))
	copy(i32(b), v)
	return b
}

// same is n equal integers.
func (f *fixture) same(n int, v int32) kernels.Buffer {
	b := alloc(f, f.device, int64(4*n))
	for i := range i32(b) {
		i32(b)[i] = v
	}
	return b
}

func (f *fixture) floats(n int) kernels.Buffer {
	b := alloc(f, f.device, int64(4*n))
	copy(f32(b), random(f.Rand, n))
	return b
}

func (f *fixture) in(rows, cols int) kernels.Mat {
	return kernels.NewMat(f.floats(rows*cols), kernels.F32, rows, cols)
}

func (f *fixture) out(rows, cols int) kernels.Mat {
	m := kernels.NewMat(f.output(rows*cols), kernels.F32, rows, cols)
	return m
}

// output is n four-byte elements that are compared.
func (f *fixture) output(n int) kernels.Buffer {
	b := alloc(f, f.device, int64(4*n))
	f.outputs = append(f.outputs, b)
	return b
}

func (f *fixture) weight(experts, rows, cols int) kernels.Weight {
	shape := []int{rows, cols}
	if experts > 0 {
		shape = []int{experts, rows, cols}
	}
	tensor, _ := hostTensor(f.Rand, kernels.BF16, shape...)
	w, err := f.device.Pack(kernels.WeightSpec{Name: "w", Experts: experts, Parts: []kernels.HostTensor{tensor}})
	if err != nil {
		f.Fatal(err)
	}
	return w
}

func (f *fixture) do(run func(kernels.Ops)) { f.program = append(f.program, run) }

func newFixture(t testing.TB, threads int, dtype kernels.DType) *fixture {
	f := &fixture{TB: t, Rand: rand.New(rand.NewPCG(9, 9)), device: open(t, threads)}
	f.addRows(dtype)
	f.addDense()
	f.addExperts()
	f.addAttention(f.prefill, "chunk")
	f.addAttention(f.step, "step")
	f.addSampling()
	return f
}

func (f *fixture) addRows(dtype kernels.DType) {
	f.step = kernels.Rows{Count: fixtureStep, Tokens: fixtureStep * fixtureT, T: fixtureT, MaxLen: fixtureT, Slot: f.ints(1, 2), N: f.ints(0, 0)}
	f.prefill = kernels.Rows{Count: 1, First: f.step.Tokens, Tokens: fixtureChunk, MaxLen: fixtureChunk, Slot: f.ints(3), N: f.ints(fixtureChunk), Start: f.ints(int32(f.step.Tokens))}
	f.cursors = kernels.Cursors{Origin: f.ints(0, 900, 1500, 600), H: f.ints(0, 3, 0, 0), Src: f.ints(0, 1, 2, 3), Dst: f.ints(0, 1, 2, 3)}
	f.slots = kernels.Slots{
		Active: f.ints(0, 1, 1, 0), Last: f.ints(0, 5, 6, 7), Drafts: f.ints(0, 0, 1, 2, 3, 4, 0, 0), DraftStride: 2,
		Params: alloc(f, f.device, fixtureSlots*kernels.SlotParamsBytes), Stops: f.same(fixtureSlots, -1), MaxStops: 1,
	}
	for i := range fixtureSlots {
		view[kernels.SlotParams](f.slots.Params)[i] = kernels.SlotParams{
			Seed: uint64(i), Temperature: 1, TopP: 0.9, TopK: 40, MinP: 0.001, Repetition: 1.1, Presence: 0.1, Frequency: 0.1, Flags: kernels.UsePenalties, MaxLen: 1900,
		}
	}
	f.kv = kernels.KV{PageTokens: fixturePage, Heads: 2, HeadDim: fixtureDim, DType: dtype, TableStride: fixtureStride}
	f.kv.PageStride = f.kv.PageBytes()
	f.kv.Pages = alloc(f, f.device, f.kv.PageStride*(1+fixtureSlots*fixtureStride))
	f.kv.Table = alloc(f, f.device, 4*fixtureSlots*fixtureStride)
	for i := range i32(f.kv.Table) {
		i32(f.kv.Table)[i] = int32(1 + i)
	}
	f.begin = kernels.Begin{
		Step: f.step, Prefill: f.prefill, Want: f.ints(3, 2), PrefillIDs: f.same(fixtureChunk, 11), Cursors: f.cursors, Slots: f.slots,
		IDs: f.output(fixtureTokens), Pos: f.output(fixtureTokens),
	}
	f.do(func(o kernels.Ops) { o.Begin(f.begin) })
	f.fill()
}

// fill writes random keys and values of long contexts once.
func (f *fixture) fill() {
	const n = 1600
	starts := f.ints(0, 0, 0)
	zero := f.same(fixtureSlots, 0)
	p := kernels.WriteKV{
		Rows:    kernels.Rows{Count: 3, Tokens: n, MaxLen: n, Slot: f.ints(1, 2, 3), N: f.ints(n, n, n), Start: starts},
		Cursors: kernels.Cursors{Origin: zero, H: zero, Src: zero, Dst: zero}, Pos: f.same(n, 0), KV: f.kv,
		Q: f.in(n, fixtureHeads*fixtureDim), K: f.in(n, 2*fixtureDim), V: f.in(n, 2*fixtureDim), QHeads: fixtureHeads, QStride: fixtureDim,
		QOut: f.in(n, fixtureHeads*fixtureDim), KScale: 0,
	}
	do(f, f.device, func(o kernels.Ops) { o.WriteKV(p) })
}

func (f *fixture) addDense() {
	const hidden, inner = 64, 80
	table, x, y := f.weight(0, fixtureVocab, hidden), f.out(fixtureTokens, hidden), f.out(fixtureTokens, hidden)
	up, down := f.weight(0, 2*inner, hidden), f.weight(0, hidden, inner)
	wide, act := f.out(fixtureTokens, 2*inner), f.out(fixtureTokens, inner)
	norm, gate, picked := f.floats(hidden), f.in(fixtureTokens, 1), f.out(3, hidden)
	index := f.ints(4, -1, 40)
	f.do(func(o kernels.Ops) {
		o.Embed(kernels.Embed{Table: table, IDs: f.begin.IDs, Out: x})
		o.Norm(kernels.Norm{X: x, Add: x, Y: y, Weight: norm, Eps: 1e-5})
		o.Linear(kernels.Linear{X: y, Y: wide, W: up})
		o.Activate(kernels.Activate{Kind: kernels.SiLUMul, X: wide, Y: act})
		o.Linear(kernels.Linear{X: act, Y: x, W: down, Add: true})
		o.AddGated(kernels.AddGated{Gate: gate, X: y, Y: x})
		o.GatherRows(kernels.GatherRows{X: x, Y: picked, Index: index})
	})
}

func (f *fixture) addExperts() {
	const hidden, inner, experts, topK = 48, 40, 16, 4
	logits, x, out := f.in(fixtureTokens, experts), f.in(fixtureTokens, hidden), f.out(fixtureTokens, hidden)
	up, down := f.weight(experts, 2*inner, hidden), f.weight(experts, hidden, inner)
	ids, weights := f.output(fixtureTokens*topK), f.output(fixtureTokens*topK)
	f.do(func(o kernels.Ops) {
		o.Route(kernels.Route{Logits: logits, Score: kernels.Sigmoid, TopK: topK, Groups: 4, TopGroups: 2, Normalize: true, Scale: 2.5, IDs: ids, Weights: weights})
		o.Experts(kernels.Experts{X: x, Out: out, Up: up, Down: down, Act: kernels.SiLUMul, IDs: ids, Weights: weights, TopK: topK})
	})
}

func (f *fixture) addAttention(r kernels.Rows, _ string) {
	const width = fixtureHeads * fixtureDim
	qOut, out, gate := f.out(fixtureTokens, width), f.out(fixtureTokens, width), f.in(fixtureTokens, width)
	write := kernels.WriteKV{
		Rows: r, Cursors: f.cursors, Pos: f.begin.Pos, KV: f.kv, Q: f.in(fixtureTokens, width), K: f.in(fixtureTokens, 2*fixtureDim), V: f.in(fixtureTokens, 2*fixtureDim),
		QHeads: fixtureHeads, QStride: fixtureDim, QNorm: f.floats(fixtureDim), KNorm: f.floats(fixtureDim), Eps: 1e-5, Rotary: 8, InvFreq: f.floats(4), QOut: qOut,
	}
	attend := kernels.Attend{Rows: r, Cursors: f.cursors, KV: f.kv, Q: qOut, QHeads: fixtureHeads, Scale: 0.2, Gate: gate, GateStride: fixtureDim, Out: out}
	f.do(func(o kernels.Ops) {
		o.WriteKV(write)
		o.Attend(attend)
	})
}

func (f *fixture) addSampling() {
	const rows, topN = 7, 5
	first, logits := f.in(rows, fixtureVocab), f.in(rows, fixtureVocab)
	words := (fixtureVocab + 31) / 32
	tables := kernels.SlotTables{
		Counts: f.same(fixtureSlots*fixtureVocab, 0), Seen: f.same(fixtureSlots*words, 5), Allowed: f.same(fixtureSlots*words, -1), Vocab: fixtureVocab,
	}
	sample := kernels.Sample{
		Logits: logits, Token: f.ints(0, 1, 2, 3, 4, 5, fixtureTokens-1), Slot: f.ints(1, 1, 1, 2, 2, 0, 3), Target: f.ints(-1, -1, 9, -1, -1, -1, -1),
		Depth: f.ints(0, 1, 2, 0, 1, 2, 0), IDs: f.begin.IDs, Pos: f.begin.Pos, Slots: f.slots, Tables: tables, TopN: topN,
		Out: f.output(rows), LogProb: f.output(rows), Rank: f.output(rows), TopID: f.output(rows * topN), TopProb: f.output(rows * topN),
	}
	commit := kernels.Commit{
		Step: f.step, Prefill: f.prefill, Cursors: f.cursors, Slots: f.slots, Tables: tables, Window: kernels.Window{L: 8, T: 3}, Pos: f.begin.Pos,
		Sampled: sample.Out, Final: f.ints(6), Accepted: f.output(3), Finish: f.output(3),
	}
	f.do(func(o kernels.Ops) {
		o.Copy(logits.Buf, first.Buf)
		o.Sample(sample)
		o.Commit(commit)
	})
}

func (f *fixture) Run(o kernels.Ops) {
	for _, run := range f.program {
		run(o)
	}
}

// results is all outputs.
func (f *fixture) results() []byte {
	var all []byte
	for _, b := range f.outputs {
		all = append(all, bytesOf(b)...)
	}
	return append(all, bytesOf(f.kv.Pages)...)
}

var cacheTypes = []kernels.DType{kernels.F32, kernels.BF16, kernels.F8E4M3}

func TestThreadsDoNotChangeResults(t *testing.T) { eachLevel(t, testThreadsDoNotChangeResults) }

func testThreadsDoNotChangeResults(t *testing.T) {
	for _, dtype := range cacheTypes {
		var want []byte
		for _, threads := range []int{1, 2, 5} {
			f := newFixture(t, threads, dtype)
			for range 2 {
				do(t, f.device, f.Run)
			}
			if got := f.results(); want == nil {
				want = got
			} else if !bytes.Equal(got, want) {
				t.Errorf("%s cache: %d threads differ from one", dtype, threads)
			}
		}
	}
}

func TestOperationsDoNotAllocate(t *testing.T) {
	for _, dtype := range cacheTypes {
		f := newFixture(t, 2, dtype)
		noAllocations(t, f.device, f.Run)
	}
}

// Cutting a context into other chunks, or asking for one token alone, changes no bit of attention.
func TestAttentionIgnoresChunks(t *testing.T) { eachLevel(t, testAttentionIgnoresChunks) }

func testAttentionIgnoresChunks(t *testing.T) {
	for _, dtype := range cacheTypes {
		f := newFixture(t, 2, dtype)
		const n, width = 100, fixtureHeads * fixtureDim
		q, whole, parts := f.in(n, width), f.in(n, width), f.in(n, width)
		attend := func(from, count int, step bool, out kernels.Mat) {
			r := kernels.Rows{Count: 1, First: from, Tokens: count, MaxLen: count, Slot: f.ints(2), N: f.ints(int32(count)), Start: f.ints(int32(from))}
			if step {
				r.T = count
			}
			zero := f.same(fixtureSlots, 0)
			c := kernels.Cursors{Origin: f.same(fixtureSlots, int32(1450+from)), H: zero, Src: zero, Dst: zero}
			p := kernels.Attend{Rows: r, Cursors: c, KV: f.kv, Q: q, QHeads: fixtureHeads, Scale: 0.2, Out: out}
			do(t, f.device, func(o kernels.Ops) { o.Attend(p) })
		}
		attend(0, n, false, whole)
		for from, i := 0, 0; from < n; i++ {
			count := min(n-from, []int{1, 2, 3, 17}[i%4])
			attend(from, count, i%4 < 3, parts)
			from += count
		}
		if !bytes.Equal(bytesOf(whole.Buf), bytesOf(parts.Buf)) {
			t.Errorf("%s cache: results depend on the chunks", dtype)
		}
	}
}

func TestSegmentsFollowEachOther(t *testing.T) {
	end := 0
	for n := range 100 {
		from, to := segmentRange(n)
		if from != end || to <= from || from%blockTokens != 0 || to%blockTokens != 0 {
			t.Fatalf("segment %d is [%d, %d) behind %d", n, from, to, end)
		}
		end = to
		for _, keys := range []int{from + 1, to} {
			tile := queryTile{position: keys - 1, tokens: 1}
			if got := tile.segments(); got != n+1 {
				t.Fatalf("%d keys: %d segments, want %d", keys, got, n+1)
			}
		}
	}
	if end < 1<<18 {
		t.Errorf("100 segments hold %d tokens", end)
	}
}

// A row of NaN must neither hang nor fault: the engine decides what to do with it.
func TestSampleSurvivesNaN(t *testing.T) {
	f := newFixture(t, 1, kernels.F32)
	do(t, f.device, f.Run)
	nan := alloc(t, f.device, 7*fixtureVocab*4)
	for i := range i32(nan) {
		i32(nan)[i] = 0x7fc00000
	}
	logits := kernels.NewMat(nan, kernels.F32, 7, fixtureVocab)
	words := (fixtureVocab + 31) / 32
	for _, p := range []kernels.SlotParams{{Temperature: 1, TopP: 1}, {Temperature: 1, TopP: 0.5}, {Temperature: 1, TopP: 0.5, TopK: 4, MinP: 0.1}, {}} {
		view[kernels.SlotParams](f.slots.Params)[1] = p
		sample := kernels.Sample{
			Logits: logits, Token: f.same(7, 0), Slot: f.same(7, 1), Target: f.same(7, -1), Depth: f.same(7, 0), IDs: f.begin.IDs, Pos: f.begin.Pos,
			Slots: f.slots, TopN: 2, Tables: kernels.SlotTables{Vocab: fixtureVocab, Seen: f.same(fixtureSlots*words, 0)},
			Out: f.output(7), LogProb: f.output(7), Rank: f.output(7), TopID: f.output(14), TopProb: f.output(14),
		}
		do(t, f.device, func(o kernels.Ops) { o.Sample(sample) })
		for _, id := range i32(sample.Out) {
			if id < 0 || id >= fixtureVocab {
				t.Errorf("%+v: token %d", p, id)
			}
		}
	}
}
