package cpu

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"reprise/kernels"
)

// repeat measures a program.
func repeat(b *testing.B, d *Device, run func(kernels.Ops)) float64 {
	p := kernels.ProgramFunc(run)
	for b.Loop() {
		d.Submit(p)
		if err := d.Wait(d.Mark()); err != nil {
			b.Fatal(err)
		}
	}
	return b.Elapsed().Seconds() / float64(b.N)
}

// BenchmarkAttend has 16 query heads and 2 KV heads of 256, as Qwen3.5 has.
func BenchmarkAttend(b *testing.B) {
	const heads, kvHeads, dim, page, context = 16, 2, 256, 64, 4096
	for _, dtype := range cacheTypes {
		for _, n := range []int{1, 4, 256} {
			f := &fixture{TB: b, Rand: rand.New(rand.NewPCG(3, 3)), device: open(b, 0)}
			kv := kernels.KV{PageTokens: page, Heads: kvHeads, HeadDim: dim, DType: dtype, TableStride: 2 * context / page}
			kv.PageStride = kv.PageBytes()
			kv.Pages = alloc(b, f.device, kv.PageStride*int64(2*kv.TableStride))
			kv.Table = alloc(b, f.device, int64(8*kv.TableStride))
			for i := range i32(kv.Table) {
				i32(kv.Table)[i] = int32(i)
			}
			zero := f.same(2, 0)
			c := kernels.Cursors{Origin: f.ints(0, context), H: zero, Src: zero, Dst: zero}
			fill := kernels.WriteKV{
				Rows: kernels.Rows{Count: 1, Tokens: context, MaxLen: context, Slot: f.ints(1), N: f.ints(context), Start: f.ints(0)}, KV: kv,
				Cursors: kernels.Cursors{Origin: zero, H: zero, Src: zero, Dst: zero}, Pos: f.same(context, 0),
				Q: f.in(context, kvHeads*dim), K: f.in(context, kvHeads*dim), V: f.in(context, kvHeads*dim), QHeads: kvHeads, QStride: dim,
				QOut: f.in(context, kvHeads*dim),
			}
			do(b, f.device, func(o kernels.Ops) { o.WriteKV(fill) })
			rows := kernels.Rows{Count: 1, Tokens: n, MaxLen: n, Slot: f.ints(1), N: f.ints(int32(n)), Start: f.ints(0)}
			p := kernels.Attend{Rows: rows, Cursors: c, KV: kv, Q: f.in(n, heads*dim), QHeads: heads, Scale: 0.06, Out: f.in(n, heads*dim)}
			b.Run(fmt.Sprintf("%s/n%d", dtype, n), func(b *testing.B) {
				s := repeat(b, f.device, func(o kernels.Ops) { o.Attend(p) })
				b.ReportMetric(float64(2*kvHeads*context*dim*dtype.Size())/s/1e9, "GB/s")
				b.ReportMetric(float64(4*n*heads*context*dim)/s/1e9, "GFLOP/s")
			})
		}
	}
}

func BenchmarkSample(b *testing.B) {
	const vocab = 248320
	f := &fixture{TB: b, Rand: rand.New(rand.NewPCG(3, 3)), device: open(b, 0)}
	f.addRows(kernels.F32)
	first, logits := f.in(1, vocab), f.in(1, vocab)
	for name, p := range map[string]kernels.SlotParams{
		"greedy": {TopP: 1}, "plain": {Temperature: 1, TopP: 1}, "top-k": {Temperature: 1, TopP: 1, TopK: 20}, "top-p": {Temperature: 1, TopP: 0.95},
		"both": {Temperature: 0.6, TopP: 0.95, TopK: 20},
	} {
		view[kernels.SlotParams](f.slots.Params)[1] = p
		s := kernels.Sample{
			Logits: logits, Token: f.ints(0), Slot: f.ints(1), Target: f.ints(-1), Depth: f.ints(0), IDs: f.same(1, 0), Pos: f.same(1, 0),
			Slots: f.slots, Tables: kernels.SlotTables{Vocab: vocab}, Out: f.same(1, 0),
		}
		b.Run(name, func(b *testing.B) {
			repeat(b, f.device, func(o kernels.Ops) {
				o.Copy(logits.Buf, first.Buf)
				o.Sample(s)
			})
		})
	}
}
