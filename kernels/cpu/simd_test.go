package cpu

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// lengths reach every loop of the vector routines.
var lengths = []int{0, 1, 2, 7, 8, 9, 15, 16, 31, 32, 33, 40, 63, 64, 71, 100, 128, 1000, 4096, 70001}

func random(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	return x
}

func TestDot(t *testing.T) { eachLevel(t, testDot) }

func testDot(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for _, n := range lengths {
		a, b := random(r, n), random(r, n+3)
		want, size := 0.0, 0.0
		for i := range a {
			want += float64(a[i]) * float64(b[i])
			size += math.Abs(float64(a[i]) * float64(b[i]))
		}
		for name, got := range map[string]float32{"dot": dot(a, b), "dotGo": dotGo(a, b)} {
			if math.Abs(float64(got)-want) > 1e-6*size {
				t.Errorf("%s of %d: %v, want %v", name, n, got, want)
			}
		}
	}
}

// Whole numbers make sums exact in any order, so that each lane and tail must be in place.
func TestDotExact(t *testing.T) { eachLevel(t, testDotExact) }

func testDotExact(t *testing.T) {
	for _, n := range lengths {
		a, b := make([]float32, n), make([]float32, n)
		for i := range a {
			a[i], b[i] = float32(i%5-2), float32(i%7-3)
		}
		if got, want := dot(a, b), dotGo(a, b); got != want {
			t.Errorf("%d elements: %v, want %v", n, got, want)
		}
	}
}

func TestAxpyAndScale(t *testing.T) { eachLevel(t, testAxpyAndScale) }

func testAxpyAndScale(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	for _, n := range lengths {
		x, y := random(r, n), random(r, n+1)
		want := append([]float32(nil), y...)
		const a = float32(1.7)
		for i, v := range x {
			want[i] = float32(float64(a)*float64(v) + float64(want[i]))
		}
		got, ref := append([]float32(nil), y...), append([]float32(nil), y...)
		axpy(a, x, got)
		axpyGo(a, x, ref)
		for i := range want {
			if d := math.Abs(float64(got[i] - want[i])); d > 1e-6 || math.Abs(float64(ref[i]-want[i])) > 1e-6 {
				t.Fatalf("axpy of %d, element %d: %v and %v, want %v", n, i, got[i], ref[i], want[i])
			}
		}
		scale(a, got[:n])
		scaleGo(a, want[:n])
		for i := range n {
			if math.Abs(float64(got[i]-want[i])) > 3e-6 {
				t.Fatalf("scale of %d, element %d: %v, want %v", n, i, got[i], want[i])
			}
		}
		if got[n] != y[n] {
			t.Errorf("%d elements: wrote past the end", n)
		}
	}
}

// ulps is the distance of got from want in units of want's last place.
func ulps(got float32, want float64) float64 {
	w := float32(want)
	if got == w || got != got && w != w {
		return 0
	}
	unit := float64(math.Nextafter32(w, float32(math.Inf(1)))) - float64(w)
	return math.Abs(float64(got)-want) / math.Abs(unit)
}

func TestExp(t *testing.T) { eachLevel(t, testExp) }

func testExp(t *testing.T) {
	inf := float32(math.Inf(1))
	x := []float32{0, float32(math.Copysign(0, -1)), 1, -1, inf, -inf, float32(math.NaN()), 88.72, 88.73, 1e30, -1e30,
		-87.3, -87.4, -95, -103, -103.9, -104, -200, 1e-30, -1e-8}
	for v := float32(-105); v < 90; v += 0.00713 {
		x = append(x, v)
	}
	got, ref := make([]float32, len(x)), make([]float32, len(x))
	exp(got, x)
	expGo(ref, x)
	worst := 0.0
	for i, v := range x {
		want := math.Exp(float64(v))
		if math.IsInf(float64(float32(want)), 1) {
			if got[i] != inf || ref[i] != inf {
				t.Errorf("e^%v = %v and %v", v, got[i], ref[i])
			}
			continue
		}
		worst = max(worst, ulps(got[i], want), ulps(ref[i], want))
		if u := max(ulps(got[i], want), ulps(ref[i], want)); u > 2 {
			t.Fatalf("e^%v = %v and %v, want %v: %.2f ulp", v, got[i], ref[i], want, u)
		}
	}
	t.Logf("at most %.2f ulp", worst)
}

func TestExpIgnoresPlaceAndAllowsAliases(t *testing.T) {
	eachLevel(t, testExpIgnoresPlaceAndAllowsAliases)
}

func testExpIgnoresPlaceAndAllowsAliases(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	x := random(r, 100)
	whole := make([]float32, 100)
	exp(whole, x)
	for i := range x {
		var one [1]float32
		exp(one[:], x[i:i+1])
		if one[0] != whole[i] {
			t.Fatalf("element %d: alone %v, among others %v", i, one[0], whole[i])
		}
	}
	exp(x, x)
	for i := range x {
		if x[i] != whole[i] {
			t.Fatalf("element %d in place: %v, want %v", i, x[i], whole[i])
		}
	}
}

func BenchmarkDot(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	x, y := random(r, 128), random(r, 128)
	for b.Loop() {
		dot(x, y)
	}
}

func BenchmarkExp(b *testing.B) {
	x := random(rand.New(rand.NewPCG(1, 1)), 1024)
	dst := make([]float32, len(x))
	b.SetBytes(int64(4 * len(x)))
	for b.Loop() {
		exp(dst, x)
	}
}

func TestAddRows(t *testing.T) { eachLevel(t, testAddRows) }

func testAddRows(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 4))
	for _, n := range []int{8, 16, 56, 64, 72, 128, 200} {
		for _, count := range []int{0, 1, 5, blockTokens} {
			data, factor, sum := random(r, count*n), random(r, count), random(r, n)
			row := make([]uintptr, count)
			want := append([]float32(nil), sum...)
			ref := append([]float32(nil), sum...)
			for j := range row {
				row[j] = address(data[j*n:])
				for i := range want {
					want[i] = fused(factor[j], data[j*n+i], want[i])
				}
			}
			three := [3][]float32{slices.Clone(sum), slices.Clone(sum), slices.Clone(sum)}
			scale(0.5, three[1])
			scale(-1, three[2])
			single := slices.Clone(three[1])
			addRows3(three, row, [3][]float32{factor, random(r, count+1), factor})
			addRows(sum, row, factor)
			addRowsGo(ref, row, factor)
			if !slices.Equal(three[0], sum) || count > 0 && slices.Equal(three[1], single) {
				t.Fatalf("%d rows of %d: three at a time differ", count, n)
			}
			for i := range want {
				if simd >= avx2 && sum[i] != want[i] || math.Abs(float64(ref[i]-want[i])) > 1e-4 {
					t.Fatalf("%d rows of %d, column %d: %v and %v, want %v", count, n, i, sum[i], ref[i], want[i])
				}
			}
		}
	}
}
