package kernelbench

import (
	"fmt"
	"math"

	"reprise/kernels"
)

var inf = float32(math.Inf(1))

func attentionCases(small bool) (out []maker) {
	type shape struct{ rows, t, context, heads, kv, dim int }
	shapes := []shape{
		{1, 1, 2048, 40, 8, 128}, {32, 1, 256, 40, 8, 128}, {32, 1, 2048, 40, 8, 128}, {8, 4, 2048, 40, 8, 128},
		{1, 1, 2048, 16, 4, 256}, {32, 1, 2048, 16, 4, 256}, {1, 1, 32768, 16, 4, 256},
	}
	chunks := []int{512, 2048}
	if small {
		shapes, chunks = []shape{{2, 1, 33, 4, 2, 128}}, []int{33}
	}
	for _, s := range shapes {
		for _, t := range []kernels.DType{kernels.F32, kernels.BF16, kernels.F8E4M3} {
			name := fmt.Sprintf("B=%d T=%d context %d, %d/%d x %d, %s", s.rows, s.t, s.context, s.heads, s.kv, s.dim, t)
			out = append(out, maker{"attend step", name, func(l *lab) Case { return attend(l, s.rows, s.t, s.context, s.heads, s.kv, s.dim, t) }})
		}
	}
	for _, n := range chunks {
		for _, d := range []struct{ heads, kv, dim int }{{40, 8, 128}, {16, 4, 256}} {
			name := fmt.Sprintf("%d tokens, %d/%d x %d", n, d.heads, d.kv, d.dim)
			out = append(out, maker{"attend prefill", name, func(l *lab) Case { return attendPrefill(l, n, d.heads, d.kv, d.dim) }})
		}
	}
	return out
}

// pages is a cache of the given slots, each with context tokens in pages of 16 in random order.
func (l *lab) pages(slots, context, kv, dim int, t kernels.DType) (kernels.KV, kernels.Cursors) {
	each := (context + 16 + 15) / 16
	k := kernels.KV{PageTokens: 16, Heads: kv, HeadDim: dim, DType: t, TableStride: each}
	k.PageStride = k.PageBytes()
	n := int64(slots*each + 1)
	if t == kernels.F8E4M3 { // scales lie among the elements: float32 numbers give valid ones, and elements of any value
		k.Pages = l.floats(kernels.F32, n*k.PageStride/4, 0.01)
	} else {
		k.Pages = l.floats(t, n*k.PageStride/int64(t.Size()), 1)
	}
	order := l.rng.Perm(slots * each)
	k.Table = l.sequence((slots+1)*each, func(i int) int {
		if i < each {
			return 0
		}
		return 1 + order[i-each]
	})
	zero := l.sequence(slots+1, func(int) int { return 0 })
	return k, kernels.Cursors{Origin: l.sequence(slots+1, func(int) int { return context - 1 }), H: zero, Src: zero, Dst: zero}
}

func attend(l *lab, rows, t, context, heads, kv, dim int, dtype kernels.DType) Case {
	k, cursors := l.pages(rows, context, kv, dim, dtype)
	line := float64(dim * dtype.Size())
	if dtype == kernels.F8E4M3 {
		line += 4
	}
	n := float64(rows)
	c := Case{
		Bytes: n*2*float64(context*kv)*line + 2*n*float64(t*heads*dim*l.act().Size()),
		Flops: 4 * n * float64(t*context*heads*dim), Sets: 1,
	}
	q, y := l.mat(rows*t, heads*dim, 1), l.mat(rows*t, heads*dim, 0)
	r := kernels.Rows{Count: rows, Tokens: rows * t, T: t, MaxLen: t, Slot: l.sequence(rows, func(i int) int { return i + 1 }), N: l.sequence(rows, func(int) int { return t })}
	c.Run = func(o kernels.Ops, _ int) {
		o.Attend(kernels.Attend{Rows: r, Cursors: cursors, KV: k, Q: q, QHeads: heads, Scale: 0.0625, Out: y})
	}
	return c
}

