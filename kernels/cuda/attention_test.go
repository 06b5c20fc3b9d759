//go:build cuda

package cuda

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"reprise/kernels"
)

// paged is attention layers with equal tables over pages of their own, full of made-up numbers.
type paged struct {
	layers  []kernels.KV
	cursors kernels.Cursors
	slot    kernels.Buffer
}

// ints uploads n numbers.
func (r *rig) ints(n int, f func(i int) int) kernels.Buffer {
	r.Helper()
	v := make([]int32, n)
	for i := range v {
		v[i] = int32(f(i))
	}
	return r.upload(bytesOf(v))
}

// fill repeats a block of random bytes: small finite numbers in every type.
func (r *rig) fill(b kernels.Buffer) {
	r.Helper()
	block := make([]byte, min(b.Size, 8<<20))
	for i := range block {
		block[i] = byte(r.rng.Uint32()) & 0x37
	}
	r.repeat(b, block)
}

// normals fills b with bf16 of a normal distribution: what products cost depends on how many bits differ.
func (r *rig) normals(b kernels.Buffer) {
	r.Helper()
	r.repeat(b, bytesOf(r.bf16s(int(min(b.Size, 4<<20))/2, 1)))
}

func (r *rig) repeat(b kernels.Buffer, block []byte) {
	r.Helper()
	r.do(func(o kernels.Ops) { o.Upload(b.Slice(0, int64(len(block))), block) })
	r.do(func(o kernels.Ops) {
		for at := int64(len(block)); at < b.Size; at += int64(len(block)) {
			n := min(int64(len(block)), b.Size-at)
			o.Copy(b.Slice(at, n), b.Slice(0, n))
		}
	})
}

func (r *rig) paged(layers, rows, context, heads, dim, most int, dtype kernels.DType) paged {
	r.Helper()
	const tokens = 16
	each := (context + tokens - 1) / tokens
	k := kernels.KV{PageTokens: tokens, Heads: heads, HeadDim: dim, DType: dtype, TableStride: max(each, most/tokens)}
	k.PageStride = k.PageBytes()
	order := r.rng.Perm(rows * each)
	k.Table = r.ints((rows+1)*k.TableStride, func(i int) int {
		row, page := i/k.TableStride-1, i%k.TableStride
		if row < 0 || page >= each {
			return 0
		}
		return 1 + order[row*each+page]
	})
	p := paged{slot: r.ints(rows, func(i int) int { return i + 1 })}
	for range layers {
		k.Pages = r.alloc((rows*each + 1) * int(k.PageStride))
		r.fill(k.Pages)
		p.layers = append(p.layers, k)
	}
	zero := r.ints(rows+1, func(int) int { return 0 })
	p.cursors = kernels.Cursors{Origin: zero, H: zero, Src: zero, Dst: zero}
	return p
}

// attendTimes are steps of real models; 40/8 x 128 and 32/2 x 128 are Nemotron's, 16/4 x 256 is Qwen's.
func (r *rig) attendStep(rows, t, context, queries, heads, dim int, dtype kernels.DType) (seconds, bytes float64) {
	r.Helper()
	line := dim * dtype.Size()
	if dtype == kernels.F8E4M3 {
		line += 4
	}
	kv := 2 * rows * context * heads * line
	p := r.paged(min(max(256<<20/kv, 1), 16), rows, context, heads, dim, 32768, dtype)
	defer r.drop(p)
	p.cursors.Origin = r.ints(rows+1, func(int) int { return context - t })
	q := kernels.NewMat(r.alloc(rows*t*queries*dim*2), kernels.BF16, rows*t, queries*dim)
	defer r.dev.Free(q.Buf)
	r.fill(q.Buf)
	y := kernels.NewMat(r.alloc(rows*t*queries*dim*2), kernels.BF16, rows*t, queries*dim)
	defer r.dev.Free(y.Buf)
	step := kernels.Rows{Count: rows, Tokens: rows * t, T: t, MaxLen: t, Slot: p.slot, N: r.ints(rows, func(int) int { return t })}
	s, err := r.dev.Time(7, kernels.ProgramFunc(func(o kernels.Ops) {
		for _, k := range p.layers {
			o.Attend(kernels.Attend{Rows: step, Cursors: p.cursors, KV: k, Q: q, QHeads: queries, Scale: 0.0625, Out: y})
		}
	}))
	if err != nil {
		r.Fatal(err)
	}
	return s / float64(len(p.layers)), float64(kv + 4*rows*t*queries*dim)
}

