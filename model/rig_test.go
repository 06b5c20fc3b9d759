package model_test

import (
	"encoding/binary"
	"testing"

	"reprise/attention"
	"reprise/kernels"
	"reprise/model"
	"reprise/ssm"
)

const (
	rigSlots  = 8
	rigTokens = 320 // of a batch
	rigLen    = 256 // of a sequence
	rigPage   = 16
)

// rig is a model with the least around it that can run sequences: slots 1..7, each with a state block and pages of its
// own, in no particular order.
type rig struct {
	t      testing.TB
	dev    kernels.Device
	model  model.Model
	spec   model.Spec
	window kernels.Window
	states *ssm.Pool
	cache  *attention.Pool
	slots  kernels.Slots
	ids    kernels.Buffer
	pos    kernels.Buffer
	logits kernels.Mat
	hidden kernels.Mat // a copy of hidden rows, input of the MTP head
}

func newRig(t testing.TB, dev kernels.Device, g *golden, w kernels.Window) *rig {
	t.Helper()
	return newRigFrom(t, dev, g.config, g.source, w)
}

func newRigFrom(t testing.TB, dev kernels.Device, c model.Config, source model.Tensors, w kernels.Window) *rig {
	t.Helper()
	r := &rig{t: t, dev: dev, spec: c.Spec(), window: w}
	r.model = must(c.Load(dev, source, rigTokens))(t)
	s := r.spec
	r.states = must(ssm.NewPool(dev, ssm.PoolConfig{
		Mamba2: s.Mamba2, Mamba2Layers: s.Mamba2Layers, Delta: s.Delta, DeltaLayers: s.DeltaLayers,
		Window: w, Activations: dev.Activations(), Slots: rigSlots, Blocks: 2 * rigSlots,
	}))(t)
	mtpLayers := 0
	if s.MTP != nil {
		mtpLayers = s.MTP.AttentionLayers
	}
	pages := rigLen / rigPage * rigSlots
	r.cache = must(attention.NewPool(dev, attention.PoolConfig{
		Layers: s.AttentionLayers, MTPLayers: mtpLayers, KVHeads: s.KVHeads, HeadDim: s.HeadDim, DType: kernels.F32,
		PageTokens: rigPage, Pages: pages, Slots: rigSlots, MaxLen: rigLen,
	}))(t)
	r.slots = kernels.Slots{
		Active: r.alloc(rigSlots * 4), Last: r.alloc(rigSlots * 4), Drafts: r.alloc(rigSlots * 4 * w.T),
		Params: r.alloc(rigSlots * kernels.SlotParamsBytes), Stops: r.alloc(rigSlots * 4), DraftStride: w.T, MaxStops: 1,
	}
	r.ids, r.pos = r.alloc(rigTokens*4), r.alloc(rigTokens*4)
	r.logits = kernels.NewMat(r.alloc(rigTokens*s.Vocab*4), kernels.F32, rigTokens, s.Vocab)
	r.hidden = kernels.NewMat(r.alloc(rigTokens*s.Hidden*4), kernels.F32, rigTokens, s.Hidden)
	return r
}

func (r *rig) alloc(bytes int) kernels.Buffer {
	r.t.Helper()
	return must(r.dev.Alloc(int64(bytes)))(r.t)
}

// ints is a buffer that holds v.
func (r *rig) ints(v ...int32) kernels.Buffer {
	r.t.Helper()
	b := r.alloc(4 * max(1, len(v)))
	r.run(func(o kernels.Ops) { o.Upload(b.Slice(0, int64(4*len(v))), bytesOf(v)) })
	return b
}

func bytesOf(v []int32) []byte {
	b := make([]byte, 0, 4*len(v))
	for _, x := range v {
		b = binary.LittleEndian.AppendUint32(b, uint32(x))
	}
	return b
}

func (r *rig) run(f func(kernels.Ops)) {
	r.t.Helper()
	r.dev.Submit(kernels.ProgramFunc(f))
	if err := r.dev.Wait(r.dev.Mark()); err != nil {
		if fault, ok := err.(*kernels.Fault); ok {
			r.t.Fatalf("%v\n%s", err, fault.Stack)
		}
		r.t.Fatal(err)
	}
}

// open makes a slot an empty sequence whose ring and pages hold another's leftovers, if any.
func (r *rig) open(slot int) {
	block := int32(2*rigSlots - slot)
	stride := r.cache.TableStride()
	table := make([]int32, stride)
	for i := range table { // 127 pages, a prime: a permutation
		table[i] = int32(1 + ((slot-1)*stride+i)*5%(rigLen/rigPage*rigSlots-1))
	}
	params, err := binary.Append(nil, binary.LittleEndian, kernels.SlotParams{MaxLen: 1 << 30, Repetition: 1, TopP: 1})
	if err != nil || len(params) != kernels.SlotParamsBytes {
		r.t.Fatal(len(params), err)
	}
	r.run(func(o kernels.Ops) {
		r.states.ZeroBlock(o, int(block))
		r.states.SetCursor(o, slot, kernels.Cursor{Src: block, Dst: block})
		o.Upload(r.cache.Table().Slice(int64(slot*stride*4), int64(stride*4)), bytesOf(table))
		o.Upload(r.slots.Active.Slice(int64(slot*4), 4), bytesOf([]int32{1}))
		o.Upload(r.slots.Stops.Slice(int64(slot*4), 4), bytesOf([]int32{-1}))
		o.Upload(r.slots.Params.Slice(int64(slot*kernels.SlotParamsBytes), kernels.SlotParamsBytes), params)
	})
}

