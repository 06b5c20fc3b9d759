package cpu

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"reprise/kernels"
)

// Every bit pattern of every format, at every alignment to the vector width.
func TestWiden(t *testing.T) { eachLevel(t, testWiden) }

func testWiden(t *testing.T) {
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

// Every byte at every place of a block, with scales of every kind.
func TestWidenFourBits(t *testing.T) {
	halves := []float32{0.5, 1e-20, -3, float32(math.NaN()), 0}
	src := make([]byte, 8*len(halves))
	for b := range 256 {
		for i := range src {
			src[i] = byte(b + 37*i)
		}
		got, want := make([]float32, 16*len(halves)), make([]float32, 16*len(halves))
		widenFourBits(got, src, halves)
		widenFourBitsGo(want, src, halves)
		for i := range got {
			if got[i] != want[i] && (got[i] == got[i] || want[i] == want[i]) {
				t.Fatalf("byte %#x, element %d: %v, want %v", b, i, got[i], want[i])
			}
		}
	}
}

// States are widened as the definition of their format says.
func TestWidenState(t *testing.T) {
	for f := kernels.StateF32; f <= kernels.StateNVFP4; f++ {
		for _, cols := range []int{128, 48, 23, 144} {
			a := kernels.DeltaCheckpoint(kernels.DeltaDims{KeyHeads: 1, ValueHeads: 3, KeyDim: cols, ValueDim: 70, Taps: 4}, kernels.Precision{HP: f}).HP
			dev := open(t, 1)
			memory := alloc(t, dev, a.End)
			x := random(rand.New(rand.NewPCG(1, 2)), 3*70*cols)
			for h := range 3 {
				a.EncodeHead(bytesOf(memory), h, x[h*70*cols:(h+1)*70*cols], kernels.StateNoise{})
			}
			held := heldState{a, memory}
			got, want := held.rows(1, 5, 32, make([]float32, 32*cols)), make([]float32, 32*cols)
			a.DecodeRows(want, bytesOf(memory), 1, 5)
			if !slices.Equal(got, want) {
				t.Errorf("%v of %d columns: %v, want %v", f, cols, got[:4], want[:4])
			}
		}
	}
}