func (r *rig) drop(p paged) {
	for _, k := range p.layers {
		r.dev.Free(k.Pages)
	}
}

// Times of attention beside the time that reading keys and values once takes.
func TestAttendTimes(t *testing.T) {
	r := newTimer(t)
	rate, _, err := r.dev.MeasuredRates()
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("R %.3g TB/s\n", rate/1e12)
	for _, s := range [][6]int{
		{1, 1, 256, 40, 8, 128}, {1, 1, 512, 40, 8, 128}, {1, 1, 1024, 40, 8, 128}, {1, 1, 2048, 40, 8, 128}, {1, 1, 256, 16, 4, 256}, {1, 1, 512, 16, 4, 256}, {1, 1, 1024, 16, 4, 256}, {32, 1, 256, 16, 4, 256}, {32, 1, 256, 40, 8, 128}, {32, 1, 2048, 40, 8, 128}, {8, 4, 2048, 40, 8, 128}, {32, 4, 2048, 40, 8, 128}, {32, 8, 2048, 40, 8, 128}, {256, 1, 256, 40, 8, 128}, {64, 1, 8192, 40, 8, 128}, {16, 1, 32768, 40, 8, 128},
		{32, 1, 2048, 32, 2, 128}, {32, 8, 2048, 32, 2, 128},
		{1, 1, 2048, 16, 4, 256}, {32, 1, 2048, 16, 4, 256}, {32, 4, 2048, 16, 4, 256}, {256, 1, 256, 16, 4, 256}, {1, 1, 32768, 16, 4, 256}, {16, 1, 32768, 16, 4, 256},
		{1, 4, 2048, 40, 8, 128}, {1, 4, 2048, 16, 4, 256}, {256, 4, 256, 40, 8, 128}, {256, 4, 256, 16, 4, 256},
	} {
		fmt.Printf("B=%-3d T=%d context %5d %d/%d x %d:", s[0], s[1], s[2], s[3], s[4], s[5])
		var times []float64
		for _, dtype := range []kernels.DType{kernels.BF16, kernels.F8E4M3} {
			seconds, bytes := r.attendStep(s[0], s[1], s[2], s[3], s[4], s[5], dtype)
			fmt.Printf("  %s %8.2f us, floor %8.2f, ratio %5.2f", dtype, seconds*1e6, bytes/rate*1e6, seconds*rate/bytes)
			times = append(times, seconds)
		}
		if times[1] > times[0] {
			fmt.Print("  e4m3 IS SLOWER")
		}
		fmt.Println()
	}
}

// Times of attention of prompts and of their chunks.
func TestPrefillTimes(t *testing.T) {
	r := newTimer(t)
	for _, s := range []prefillShape{
		{1, 512, 512, 40, 8, 128}, {1, 2048, 2048, 40, 8, 128}, {16, 2048, 2048, 40, 8, 128}, {1, 8192, 8192, 40, 8, 128}, {1, 2048, 32768, 40, 8, 128}, {1, 8192, 32768, 40, 8, 128}, {1, 32768, 32768, 40, 8, 128},
		{1, 2048, 2048, 16, 4, 256}, {16, 2048, 2048, 16, 4, 256}, {1, 8192, 8192, 16, 4, 256}, {1, 2048, 32768, 16, 4, 256}, {1, 8192, 32768, 16, 4, 256}, {1, 32768, 32768, 16, 4, 256},
	} {
		fmt.Printf("prefill %2d x %5d of %5d tokens %d/%d x %d:", s.rows, s.n, s.context, s.queries, s.heads, s.dim)
		for _, dtype := range []kernels.DType{kernels.BF16, kernels.F8E4M3} {
			seconds, flops := r.attendPrefill(s, dtype)
			fmt.Printf("  %s %8.1f us, %4.0f TFLOP/s", dtype, seconds*1e6, flops/seconds/1e12)
		}
		fmt.Println()
	}
}

// prefillShape is rows that append n tokens each to a context, which counts them.
type prefillShape struct{ rows, n, context, queries, heads, dim int }

