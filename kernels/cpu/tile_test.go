package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"reprise/kernels"
)

// fused is a*b + c rounded once. The product of two float32 is exact in float64; its sum with c is rounded to odd
// before it is rounded to float32, which makes the double rounding harmless.
func fused(a, b, c float32) float32 {
	p := float64(a) * float64(b)
	s := p + float64(c)
	v := s - p
	lost := (p - (s - v)) + (float64(c) - v)
	if bits := math.Float64bits(s); lost != 0 && bits&1 == 0 {
		if (lost > 0) == (s > 0) {
			s = math.Float64frombits(bits + 1)
		} else {
			s = math.Float64frombits(bits - 1)
		}
	}
	return float32(s)
}

// laneProduct is what the assembly computes, bit for bit; w and x are in the order in which they are added.
func laneProduct(w, x []float32) float32 {
	var l [tileLanes]float32
	for k := range w {
		l[k%tileLanes] = fused(w[k], x[k], l[k%tileLanes])
	}
	return (l[0] + l[1] + (l[2] + l[3])) + (l[4] + l[5] + (l[6] + l[7]))
}

// toBF16 rounds x in place and returns the stored form.
func toBF16(x []float32) []uint16 {
	b := make([]uint16, len(x))
	for i, v := range x {
		b[i] = kernels.F32ToBF16(v)
		x[i] = kernels.BF16ToF32(b[i])
	}
	return b
}

func TestTile(t *testing.T) { eachLevel(t, eachTile) }

func eachTile(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	for _, n := range []int{8, 16, 24, 32, 40, 48, 64, 72, 80, 1024, 2064} {
		for _, dtype := range []kernels.DType{kernels.F32, kernels.BF16} {
			if !fits(dtype, n) {
				continue
			}
			for tokens := 1; tokens <= bestTokens(); tokens++ {
				testTile(t, r, n, dtype, tokens)
			}
		}
	}
}

func testTile(t *testing.T, r *rand.Rand, n int, dtype kernels.DType, tokens int) {
	var tile dotTile
	var w [tileRows][]float32
	var stored [tileRows][]uint16
	var x [tileTokens][]float32
	for i := range w {
		w[i] = random(r, n)
		tile.w[i] = address(w[i])
		if dtype == kernels.BF16 {
			stored[i] = toBF16(w[i])
			tile.w[i] = address(stored[i])
			plain := slices.Clone(w[i])
			swizzleGo(w[i], plain)
		}
	}
	for i := range tokens {
		x[i] = random(r, n)
		tile.x[i] = address(x[i])
	}
	tile.n = n
	lanes := make([]float32, tileTokens*laneFloats)
	tile.lanes = address(lanes)
	ref, cut := tile, tile
	tile.multiply(dtype, tokens)
	tileGo(&ref, dtype, tokens)
	multiplyInSteps(&cut, dtype, tokens)
	for m := range tokens {
		for i := range w {
			at := m*tileRows + i
			got, plain, want := tile.out[at], ref.out[at], laneProduct(w[i], x[m])
			if simd >= avx2 && got != want {
				t.Fatalf("%s, %d elements, %d tokens: product %d,%d is %v, want %v", dtype, n, tokens, i, m, got, want)
			}
			if math.Abs(float64(plain-want)) > 1e-5*math.Sqrt(float64(n)) {
				t.Fatalf("%s, %d elements, %d tokens: reference %d,%d is %v, want %v", dtype, n, tokens, i, m, plain, want)
			}
			if cut.out[at] != got {
				t.Fatalf("%s, %d elements, %d tokens: product %d,%d is %v in steps, %v at once", dtype, n, tokens, i, m, cut.out[at], got)
			}
		}
	}
	slices.Reverse(lanes) // keeps lanes alive
}

// multiplyInSteps cuts the product into calls of one to three steps.
func multiplyInSteps(t *dotTile, dtype kernels.DType, tokens int) {
	left := t.n
	for i := 0; left > 0; i++ {
		t.n = min(left, (1+i%3)*tileStep(dtype))
		left -= t.n
		t.begun, t.more = min(i, 1), min(left, 1)
		t.multiply(dtype, tokens)
		for r := range t.w {
			t.w[r] += uintptr(t.n * dtype.Size())
		}
		for m := range t.x {
			t.x[m] += uintptr(4 * t.n)
		}
	}
}

func TestSwizzle(t *testing.T) { eachLevel(t, testSwizzle) }

func testSwizzle(t *testing.T) {
	for n := 0; n < 100; n += 16 {
		x, got, want := make([]float32, n), make([]float32, n), make([]float32, n)
		for i := range x {
			x[i] = float32(i)
		}
		swizzle(got, x)
		swizzleGo(want, x)
		if !slices.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
	}
}

func BenchmarkTile(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	const n = 1024
	stride := rowStride(n)
	for _, dtype := range []kernels.DType{kernels.F32, kernels.BF16} {
		for tokens := 1; tokens <= bestTokens(); tokens++ {
			w, x := random(r, tileRows*stride), random(r, tileTokens*stride)
			tile := dotTile{n: n}
			for i := range tile.w {
				tile.w[i] = address(w[i*stride:])
			}
			for i := range tile.x {
				tile.x[i] = address(x[i*stride:])
			}
			b.Run(fmt.Sprint(dtype, "x", tokens), func(b *testing.B) {
				for b.Loop() {
					tile.multiply(dtype, tokens)
				}
				b.ReportMetric(float64(2*n*tileRows*tokens)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
			})
		}
	}
}
