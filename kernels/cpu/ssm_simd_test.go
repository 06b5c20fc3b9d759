package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

func randoms(r *rand.Rand, n int) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(r.NormFloat64())
	}
	return v
}

// near requires |got - want| <= n roundings of size.
func near(t *testing.T, what string, got float32, want, size float64, n int) {
	t.Helper()
	if e := math.Abs(float64(got) - want); !(e <= float64(n)*size*math.Ldexp(1, -24)) {
		t.Errorf("%s: %v, want %v (error %.2g)", what, got, want, e)
	}
}

func TestProduct(t *testing.T) { eachLevel(t, testProduct) }

func testProduct(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for _, s := range [][3]int{{1, 1, 1}, {4, 16, 1}, {3, 15, 2}, {5, 17, 7}, {8, 32, 64}, {9, 50, 33}, {1, 128, 20}, {4, 16, 0}, {0, 5, 5}, {5, 0, 5}} {
		for _, flip := range []bool{false, true} {
			for _, withSource := range []bool{false, true} {
				m, n, k := s[0], s[1], s[2]
				t.Run(fmt.Sprint(s, flip, withSource), func(t *testing.T) {
					a, b := grid(randoms(r, (m+1)*(k+3)), k+3), grid(randoms(r, (k+1)*(n+1)), n+1)
					if flip {
						a = grid(randoms(r, (k+1)*(m+2)), m+2).transposed()
					}
					dst, src := grid(randoms(r, (m+1)*(n+2)), n+2), tile{}
					guard := append([]float32(nil), dst.data...)
					if withSource {
						src = grid(randoms(r, (m+1)*(n+5)), n+5)
					}
					product(dst, 0.5, src, a, b, m, n, k)
					checkProduct(t, dst, src, a, b, m, n, k)
					for i, v := range dst.data {
						if row, col := i/dst.rows, i%dst.rows; (row >= m || col >= n) && v != guard[i] {
							t.Fatalf("wrote to %d, %d", row, col)
						}
					}
				})
			}
		}
	}
}

func checkProduct(t *testing.T, dst, src, a, b tile, m, n, k int) {
	t.Helper()
	for i := range m {
		for j := range n {
			var want, size float64
			if src.data != nil {
				want = 0.5 * float64(*src.at(i, j))
			}
			for x := range k {
				want += float64(*a.at(i, x)) * float64(*b.at(x, j))
				size += math.Abs(float64(*a.at(i, x)) * float64(*b.at(x, j)))
			}
			near(t, fmt.Sprint(i, j), *dst.at(i, j), want, size+math.Abs(want), k+2)
		}
	}
}

// TestProductCut cuts k and m: no bit may change.
func TestProductCut(t *testing.T) { eachLevel(t, testProductCut) }

func testProductCut(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	m, n, k := 7, 20, 19
	a, b := grid(randoms(r, m*k), k), grid(randoms(r, k*n), n)
	whole, parts := grid(make([]float32, m*n), n), grid(make([]float32, m*n), n)
	product(whole, 1, tile{}, a, b, m, n, k)
	for i := range m {
		to := grid(parts.data[i*n:], n)
		product(to, 1, tile{}, grid(a.data[i*k:], k), b, 1, n, 5)
		product(to, 1, to, grid(a.data[i*k+5:], k), grid(b.data[5*n:], n), 1, n, k-5)
	}
	for i, v := range whole.data {
		if v != parts.data[i] {
			t.Fatalf("number %d: %v whole, %v in parts", i, v, parts.data[i])
		}
	}
}

func TestDots(t *testing.T) { eachLevel(t, testDots) }

func testDots(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	for _, n := range []int{1, 7, 8, 13, 16, 24, 128} {
		for m := range 20 {
			a, v, out := grid(randoms(r, (m+1)*(n+3)), n+3), randoms(r, n), []float32(nil)
			out = append(make([]float32, m), 42)
			dots(out[:m], a, v, m)
			if out[m] != 42 {
				t.Fatalf("n %d, m %d: wrote behind", n, m)
			}
			for i := range m {
				var want, size float64
				for j := range n {
					want += float64(a.data[i*a.rows+j]) * float64(v[j])
					size += math.Abs(float64(a.data[i*a.rows+j]) * float64(v[j]))
				}
				near(t, fmt.Sprint(n, m, i), out[i], want, size, n)
				alone := make([]float32, 1)
				if dots(alone, grid(a.data[i*a.rows:], a.rows), v, 1); alone[0] != out[i] {
					t.Errorf("n %d, m %d: row %d is %v, alone %v", n, m, i, out[i], alone[0])
				}
			}
		}
	}
}