func (r *rig) attendPrefill(s prefillShape, dtype kernels.DType) (seconds, flops float64) {
	r.Helper()
	tokens, width := s.rows*s.n, s.queries*s.dim
	p := r.paged(1, s.rows, s.context, s.heads, s.dim, 32768, dtype)
	defer r.drop(p)
	var m [3]kernels.Mat // queries, keys and values, outputs
	all := s.rows * s.context
	for i, cols := range [...]int{width, s.heads * s.dim, width} {
		m[i] = kernels.NewMat(r.alloc(all*cols*2), kernels.BF16, all, cols)
		defer r.dev.Free(m[i].Buf)
		r.normals(m[i].Buf)
	}
	whole, pos := r.prefill(s, s.context, &p), r.ints(all, func(i int) int { return i })
	r.do(func(o kernels.Ops) {
		o.WriteKV(kernels.WriteKV{Rows: whole, Cursors: p.cursors, Pos: pos, KV: p.layers[0], Q: m[0], K: m[1], V: m[1], QHeads: s.queries, QStride: s.dim, QOut: m[2]})
	})
	rows := r.prefill(s, s.n, &p)
	q, y := kernels.NewMat(m[0].Buf, kernels.BF16, tokens, width), kernels.NewMat(m[2].Buf, kernels.BF16, tokens, width)
	elapsed, err := r.dev.Time(5, kernels.ProgramFunc(func(o kernels.Ops) {
		o.Attend(kernels.Attend{Rows: rows, Cursors: p.cursors, KV: p.layers[0], Q: q, QHeads: s.queries, Scale: float32(1 / math.Sqrt(float64(s.dim))), Out: y})
	}))
	if err != nil {
		r.Fatal(err)
	}
	pairs := float64(s.n) * (float64(s.context) - float64(s.n)/2)
	return elapsed, 4 * float64(s.rows) * pairs * float64(width)
}

// Times of WriteKV.
func TestWriteTimes(t *testing.T) { newTimer(t).writeTimes() }

// Times of Route and Experts.
func TestExpertTimes(t *testing.T) {
	r := newTimer(t)
	rate, _, err := r.dev.MeasuredRates()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []struct {
		name                    string
		experts, top, width, in int
		act                     kernels.Activation
	}{{"30B-A3B", 128, 6, 1856, 2688, kernels.ReLU2}, {"35B-A3B", 256, 8, 512, 2048, kernels.SiLUMul}} {
		up, down := r.experts(s.experts, s.act.InWidth(s.width), s.in), r.experts(s.experts, s.in, s.width)
		for _, tokens := range []int{1, 4, 8, 32, 64, 256, 2048} {
			ids, chosen := r.choices(tokens, s.experts, s.top)
			x := kernels.NewMat(r.upload(bytesOf(r.bf16s(tokens*s.in, 1))), kernels.BF16, tokens, s.in)
			y := kernels.NewMat(r.alloc(tokens*s.in*2), kernels.BF16, tokens, s.in)
			logits := kernels.NewMat(r.alloc(tokens*s.experts*4), kernels.F32, tokens, s.experts)
			r.fill(logits.Buf)
			to, weights := r.alloc(tokens*s.top*4), r.alloc(tokens*s.top*4)
			routed, err := r.dev.Time(5, kernels.ProgramFunc(func(o kernels.Ops) {
				for range 10 {
					o.Route(kernels.Route{Logits: logits, Score: kernels.Sigmoid, TopK: s.top, Normalize: true, Scale: 1, IDs: to, Weights: weights})
				}
			}))
			if err != nil {
				t.Fatal(err)
			}
			seconds, err := r.dev.Time(7, kernels.ProgramFunc(func(o kernels.Ops) {
				o.Experts(kernels.Experts{X: x, Out: y, Up: up, Down: down, Act: s.act, IDs: ids, Weights: weights, TopK: s.top})
			}))
			if err != nil {
				t.Fatal(err)
			}
			bytes := float64(chosen) * 2 * float64((s.act.InWidth(s.width)+s.width)*s.in)
			flops := 2 * float64(tokens*s.top) * float64((s.act.InWidth(s.width)+s.width)*s.in)
			fmt.Printf("%s %4d tokens: route %6.2f us, experts %8.1f us, floor %8.1f, ratio %5.2f, %4.0f TFLOP/s\n",
				s.name, tokens, routed*1e5, seconds*1e6, bytes/rate*1e6, seconds*rate/bytes, flops/seconds/1e12)
		}
	}
}

func (r *rig) experts(n, rows, cols int) kernels.Weight {
	r.Helper()
	block := bytesOf(r.bf16s(rows*cols, 0.05))
	parts := make([]kernels.HostTensor, n)
	for i := range parts {
		parts[i] = kernels.HostTensor{Name: "experts", DType: kernels.BF16, Shape: []int{rows, cols}, Data: block}
	}
	w, err := r.dev.Pack(kernels.WeightSpec{Name: "experts", Experts: n, Parts: parts})
	if err != nil {
		r.Fatal(err)
	}
	return w
}