func attendPrefill(l *lab, tokens, heads, kv, dim int) Case {
	dtype := l.act()
	k, cursors := l.pages(1, tokens, kv, dim, dtype)
	cursors.Origin = cursors.H // nothing before the chunk
	n := float64(tokens)
	c := Case{Bytes: 2*n*float64(kv*dim*dtype.Size()) + 2*n*float64(heads*dim*l.act().Size()), Flops: 2 * n * n * float64(heads*dim), Sets: 1}
	q, y := l.mat(tokens, heads*dim, 1), l.mat(tokens, heads*dim, 0)
	r := kernels.Rows{Count: 1, Tokens: tokens, MaxLen: tokens, Slot: l.ints(1), N: l.ints(int32(tokens)), Start: l.ints(0)}
	c.Run = func(o kernels.Ops, _ int) {
		o.Attend(kernels.Attend{Rows: r, Cursors: cursors, KV: k, Q: q, QHeads: heads, Scale: 0.0625, Out: y})
	}
	return c
}

func sampleCases(small bool) (out []maker) {
	vocab, rows := 248320, []int{1, 32}
	if small {
		vocab, rows = 192, rows[:1]
	}
	for _, b := range rows {
		out = append(out,
			maker{"sample greedy", fmt.Sprintf("%d x %d", b, vocab), func(l *lab) Case { return sample(l, b, vocab, kernels.SlotParams{TopP: 1, Repetition: 1}) }},
			maker{"sample top-k 20 top-p", fmt.Sprintf("%d x %d", b, vocab), func(l *lab) Case {
				return sample(l, b, vocab, kernels.SlotParams{Temperature: 1, TopP: 0.95, TopK: 20, Repetition: 1})
			}},
			maker{"sample all", fmt.Sprintf("%d x %d", b, vocab), func(l *lab) Case {
				return sample(l, b, vocab, kernels.SlotParams{Temperature: 1, TopP: 1, Repetition: 1})
			}})
	}
	return out
}

func sample(l *lab, rows, vocab int, p kernels.SlotParams) Case {
	c := Case{Bytes: 4 * float64(rows*vocab), Flops: 2 * float64(rows*vocab), Sets: 1}
	const stops, bias = 4, 4
	p.MaxLen = 1 << 20
	params := make([]kernels.SlotParams, rows+1)
	for i := range params {
		params[i] = p
	}
	buf := l.alloc(int64(len(bytesOf(params))))
	l.upload(buf, bytesOf(params))
	words := int64((vocab + 31) / 32)
	one := func(n int64) kernels.Buffer { return l.alloc(n * 4) }
	seq := l.sequence(rows, func(i int) int { return i })
	slot := l.sequence(rows, func(i int) int { return i + 1 })
	none := l.sequence((rows+1)*stops, func(int) int { return -1 })
	s := kernels.Sample{
		Logits: l.matOf(kernels.F32, rows, vocab, 10), Token: seq, Slot: slot, Target: none.Slice(0, int64(rows)*4), Depth: one(int64(rows)),
		IDs: one(int64(rows)), Pos: seq,
		Slots: kernels.Slots{Active: slot, Last: slot, Drafts: slot, DraftStride: 1, Params: buf, Stops: none, MaxStops: stops},
		Tables: kernels.SlotTables{
			Counts: one(int64(rows+1) * int64(vocab)), Seen: one(int64(rows+1) * words), Allowed: one(int64(rows+1) * words),
			BiasID: one(int64(rows+1) * bias), Bias: one(int64(rows+1) * bias), Vocab: vocab, MaxBias: bias,
		},
		Out: one(int64(rows)), LogProb: one(int64(rows)), Rank: one(int64(rows)), TopID: one(int64(rows)), TopProb: one(int64(rows)),
	}
	c.Run = func(o kernels.Ops, _ int) { o.Sample(s) }
	return c
}
