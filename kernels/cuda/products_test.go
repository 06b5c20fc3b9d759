//go:build cuda

package cuda

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"reprise/kernels"
)

// rig is a device with helpers for tests of one operation.
type rig struct {
	*testing.T
	dev *Device
	rng *rand.Rand
}

func newRig(t *testing.T, act kernels.DType) *rig {
	d := openFor(t, act).(*Device)
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return &rig{t, d, rand.New(rand.NewPCG(1, 2))}
}

// newTimer is a rig for tests that print times, of a GPU that nobody else uses; what they time is checked elsewhere.
func newTimer(t *testing.T) *rig {
	if testing.Short() {
		t.Skip("prints times, which want a GPU alone: left out of -short")
	}
	return newRig(t, kernels.BF16)
}

func (r *rig) do(f kernels.ProgramFunc) {
	r.Helper()
	r.dev.Submit(f)
	if err := r.dev.Wait(r.dev.Mark()); err != nil {
		r.Fatal(err)
	}
}

func (r *rig) alloc(bytes int) kernels.Buffer {
	r.Helper()
	b, err := r.dev.Alloc(int64(bytes))
	if err != nil {
		r.Fatal(err)
	}
	return b
}

// bf16s is n normal numbers, as bf16.
func (r *rig) bf16s(n int, deviation float64) []uint16 {
	v := make([]uint16, n)
	for i := range v {
		v[i] = kernels.F32ToBF16(float32(deviation * r.rng.NormFloat64()))
	}
	return v
}

func bytesOf[E any](v []E) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), len(v)*int(unsafe.Sizeof(v[0])))
}

func (r *rig) upload(data []byte) kernels.Buffer {
	r.Helper()
	b := r.alloc(len(data))
	r.do(func(o kernels.Ops) { o.Upload(b, data) })
	return b
}

func (r *rig) pack(name string, rows, cols int, data []byte) kernels.Weight {
	r.Helper()
	w, err := r.dev.Pack(kernels.WeightSpec{Name: name, Parts: []kernels.HostTensor{{Name: name, DType: kernels.BF16, Shape: []int{rows, cols}, Data: data}}})
	if err != nil {
		r.Fatal(err)
	}
	return w
}

// Every way to multiply agrees with float64 on sampled elements, at shapes of real layers and crooked ones.
func TestProducts(t *testing.T) {
	r := newRig(t, kernels.BF16)
	t.Logf("cuBLASLt: %t", r.dev.ops.linear.lt != nil)
	for _, s := range [][2]int{{2560, 2560}, {48, 2560}, {9216, 2560}, {2560, 9216}, {1000, 4104}, {77, 131}, {33, 64}} {
		n, k := s[0], s[1]
		wv := r.bf16s(n*k, 0.05)
		w := r.pack("w", n, k, bytesOf(wv))
		for _, m := range []int{1, 2, 7, 8, 9, 16, 17, 32, 33, 64, 65, 100, 128, 300} {
			for _, wide := range []bool{false, true} {
				r.product(w, wv, m, n, k, wide)
			}
		}
	}
}

func (r *rig) product(w kernels.Weight, wv []uint16, m, n, k int, wide bool) {
	r.Helper()
	dtype, size := kernels.BF16, 2
	if wide {
		dtype, size = kernels.F32, 4
	}
	xv := r.bf16s(m*k, 1)
	x := kernels.NewMat(r.upload(bytesOf(xv)), kernels.BF16, m, k)
	y := kernels.NewMat(r.alloc(m*n*size), dtype, m, n)
	sum := kernels.NewMat(r.upload(make([]byte, m*n*size)), dtype, m, n)
	got, twice := make([]byte, m*n*size), make([]byte, m*n*size)
	r.do(func(o kernels.Ops) {
		o.Linear(kernels.Linear{X: x, Y: y, W: w})
		o.Linear(kernels.Linear{X: x, Y: sum, W: w, Add: true})
		o.Linear(kernels.Linear{X: x, Y: sum, W: w, Add: true})
		o.Download(got, y.Buf)
		o.Download(twice, sum.Buf)
	})
	r.dev.Free(x.Buf)
	r.dev.Free(y.Buf)
	r.dev.Free(sum.Buf)
	at := func(b []byte, i int) float64 {
		if wide {
			return float64(math.Float32frombits(uint32(b[4*i]) | uint32(b[4*i+1])<<8 | uint32(b[4*i+2])<<16 | uint32(b[4*i+3])<<24))
		}
		return float64(kernels.BF16ToF32(uint16(b[2*i]) | uint16(b[2*i+1])<<8))
	}
	var diff, size2, diff2 float64
	for range 400 {
		i, j := r.rng.IntN(m), r.rng.IntN(n)
		want := 0.0
		for c := range k {
			want += float64(kernels.BF16ToF32(xv[i*k+c])) * float64(kernels.BF16ToF32(wv[j*k+c]))
		}
		diff += math.Pow(at(got, i*n+j)-want, 2)
		diff2 += math.Pow(at(twice, i*n+j)-2*want, 2) / 4
		size2 += want * want
	}
	limit := 4e-3 // rounding to bf16
	if wide {
		limit = 2e-5
	}
	if e, e2 := math.Sqrt(diff/size2), math.Sqrt(diff2/size2); !(e <= limit) || !(e2 <= 2*limit) {
		r.Errorf("M %d N %d K %d wide %t: error %.2g, added twice %.2g, allowed %.2g", m, n, k, wide, e, e2, limit)
	}
}

