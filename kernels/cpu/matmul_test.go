package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"reprise/kernels"
)

// storage types of weights.
var storage = []kernels.DType{kernels.F32, kernels.BF16, kernels.F16, kernels.F8E4M3, kernels.F8E5M2}

// hostTensor is a random tensor; its values as float32 are returned too.
func hostTensor(r *rand.Rand, dtype kernels.DType, shape ...int) (kernels.HostTensor, []float32) {
	t := kernels.HostTensor{Name: "w", DType: dtype, Shape: shape}
	values := random(r, t.Elements())
	t.Data = alignedBytes(int64(t.Elements() * dtype.Size()))
	for i, v := range values {
		at := t.Data[i*dtype.Size():]
		switch dtype {
		case kernels.F32:
			*(*float32)(unsafe.Pointer(&at[0])) = v
		case kernels.BF16:
			*(*uint16)(unsafe.Pointer(&at[0])) = kernels.F32ToBF16(v)
		case kernels.F16:
			*(*uint16)(unsafe.Pointer(&at[0])) = kernels.F32ToF16(v)
		case kernels.F8E4M3:
			at[0] = kernels.F32ToF8E4M3(v)
		case kernels.F8E5M2:
			at[0] = byte(kernels.F32ToF16(v) >> 8)
		}
	}
	widenGo(values, t.Data, dtype)
	return t, values
}

// matrix is a matrix in device memory with the given values.
func matrix(t testing.TB, d *Device, rows, cols, stride int, values []float32) kernels.Mat {
	b := alloc(t, d, int64(4*rows*stride))
	m := kernels.Mat{Buf: b, Rows: rows, Cols: cols, Stride: stride, DType: kernels.F32}
	for i := range rows {
		if values != nil {
			copy(rowsOf(m).row(i), values[i*cols:])
		}
	}
	return m
}

func TestLinear(t *testing.T) { eachLevel(t, eachLinear) }

func eachLinear(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	for _, threads := range []int{1, 2, 5} {
		d := open(t, threads)
		for _, dtype := range storage {
			for _, k := range []int{1, 7, 8, 24, 65, 256} {
				for _, n := range []int{1, 3, 4, 50} {
					testLinear(t, d, r, dtype, n, k)
				}
			}
		}
	}
}

// testLinear compares with float64 and each row of a batch with the row alone.
func testLinear(t *testing.T, d *Device, r *rand.Rand, dtype kernels.DType, n, k int) {
	t.Helper()
	first, a := hostTensor(r, dtype, n, k)
	second, b := hostTensor(r, dtype, 2, k)
	w, err := d.Pack(kernels.WeightSpec{Name: "w", Parts: []kernels.HostTensor{first, second}})
	if err != nil {
		t.Fatal(err)
	}
	values := append(a, b...)
	n += 2
	const most = 19
	x := random(r, most*k)
	single := make([][]float32, most)
	for _, m := range []int{1, 2, 3, 4, 6, 7, 8, most} {
		in, out := matrix(t, d, m, k, k+5, x), matrix(t, d, m, n, n+3, nil)
		do(t, d, func(o kernels.Ops) {
			o.Linear(kernels.Linear{X: in, Y: out, W: w})
			o.Linear(kernels.Linear{X: in, Y: out, W: w, Add: true})
		})
		for i := range m {
			got := rowsOf(out).row(i)
			for j, v := range got {
				want, size := 0.0, 0.0
				for c := range k {
					p := float64(values[j*k+c]) * float64(x[i*k+c])
					want, size = want+p, size+math.Abs(p)
				}
				if math.Abs(float64(v)-2*want) > 1e-6*size {
					t.Fatalf("%s [%d,%d], %d rows: y[%d,%d] = %v, want %v", dtype, n, k, m, i, j, v, 2*want)
				}
			}
			if single[i] == nil {
				one := matrix(t, d, 1, n, n, nil)
				do(t, d, func(o kernels.Ops) {
					o.Linear(kernels.Linear{X: in.RowRange(i, 1), Y: one, W: w})
					o.Linear(kernels.Linear{X: in.RowRange(i, 1), Y: one, W: w, Add: true})
				})
				single[i] = rowsOf(one).row(0)
			}
			for j := range got {
				if got[j] != single[i][j] {
					t.Fatalf("%s [%d,%d]: y[%d,%d] = %v among %d rows, %v alone", dtype, n, k, i, j, got[j], m, single[i][j])
				}
			}
		}
	}
}

func TestLinearDoesNotAllocate(t *testing.T) {
	d := open(t, 2)
	r := rand.New(rand.NewPCG(8, 8))
	tensor, _ := hostTensor(r, kernels.BF16, 64, 128)
	w, err := d.Pack(kernels.WeightSpec{Name: "w", Parts: []kernels.HostTensor{tensor}})
	if err != nil {
		t.Fatal(err)
	}
	x, y := matrix(t, d, 16, 128, 128, nil), matrix(t, d, 16, 64, 64, nil)
	noAllocations(t, d, func(o kernels.Ops) {
		o.Linear(kernels.Linear{X: x, Y: y, W: w})
		o.Linear(kernels.Linear{X: x.RowRange(0, 1), Y: y.RowRange(0, 1), W: w})
	})
}

// noAllocations runs f again and again.
func noAllocations(t *testing.T, d *Device, f func(kernels.Ops)) {
	t.Helper()
	p := kernels.ProgramFunc(f)
	n := testing.AllocsPerRun(20, func() {
		d.Submit(p)
		if err := d.Wait(d.Mark()); err != nil {
			t.Fatal(err)
		}
	})
	if n != 0 {
		t.Errorf("%v allocations a program", n)
	}
}

func BenchmarkLinear(b *testing.B) {
	d := open(b, 0)
	r := rand.New(rand.NewPCG(1, 1))
	for _, dtype := range storage {
		for _, shape := range [][2]int{{16384, 2048}, {2048, 8192}} {
			n, k := shape[0], shape[1]
			tensor := kernels.HostTensor{Name: "w", DType: dtype, Shape: []int{n, k}, Data: alignedBytes(int64(n * k * dtype.Size()))}
			pattern, _ := hostTensor(r, dtype, 1<<16)
			for i := 0; i < len(tensor.Data); i += len(pattern.Data) {
				copy(tensor.Data[i:], pattern.Data)
			}
			w, err := d.Pack(kernels.WeightSpec{Name: "w", Parts: []kernels.HostTensor{tensor}})
			if err != nil {
				b.Fatal(err)
			}
			for _, m := range []int{1, 2, 4, 8, 64, 512} {
				x, y := matrix(b, d, m, k, k, random(r, m*k)), matrix(b, d, m, n, n, nil)
				p := kernels.ProgramFunc(func(o kernels.Ops) { o.Linear(kernels.Linear{X: x, Y: y, W: w}) })
				b.Run(fmt.Sprintf("%s/%dx%d/m%d", dtype, n, k, m), func(b *testing.B) {
					for b.Loop() {
						d.Submit(p)
						if err := d.Wait(d.Mark()); err != nil {
							b.Fatal(err)
						}
					}
					s := b.Elapsed().Seconds() / float64(b.N)
					b.ReportMetric(float64(len(tensor.Data))/s/1e9, "GB/s")
					b.ReportMetric(2*float64(m)*float64(n)*float64(k)/s/1e9, "GFLOP/s")
				})
				d.Free(x.Buf)
				d.Free(y.Buf)
			}
		}
	}
}