// choices are the experts of every token, and how many different ones there are.
func (r *rig) choices(tokens, experts, top int) (ids kernels.Buffer, chosen int) {
	r.Helper()
	seen, list := map[int]bool{}, make([]int, 0, tokens*top)
	for range tokens {
		for _, e := range r.rng.Perm(experts)[:top] {
			seen[e] = true
			list = append(list, e)
		}
	}
	return r.ints(len(list), func(i int) int { return list[i] }), len(seen)
}

func (r *rig) writeTimes() {
	r.Helper()
	for _, rows := range []int{1, 32, 64, 128, 256, 512, 2048} {
		const queries, heads, dim = 16, 4, 256
		p := r.paged(1, rows, 256, heads, dim, 256, kernels.F8E4M3)
		q := kernels.NewMat(r.upload(bytesOf(r.bf16s(rows*queries*2*dim, 1))), kernels.BF16, rows, queries*2*dim)
		k := kernels.NewMat(r.upload(bytesOf(r.bf16s(rows*heads*dim, 1))), kernels.BF16, rows, heads*dim)
		y := kernels.NewMat(r.alloc(rows*queries*dim*2), kernels.BF16, rows, queries*dim)
		norm, freq := r.alloc(dim*4), r.alloc(dim/8*4)
		one := r.ints(rows, func(int) int { return 1 })
		w := kernels.WriteKV{Rows: kernels.Rows{Count: rows, Tokens: rows, T: 1, MaxLen: 1, Slot: p.slot, N: one}, Cursors: p.cursors, Pos: one, KV: p.layers[0],
			Q: q, K: k, V: k, QHeads: queries, QStride: 2 * dim, QNorm: norm, KNorm: norm, Eps: 1e-6, Rotary: dim / 4, InvFreq: freq, QOut: y}
		s, err := r.dev.Time(5, kernels.ProgramFunc(func(o kernels.Ops) {
			for range 20 {
				o.WriteKV(w)
			}
		}))
		if err != nil {
			r.Fatal(err)
		}
		fmt.Printf("write kv of %3d rows, 16/4 x 256 e4m3: %.2f us\n", rows, s*5e4)
		r.drop(p)
	}
}