// Times of products beside the time that their weights take; run alone, on a GPU that nobody else uses.
func TestProductTimes(t *testing.T) {
	r := newTimer(t)
	read, flops, err := r.dev.MeasuredRates()
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("read %.2f TB/s, products %.0f TFLOP/s\n", read/1e12, flops/1e12)
	for _, s := range [][2]int{
		{2560, 2560}, {12352, 2560}, {10240, 2560}, {2560, 4096}, {18432, 2560}, {2560, 9216}, {248320, 2560}, {65536, 2560}, {32768, 2560}, // Qwen3.5-4B, the last two heads of draft_vocab_size
		{17504, 3136}, {7168, 3136}, {3136, 7680}, {12544, 3136}, {3136, 12544}, {131072, 3136}, // Nano-4B
	} {
		r.times(s[0], s[1], read, flops)
	}
}

func (r *rig) times(n, k int, read, flops float64) {
	r.Helper()
	sets := max(2, int(200e6)/(n*k*2))
	all := r.alloc(sets * n * k * 2)
	defer r.dev.Free(all)
	xb, yb := r.alloc(1024*k*2), r.alloc(1024*n*2)
	defer r.dev.Free(xb)
	defer r.dev.Free(yb)
	list := make([]*weight, sets)
	for i := range list {
		list[i] = &weight{experts: 1, rows: n, cols: k, dtype: kernels.BF16, stride: int64(k * 2), buf: all.Slice(int64(i)*int64(n)*int64(k)*2, int64(n)*int64(k)*2)}
	}
	type noise struct {
		to uint64
		n  int64
	}
	o := r.dev.ops
	r.do(func(kernels.Ops) {
		launch(o, o.rates.noise, line(1024, 256), noise{addr(all), all.Size / 2})
		launch(o, o.rates.noise, line(1024, 256), noise{addr(xb), xb.Size / 2})
	})
	fmt.Printf("N %6d K %5d:", n, k)
	for _, m := range []int{1, 4, 8, 16, 24, 32, 64, 128, 256, 512, 1024} {
		x, y := kernels.NewMat(xb, kernels.BF16, m, k), kernels.NewMat(yb, kernels.BF16, m, n)
		floor := max(float64(n*k+m*k+m*n)*2/read, 2*float64(m)*float64(n)*float64(k)/flops)
		own, lib := math.NaN(), math.NaN()
		if m <= streamedRows {
			own = r.time(list, func(w *weight) { o.single(kernels.Linear{X: x, Y: y, W: w}) })
		}
		if o.linear.lt != nil && m >= 8 {
			lib = r.time(list, func(w *weight) { o.library(x, y, w, false) })
		}
		fmt.Printf(" | M %d floor %.1f own %.1f lib %.1f us", m, floor*1e6, own*1e6, lib*1e6)
	}
	fmt.Println()
}

// time is the seconds of one product, of a graph over all weights.
func (r *rig) time(list []*weight, f func(w *weight)) float64 {
	r.Helper()
	t, err := r.dev.Time(5, kernels.ProgramFunc(func(kernels.Ops) {
		for _, w := range list {
			f(w)
		}
	}))
	if err != nil {
		r.Error(err)
		return math.NaN()
	}
	return t / float64(len(list))
}