func TestSiluMul(t *testing.T) { eachLevel(t, testSiluMul) }

func testSiluMul(t *testing.T) {
	var z []float32
	for x := -120.0; x < 120; x += 0.037 {
		z = append(z, float32(x))
	}
	z = append(z, 0, float32(math.Inf(1)), 1e30, -1e30, float32(math.NaN()), 1e-40)
	y, out := make([]float32, len(z)), make([]float32, len(z))
	for i := range y {
		y[i] = 2
	}
	siluMul(out, z, y)
	for i, x := range z {
		want := 2 * float64(x) / (1 + math.Exp(-float64(x)))
		switch {
		case math.IsNaN(want):
			if out[i] == out[i] {
				t.Errorf("silu(%v) = %v", x, out[i])
			}
		case x < -80: // the exponential is cut there; what is left is below any use
			if math.Abs(float64(out[i])) > 1e-5*math.Abs(want)+1e-3 || out[i] > 0 {
				t.Errorf("silu(%v) = %v", x, out[i])
			}
		case math.IsInf(want, 1):
			if out[i] != float32(want) {
				t.Errorf("silu(%v) = %v", x, out[i])
			}
		default:
			near(t, fmt.Sprint("silu ", x), out[i], want, math.Abs(want), 8)
		}
	}
}

func TestConvSilu(t *testing.T) { eachLevel(t, testConvSilu) }

func testConvSilu(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 4))
	for _, taps := range []int{1, 2, 4, 5} {
		for _, n := range []int{1, 8, 11, 40} {
			w, bias, rows := randoms(r, n*taps), randoms(r, n), make([][]float32, taps)
			for k := range rows {
				rows[k] = randoms(r, n)
			}
			for _, b := range [][]float32{bias, nil} {
				out := make([]float32, n)
				convSilu(out, w, b, rows)
				for c := range out {
					sum := 0.0
					if b != nil {
						sum = float64(b[c])
					}
					for k := range rows {
						sum += float64(w[c*taps+k]) * float64(rows[k][c])
					}
					near(t, fmt.Sprint(taps, n, c), out[c], sum/(1+math.Exp(-sum)), 1+math.Abs(sum), 12)
				}
			}
		}
	}
}

func TestScaleMul(t *testing.T) { eachLevel(t, testScaleMul) }

func testScaleMul(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	for _, n := range []int{1, 8, 13} {
		x, w, out := randoms(r, n), randoms(r, n), make([]float32, n)
		scaleMul(out, x, w, 3)
		for i := range out {
			if out[i] != 3*x[i]*w[i] {
				t.Errorf("%v * %v * 3 = %v", x[i], w[i], out[i])
			}
		}
		scaleMul(out, x, nil, 3)
		for i := range out {
			if out[i] != 3*x[i] {
				t.Errorf("%v * 3 = %v", x[i], out[i])
			}
		}
	}
}

func TestTranspose(t *testing.T) { eachLevel(t, testTranspose) }

func testTranspose(t *testing.T) {
	r := rand.New(rand.NewPCG(6, 6))
	for _, s := range [][2]int{{1, 1}, {5, 7}, {8, 8}, {9, 8}, {8, 17}, {24, 16}} {
		m, n := s[0], s[1]
		src, dst := grid(randoms(r, (m+1)*(n+2)), n+2), grid(randoms(r, (n+1)*(m+1)), m+1)
		guard := append([]float32(nil), dst.data...)
		transpose(dst, src, m, n)
		for i, v := range dst.data {
			row, col := i/dst.rows, i%dst.rows
			want := guard[i]
			if row < n && col < m {
				want = *src.at(col, row)
			}
			if v != want {
				t.Errorf("%v: %d, %d: %v, want %v", s, row, col, v, want)
			}
		}
	}
}

func TestReplayWeights(t *testing.T) {
	out := make([]float32, 3)
	before := replayWeights(out, []float64{0.5, 0.25, 0.125})
	for i, want := range []float32{0.03125, 0.125, 1} {
		if out[i] != want {
			t.Errorf("weight %d: %v, want %v", i, out[i], want)
		}
	}
	if before != 0.015625 {
		t.Errorf("before: %v", before)
	}
	if before = replayWeights(out, []float64{1e-20, 1e-20, 1e-20}); before != 0 || out[0] != 0 || out[1] != 1e-20 {
		t.Errorf("tiny decays: %v, %v", before, out)
	}
}
