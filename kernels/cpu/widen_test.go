package cpu

import (
	"testing"

	"reprise/kernels"
)

// Every bit pattern of every format, at every alignment to the vector width.
func TestWiden(t *testing.T) {
	for _, dtype := range []kernels.DType{kernels.BF16, kernels.F16, kernels.F8E4M3, kernels.F8E5M2, kernels.F32} {
		patterns, size := 1<<(8*min(dtype.Size(), 2)), dtype.Size()
		src := alignedBytes(int64(patterns * size))
		for i := range patterns {
			src[i*size], src[i*size+size-1] = byte(i), byte(i>>(8*(min(size, 2)-1)))
		}
		for from := range 9 {
			n := patterns - from
			got, want := make([]float32, n), make([]float32, n)
			widen(got, src[from*size:], dtype)
			widenGo(want, src[from*size:], dtype)
			for i := range got {
				if got[i] != want[i] && (got[i] == got[i] || want[i] == want[i]) {
					t.Fatalf("%s pattern %#x: %v, want %v", dtype, i+from, got[i], want[i])
				}
			}
		}
	}
}