// Attention and experts enqueue without allocating on the host.
func TestAttendAllocatesNothing(t *testing.T) {
	r := newRig(t, kernels.BF16)
	p := r.paged(1, 2, 64, 2, 128, 4096, kernels.F8E4M3)
	q := kernels.NewMat(r.alloc(2*8*128*2), kernels.BF16, 2, 8*128)
	y := kernels.NewMat(r.alloc(2*8*128*2), kernels.BF16, 2, 8*128)
	one := r.ints(2, func(int) int { return 1 })
	rows := kernels.Rows{Count: 2, Tokens: 2, T: 1, MaxLen: 1, Slot: p.slot, N: one}
	up, down := r.experts(4, 64, 1024), r.experts(4, 1024, 32)
	ids, weights := r.ints(2*2, func(i int) int { return i }), r.alloc(2*2*4)
	program := kernels.ProgramFunc(func(o kernels.Ops) {
		o.Attend(kernels.Attend{Rows: rows, Cursors: p.cursors, KV: p.layers[0], Q: q, QHeads: 8, Scale: 1, Out: y})
		o.Experts(kernels.Experts{X: q, Out: y, Up: up, Down: down, IDs: ids, Weights: weights, TopK: 2})
	})
	r.dev.Submit(program)
	if n := testing.AllocsPerRun(5, func() { r.dev.Submit(program) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
	if err := r.dev.Wait(r.dev.Mark()); err != nil {
		t.Fatal(err)
	}
}

// Long prefills, of which a block takes several items, agree with the kernel for any shape.
func TestPrefillAgreesWithPlain(t *testing.T) {
	r := newRig(t, kernels.BF16)
	for _, s := range []prefillShape{{1, 2048, 2048, 40, 8, 128}, {3, 1000, 1500, 16, 4, 256}, {1, 900, 4000, 16, 4, 256}, {2, 1111, 1300, 8, 2, 64}} {
		for _, dtype := range []kernels.DType{kernels.BF16, kernels.F8E4M3} {
			r.agree(s, dtype)
		}
	}
}

// A page that does not exist is reported, whoever was to fetch it.
func TestPrefillReportsUnknownPages(t *testing.T) {
	r := newRig(t, kernels.BF16)
	for _, dtype := range []kernels.DType{kernels.BF16, kernels.F8E4M3} {
		for _, page := range []int{4, 16} {
			s := prefillShape{1, 50, 50, 4, 2, 128}
			p := r.paged(1, s.rows, s.context, s.heads, s.dim, s.context, dtype)
			k := &p.layers[0]
			k.PageTokens, k.TableStride = page, 64/page
			k.Table = r.ints(2*k.TableStride, func(i int) int { return i % k.TableStride * 1000 })
			q := kernels.NewMat(r.alloc(s.n*s.queries*s.dim*2), kernels.BF16, s.n, s.queries*s.dim)
			y := kernels.NewMat(r.alloc(s.n*s.queries*s.dim*2), kernels.BF16, s.n, s.queries*s.dim)
			rows := r.prefill(s, s.n, &p)
			r.dev.Submit(kernels.ProgramFunc(func(o kernels.Ops) {
				o.Attend(kernels.Attend{Rows: rows, Cursors: p.cursors, KV: *k, Q: q, QHeads: s.queries, Scale: 1, Out: y})
			}))
			if err := r.dev.Wait(r.dev.Mark()); err == nil || !strings.Contains(err.Error(), "000 does not exist") {
				t.Errorf("%v, pages of %d: %v", dtype, page, err)
			}
			r.drop(p)
		}
	}
}

// prefill is the rows of a shape, whose cursors stand in front of the tokens that they append.
func (r *rig) prefill(s prefillShape, n int, p *paged) kernels.Rows {
	r.Helper()
	p.cursors.Origin = r.ints(s.rows+1, func(int) int { return s.context - n })
	return kernels.Rows{Count: s.rows, Tokens: s.rows * n, MaxLen: n, Slot: p.slot, N: r.ints(s.rows, func(int) int { return n }), Start: r.ints(s.rows, func(i int) int { return i * n })}
}

// agree compares both paths: an output that does not start at a multiple of 16 bytes takes the plain one. Weights, which add
// up to one, carry a relative error of 2^-9, so an output errs by 2^-9 of the largest value (below 6 here) at most, and both
// outputs are rounded to bfloat16. Those errors are independent: together they stay within 2^-7 of the outputs.
func (r *rig) agree(s prefillShape, dtype kernels.DType) {
	r.Helper()
	width, kv, all := s.queries*s.dim, s.heads*s.dim, s.rows*s.context
	p := r.paged(1, s.rows, s.context, s.heads, s.dim, s.context, dtype)
	defer r.drop(p)
	k, v := kernels.NewMat(r.upload(bytesOf(r.bf16s(all*kv, 1))), kernels.BF16, all, kv), kernels.NewMat(r.upload(bytesOf(r.bf16s(all*kv, 1))), kernels.BF16, all, kv)
	q := kernels.NewMat(r.upload(bytesOf(r.bf16s(all*width, 1))), kernels.BF16, all, width)
	tokens := s.rows * s.n
	out := r.alloc(all*width*2 + 2)
	whole, pos := r.prefill(s, s.context, &p), r.ints(all, func(i int) int { return i })
	r.do(func(o kernels.Ops) {
		o.WriteKV(kernels.WriteKV{Rows: whole, Cursors: p.cursors, Pos: pos, KV: p.layers[0], Q: q, K: k, V: v, QHeads: s.queries, QStride: s.dim,
			QOut: kernels.NewMat(out, kernels.BF16, all, width)})
	})
	rows := r.prefill(s, s.n, &p)
	var got [2][]uint16
	for i := range got {
		got[i] = make([]uint16, tokens*width)
		y := kernels.NewMat(out.Slice(int64(2*i), int64(2*tokens*width)), kernels.BF16, tokens, width)
		r.do(func(o kernels.Ops) {
			o.Attend(kernels.Attend{Rows: rows, Cursors: p.cursors, KV: p.layers[0], Q: q, QHeads: s.queries, Scale: 0.1, Out: y})
			o.Download(bytesOf(got[i]), y.Buf)
		})
	}
	errors, outputs := 0.0, 0.0
	for i := range got[0] {
		a, b := float64(kernels.BF16ToF32(got[0][i])), float64(kernels.BF16ToF32(got[1][i]))
		if !(math.Abs(a-b) <= math.Abs(b)/128+6./512) {
			r.Fatalf("%v %v: token %d, column %d is %v, plain %v", s, dtype, i/width, i%width, a, b)
		}
		errors, outputs = errors+(a-b)*(a-b), outputs+b*b
	}
	if e := math.Sqrt(errors / outputs); !(e <= 1./128) {
		r.Fatalf("%v %v: norm of errors %v of outputs", s, dtype, e)
	}
}
