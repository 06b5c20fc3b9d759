package cpu

import (
	"math"
	"math/rand/v2"
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

// laneProduct is what the assembly computes, bit for bit.
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

func TestTile(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	for _, n := range []int{8, 16, 24, 32, 40, 64, 72, 1024, 2056} {
		for _, dtype := range []kernels.DType{kernels.F32, kernels.BF16} {
			for tokens := 1; tokens <= tileTokens; tokens++ {
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
		}
	}
	for i := range tokens {
		x[i] = random(r, n)
		tile.x[i] = address(x[i])
	}
	tile.n = n
	ref := tile
	tile.multiply(dtype, tokens)
	tileGo(&ref, dtype, tokens)
	for m := range tokens {
		for i := range w {
			got, plain, want := tile.out[m*tileRows+i], ref.out[m*tileRows+i], laneProduct(w[i], x[m])
			if simdName == "avx2" && got != want {
				t.Fatalf("%s, %d elements, %d tokens: product %d,%d is %v, want %v", dtype, n, tokens, i, m, got, want)
			}
			if math.Abs(float64(plain-want)) > 1e-5*math.Sqrt(float64(n)) {
				t.Fatalf("%s, %d elements, %d tokens: reference %d,%d is %v, want %v", dtype, n, tokens, i, m, plain, want)
			}
		}
	}
}

func BenchmarkTile(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	const n = 1024
	for _, dtype := range []kernels.DType{kernels.F32, kernels.BF16} {
		for tokens := 1; tokens <= tileTokens; tokens++ {
			w, x := random(r, tileRows*n), random(r, tileTokens*n)
			tile := dotTile{n: n}
			for i := range tile.w {
				tile.w[i] = address(w[i*n:])
			}
			for i := range tile.x {
				tile.x[i] = address(x[i*n:])
			}
			b.Run(dtype.String()+"x"+string(rune('0'+tokens)), func(b *testing.B) {
				for b.Loop() {
					tile.multiply(dtype, tokens)
				}
				b.ReportMetric(float64(2*n*tileRows*tokens)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
			})
		}
	}
}