// row is one sequence's share of a pass: tokens from position at. A step row's tokens after the first are drafts.
type row struct {
	slot    int
	at      int
	tokens  []int32
	prefill bool

	logits [][]float32 // out, by token
	hidden [][]float32 // out, by token
}

// batch lays rows out, step rows first, and returns the first token of each.
func (r *rig) batch(t int, rows []*row) (*model.Batch, []int) {
	b := &model.Batch{
		IDs: r.ids, Pos: r.pos, Cursors: r.states.Cursors(), SSM: r.states.Layers(), KV: r.cache.Layers(), MTPKV: r.cache.MTPLayers(),
	}
	first := make([]int, len(rows))
	var ids, pos []int32
	for i, w := range rows {
		first[i] = len(ids)
		for j, id := range w.tokens {
			ids, pos = append(ids, id), append(pos, int32(w.at+j))
		}
		for j := len(w.tokens); !w.prefill && j < t; j++ {
			ids, pos = append(ids, 0), append(pos, -1)
		}
	}
	b.Tokens = len(ids)
	b.Step = r.rowsOf(rows, first, false, t)
	b.Prefill = r.rowsOf(rows, first, true, 0)
	b.Prefill.First = b.Step.Tokens
	r.run(func(o kernels.Ops) {
		o.Upload(r.ids.Slice(0, int64(4*len(ids))), bytesOf(ids))
		o.Upload(r.pos.Slice(0, int64(4*len(pos))), bytesOf(pos))
	})
	return b, first
}

func (r *rig) rowsOf(rows []*row, first []int, prefill bool, t int) kernels.Rows {
	out := kernels.Rows{T: t, MaxLen: t}
	var slot, n, start []int32
	for i, w := range rows {
		if w.prefill != prefill {
			continue
		}
		slot, n, start = append(slot, int32(w.slot)), append(n, int32(len(w.tokens))), append(start, int32(first[i]))
		out.Count++
		out.Tokens += max(t, len(w.tokens))
		out.MaxLen = max(out.MaxLen, len(w.tokens))
	}
	if out.Count == 0 {
		return kernels.Rows{}
	}
	out.Slot, out.N, out.Start = r.ints(slot...), r.ints(n...), r.ints(start...)
	return out
}

// forward runs a pass over rows (step rows before prefill rows) and fills in their logits and hidden rows.
func (r *rig) forward(t int, rows ...*row) *model.Batch {
	r.t.Helper()
	b, first := r.batch(t, rows)
	logits := make([]byte, b.Tokens*r.spec.Vocab*4)
	hidden := make([]byte, b.Tokens*r.spec.Hidden*4)
	r.run(func(o kernels.Ops) {
		h := r.model.Forward(o, b)
		out := r.logits.RowRange(0, b.Tokens)
		r.model.Logits(o, h, out)
		o.Download(logits, out.Buf)
		o.Download(hidden, h.Buf)
	})
	for i, w := range rows {
		w.logits = cut(logits, first[i], len(w.tokens), r.spec.Vocab)
		w.hidden = cut(hidden, first[i], len(w.tokens), r.spec.Hidden)
	}
	return b
}

func cut(data []byte, first, n, width int) [][]float32 {
	out := make([][]float32, n)
	for i := range out {
		out[i] = floats(data[(first+i)*width*4:][:width*4])
	}
	return out
}

// commit ends a pass: what the largest logits say is sampled, and drafts that agree are accepted. It returns the
// accepted tokens by row of the batch, step rows only.
func (r *rig) commit(b *model.Batch, rows ...*row) []int32 {
	r.t.Helper()
	sampled, final := make([]int32, b.Tokens), []int32{}
	for i, w := range rows {
		if w.prefill {
			final = append(final, -1)
			continue
		}
		for j, l := range w.logits {
			sampled[i*b.Step.T+j] = argmax(l)
		}
		at := int64(w.slot * r.slots.DraftStride * 4)
		r.run(func(o kernels.Ops) {
			o.Upload(r.slots.Drafts.Slice(at, int64(4*(len(w.tokens)-1))), bytesOf(w.tokens[1:]))
		})
	}
	n := len(rows)
	accepted, finish := r.alloc(4*n), r.alloc(4*n)
	c := kernels.Commit{
		Step: b.Step, Prefill: b.Prefill, Cursors: b.Cursors, Slots: r.slots, Tables: kernels.SlotTables{Vocab: r.spec.Vocab},
		Window: r.window, Pos: r.pos, Sampled: r.ints(sampled...), Final: r.ints(final...), Accepted: accepted, Finish: finish,
	}
	out := make([]byte, 4*n)
	r.run(func(o kernels.Ops) {
		o.Commit(c)
		o.Download(out, accepted)
	})
	got := make([]int32, b.Step.Count)
	for i := range got {
		got[i] = int32(binary.LittleEndian.Uint32(out[4*i:]))
	}
	return got
}
