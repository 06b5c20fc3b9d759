//go:build cuda

package cuda

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"reprise/kernels"
)

// Products by narrow tiles: the sums agree with the plain kernel's, a row's bits depend on no other row and not on their
// number, and nothing is read behind the rows that there are or written beside y.
func TestNarrowBits(t *testing.T) {
	r := newRig(t, kernels.BF16)
	for i, n := range r.dev.ops.linear.narrow {
		shapes := [][2]int{{n.most - 15, 72 + 128*(n.splits-1)}} // the most outputs of a kernel on this GPU, some less, the fewest
		if !testing.Short() {
			shapes = append(shapes, [2]int{n.most, 2560 * n.splits})
		}
		if i == 0 || n.tokens != narrowShapes[i-1].tokens {
			shapes = append(shapes, [2]int{77, 264}, [2]int{209, 456})
		}
		for _, s := range shapes {
			t.Run(fmt.Sprint(n.tokens, s), func(t *testing.T) {
				r.T = t
				r.narrowBits(s[0], s[1], n.tokens, n.leastTokens)
			})
		}
	}
}

// narrowBits compares products of different numbers of tokens, most at most.
func (r *rig) narrowBits(n, k, most, least int) {
	r.Helper()
	w := r.pack("w", n, k, bytesOf(r.bf16s(n*k, 0.05))).(*weight)
	defer r.dev.Free(w.buf)
	x := r.bf16s(most*(k+8), 1)
	for i := range most {
		for j := range 8 {
			x[i*(k+8)+k+j] = 0x7fc0
		}
	}
	for _, add := range []bool{false, true} {
		whole := r.narrowRun(w, x, most, n+4-n%4, add)
		r.nearPlain(w, x, whole, add)
		for pad, m := range []int{least, most - 1, (least + most) / 2, most - 8} { // rows of y of which only those of one are aligned
			if !slices.Equal(r.narrowRun(w, x, m, n+4+pad-n%4, add), whole[:m*n]) {
				r.Errorf("%d rows, added %t: not those of %d rows", m, add, most)
			}
		}
	}
}

// before is what an output holds before a product is added to it.
func before(i, j int) uint16 { return kernels.F32ToBF16(float32((i*7+j*3)%64-32) / 4) }

// narrowRun is y [m, n] after the product of the first m rows of x; the others are NaN meanwhile.
func (r *rig) narrowRun(w *weight, x []uint16, m, stride int, add bool) []uint16 {
	r.Helper()
	const mark = 0x1234
	n, k := w.rows, w.cols
	xv, yv := slices.Clone(x), make([]uint16, (m+1)*stride)
	for i := range xv[m*(k+8):] {
		xv[m*(k+8)+i] = 0x7fc0
	}
	for i := range yv {
		yv[i] = mark
		if add && i/stride < m && i%stride < n {
			yv[i] = before(i/stride, i%stride)
		}
	}
	xb, yb := r.upload(bytesOf(xv)), r.upload(bytesOf(yv))
	defer r.dev.Free(xb)
	defer r.dev.Free(yb)
	r.do(func(o kernels.Ops) {
		if !o.(*ops).narrow(kernels.Mat{Buf: xb, DType: kernels.BF16, Rows: m, Cols: k, Stride: k + 8}, kernels.Mat{Buf: yb, DType: kernels.BF16, Rows: m, Cols: n, Stride: stride}, w, add) {
			r.Errorf("%d rows of %d outputs are not for these kernels", m, n)
		}
		o.Download(bytesOf(yv), yb)
	})
	got := make([]uint16, 0, m*n)
	for i := range yv {
		if i/stride < m && i%stride < n {
			got = append(got, yv[i])
		} else if yv[i] != mark {
			r.Fatalf("%d rows: element %d behind row %d was written", m, i%stride, i/stride)
		}
	}
	return got
}

// plainSums is the plain kernel's product of m rows of x, eight elements apart from each other.
func (r *rig) plainSums(w *weight, x []uint16, m int) []float32 {
	r.Helper()
	o, n := r.dev.ops, w.rows
	xb, want := r.upload(bytesOf(x)), r.alloc(m*n*4)
	defer r.dev.Free(xb)
	defer r.dev.Free(want)
	list := make([]float32, m*n)
	r.do(func(kernels.Ops) {
		launch(o, o.linear.plain, grid(ceil(n, 64), ceil(m, 32), 1, 256), linearParams{x: mat{addr(xb), int64(w.cols + 8)}, y: mat{addr(want), int64(n)}, w: addr(w.buf), bytes: w.stride,
			m: int32(m), n: int32(n), k: int32(w.cols), wtype: int32(w.dtype), xtype: int32(kernels.BF16), ytype: int32(kernels.F32)})
		o.Download(bytesOf(list), want)
	})
	return list
}

