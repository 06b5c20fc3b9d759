package cpu

import (
	"math"
	"math/rand/v2"
	"testing"

	"reprise/kernels"
)

// eachLevel runs a test at every level; those that the processor lacks are skipped by name.
func eachLevel(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	for l := generic; l <= avx512; l++ {
		t.Run(l.String(), func(t *testing.T) { atLevel(t, l, test) })
	}
}

func atLevel(t *testing.T, l level, test func(t *testing.T)) {
	t.Helper()
	best := bestLevel()
	if l > best {
		t.Skipf("this processor has %s", best)
	}
	simd = l
	defer func() { simd = best }()
	test(t)
}

// TestLevelsAgree requires of avx512 the bits of avx2, whatever the numbers: NaN, infinities, subnormals.
func TestLevelsAgree(t *testing.T) {
	atLevel(t, avx512, func(t *testing.T) {
		for _, hostile := range []bool{false, true} {
			for seed := range uint64(20) {
				simd = avx2
				want := everyRoutine(seed, hostile)
				simd = avx512
				compareResults(t, want, everyRoutine(seed, hostile))
			}
		}
	})
}

type result struct {
	routine string
	values  []float32
}

func compareResults(t *testing.T, want, got []result) {
	t.Helper()
	for i, w := range want {
		for j, v := range w.values {
			g := got[i].values[j]
			if math.Float32bits(g) != math.Float32bits(v) && (g == g || v == v) {
				t.Fatalf("%s of %d: element %d is %v (%#x) with avx512, %v (%#x) with avx2",
					w.routine, len(w.values), j, g, math.Float32bits(g), v, math.Float32bits(v))
			}
		}
	}
}

// everyRoutine is what the routines make of random numbers of random lengths.
func everyRoutine(seed uint64, hostile bool) (all []result) {
	r := rand.New(rand.NewPCG(seed, 9))
	numbers := func(n int) []float32 {
		x := random(r, n)
		for i := range x {
			if hostile && r.IntN(4) == 0 {
				x[i] = math.Float32frombits(r.Uint32())
			}
		}
		return x
	}
	add := func(routine string, values []float32) { all = append(all, result{routine, values}) }
	for range 20 {
		n := 1 + r.IntN(300)
		x, y, w, a := numbers(n), numbers(n), numbers(4*n), numbers(1)[0]
		out := make([]float32, n)
		exp(out, x)
		add("exp", out)
		out = append([]float32(nil), y...)
		axpy(a, x, out)
		add("axpy", append([]float32(nil), out...))
		scale(a, out)
		add("scale", out)
		for _, routine := range []string{"siluMul", "scaleMul", "scaled", "convSilu"} {
			out := append(make([]float32, n), 7)
			switch routine {
			case "siluMul":
				siluMul(out[:n], x, y)
			case "scaleMul":
				scaleMul(out[:n], x, y, a)
			case "scaled":
				scaleMul(out[:n], x, nil, a)
			case "convSilu":
				convSilu(out[:n], w, x, [][]float32{y, x, y, x})
			}
			add(routine, out)
		}
	}
	for range 20 {
		m, n, k := 1+r.IntN(20), 16*(1+r.IntN(8)), 1+r.IntN(40)
		out, src := numbers(m*n), numbers(m*n)
		product(grid(out, n), 0.3, grid(src, n), grid(numbers(m*k), k), grid(numbers(k*n), n), m, n, k)
		add("product", out)
		product(grid(out, n), 0, tile{}, grid(numbers(m*k), m).transposed(), grid(numbers(k*n), n), m, n, k)
		add("product without source", out)
	}
	return append(all, everyTile(r, numbers)...)
}

// everyTile is the routines whose rows are multiples of a vector.
func everyTile(r *rand.Rand, numbers func(int) []float32) (all []result) {
	for range 20 {
		n, count := 8*(1+r.IntN(40)), 1+r.IntN(20)
		rows, sum := numbers(count*n), [3][]float32{numbers(n), numbers(n), numbers(n)}
		at := make([]uintptr, count)
		for i := range at {
			at[i] = address(rows[i*n:])
		}
		addRows3(sum, at, [3][]float32{numbers(count), numbers(count), numbers(count)})
		addRows(sum[0], at, numbers(count))
		all = append(all, result{"addRows and addRows3", sum[0]}, result{"addRows3", sum[1]}, result{"addRows3", sum[2]})
		all = append(all, result{"swizzle", swizzled(rows[:len(rows)&^15])})
	}
	for _, dtype := range []kernels.DType{kernels.F32, kernels.BF16} {
		for range 20 {
			n := 16 * (1 + r.IntN(20))
			w, x, lanes := numbers(tileRows*n), numbers(3*n), numbers(3*laneFloats)
			for tokens := 1; tokens <= 3; tokens++ {
				t := dotTile{n: n, lanes: address(lanes), begun: r.IntN(2)}
				for i := range t.w {
					t.w[i] = address(w[i*n:])
				}
				for i := range tokens {
					t.x[i] = address(x[i*n:])
				}
				t.multiply(dtype, tokens)
				all = append(all, result{dtype.String() + " tile", append([]float32(nil), t.out[:tokens*tileRows]...)})
				t.more = 1
				t.multiply(dtype, tokens)
			}
			all = append(all, result{dtype.String() + " lanes", lanes})
		}
	}
	return all
}

func swizzled(x []float32) []float32 {
	out := make([]float32, len(x))
	swizzle(out, x)
	return out
}