// nearPlain compares y with the sums of the plain kernel.
func (r *rig) nearPlain(w *weight, x, y []uint16, add bool) {
	r.Helper()
	n := w.rows
	list := r.plainSums(w, x, len(y)/n)
	var diff, size, worst float64
	for i, v := range list {
		sum := float64(v)
		if add {
			sum += float64(kernels.BF16ToF32(before(i/n, i%n)))
		}
		d := math.Abs(float64(kernels.BF16ToF32(y[i])) - sum)
		diff, size, worst = diff+d*d, size+sum*sum, max(worst, d/max(1, math.Abs(sum)))
	}
	// Rounding to bf16 is off by up to 2^-9, and by 2^-9 / sqrt(3) on average over a binade, of which 0.7 remain over all.
	if e := math.Sqrt(diff / size); !(e < 2e-3) || !(worst < 4.2e-3) {
		r.Errorf("%d x %d, added %t: off by %.2g, an element by %.2g", n, w.cols, add, e, worst)
	}
}

// Times of products as they stand in a layer, behind an activation and in front of a norm: of those two alone, with cuBLASLt,
// and with the kernels of narrow tiles.
func TestNarrowTimes(t *testing.T) {
	r := newTimer(t)
	for _, s := range [][2]int{
		{2560, 4096}, {2560, 9216}, {10240, 2560}, {12352, 2560}, {18432, 2560}, // Qwen3.5-4B
		{3136, 5120}, {3136, 7680}, {3136, 12544}, {7168, 3136}, {17504, 3136}, {12544, 3136}, // Nano-4B
	} {
		for _, m := range []int{17, 32, 48, 64, 80, 96, narrowTokens} {
			if r.dev.ops.linear.narrow.of(s[0], m) != nil {
				r.narrowTimes(s[0], s[1], m)
			}
		}
	}
}

func (r *rig) narrowTimes(n, k, m int) {
	r.Helper()
	sets := max(2, int(4e8)/(n*k*2))
	all, rb, xb, yb, zb, norm := r.alloc(sets*n*k*2), r.alloc(m*k*2*2), r.alloc(m*k*2), r.alloc(m*n*2), r.alloc(m*n*2), r.upload(bytesOf(ones(n)))
	for _, b := range []kernels.Buffer{all, rb, xb, yb, zb, norm} {
		defer r.dev.Free(b)
	}
	r.noise(all, int(all.Size/2))
	r.noise(rb, int(rb.Size/2))
	r.noise(yb, int(yb.Size/2))
	list := make([]*weight, sets)
	for i := range list {
		list[i] = &weight{experts: 1, rows: n, cols: k, dtype: kernels.BF16, stride: int64(k * 2), buf: all.Slice(int64(i)*int64(n)*int64(k)*2, int64(n)*int64(k)*2)}
	}
	raw, x, y, z := kernels.NewMat(rb, kernels.BF16, m, 2*k), kernels.NewMat(xb, kernels.BF16, m, k), kernels.NewMat(yb, kernels.BF16, m, n), kernels.NewMat(zb, kernels.BF16, m, n)
	o := r.dev.ops
	chain := func(product func(x, y kernels.Mat, w *weight, add bool) bool) float64 {
		return 1e6 * r.time(list, func(w *weight) {
			o.Activate(kernels.Activate{Kind: kernels.SiLUMul, X: raw, Y: x})
			if !product(x, y, w, true) {
				r.Error("no such product")
			}
			o.Norm(kernels.Norm{X: y, Y: z, Weight: norm, Eps: 1e-6})
		})
	}
	none := func(kernels.Mat, kernels.Mat, *weight, bool) bool { return true }
	fmt.Printf("%d x %d M %d: alone %.1f, cuBLASLt %.1f, narrow %.1f us\n", n, k, m, chain(none), chain(o.library), chain(o.narrow))
}
