//go:build !purego

package cpu

import "golang.org/x/sys/cpu"

// bestLevel is what the processor and the operating system offer. avx512 is everything that server processors have had
// since Skylake; the environment variable GODEBUG=cpu.avx512f=off switches it off.
func bestLevel() level {
	x := &cpu.X86
	switch {
	case !x.HasAVX2 || !x.HasFMA || !x.HasF16C:
		return generic
	case !x.HasBMI2 || !x.HasAVX512F || !x.HasAVX512BW || !x.HasAVX512DQ || !x.HasAVX512VL:
		return avx2
	}
	return avx512
}

// dotAVX2 has 32 running sums, which bound its speed: wider registers would not help.
//
//go:noescape
func dotAVX2(a, b *float32, n int) float32

//go:noescape
func axpyAVX2(a float32, x, y *float32, n int)

//go:noescape
func scaleAVX2(a float32, x *float32, n int)

//go:noescape
func axpyAVX512(a float32, x, y *float32, n int)

//go:noescape
func scaleAVX512(a float32, x *float32, n int)

//go:noescape
func expAVX512(dst, x *float32, n int)

// expAVX2 is expGo for n a multiple of 8.
//
//go:noescape
func expAVX2(dst, x *float32, n int)

// longest is how many elements one assembly call takes: assembly cannot be preempted, so a call stays well below
// 100 us.
const longest = 1 << 16

// dot is the inner product of a and b; the order of summation depends on len(a) only. b is at least as long as a.
func dot(a, b []float32) float32 {
	if simd < avx2 {
		return dotGo(a, b)
	}
	var sum float32
	for ; len(a) > longest; a, b = a[longest:], b[longest:] {
		sum += dotAVX2(&a[0], &b[0], longest)
	}
	if len(a) == 0 {
		return sum
	}
	b = b[:len(a)]
	return sum + dotAVX2(&a[0], &b[0], len(a))
}

// axpy adds a*x to y; y is at least as long as x.
func axpy(a float32, x, y []float32) {
	if simd < avx2 {
		axpyGo(a, x, y)
		return
	}
	y = y[:len(x)]
	for len(x) > 0 {
		n := min(len(x), longest)
		if simd == avx512 {
			axpyAVX512(a, &x[0], &y[0], n)
		} else {
			axpyAVX2(a, &x[0], &y[0], n)
		}
		x, y = x[n:], y[n:]
	}
}

// scale multiplies x by a.
func scale(a float32, x []float32) {
	if simd < avx2 {
		scaleGo(a, x)
		return
	}
	for len(x) > 0 {
		n := min(len(x), longest)
		if simd == avx512 {
			scaleAVX512(a, &x[0], n)
		} else {
			scaleAVX2(a, &x[0], n)
		}
		x = x[n:]
	}
}

// exp writes e^x to dst, which is at least as long and may be x. What an element gives does not depend on its place.
func exp(dst, x []float32) {
	if simd < avx2 {
		expGo(dst, x)
		return
	}
	dst = dst[:len(x)]
	for simd == avx512 && len(x) > 0 {
		n := min(len(x), longest)
		expAVX512(&dst[0], &x[0], n)
		dst, x = dst[n:], x[n:]
	}
	for len(x) >= 8 {
		n := min(len(x), longest) &^ 7
		expAVX2(&dst[0], &x[0], n)
		dst, x = dst[n:], x[n:]
	}
	if len(x) > 0 {
		var tail [8]float32
		copy(tail[:], x)
		expAVX2(&tail[0], &tail[0], 8)
		copy(dst, tail[:])
	}
}

// addRowsAVX2 is addRowsGo for count rows of n elements, n a multiple of 8.
//
//go:noescape
func addRowsAVX2(sum *float32, row *uintptr, factor *float32, count, n int)

//go:noescape
func addRowsAVX512(sum *float32, row *uintptr, factor *float32, count, n int)

// addRows is addRowsGo; a call works on at most blockTokens rows of one head.
func addRows(sum []float32, row []uintptr, factor []float32) {
	if simd < avx2 {
		addRowsGo(sum, row, factor)
		return
	}
	factor = factor[:len(row)]
	if len(row) == 0 || len(sum) == 0 {
		return
	}
	if simd == avx512 {
		addRowsAVX512(&sum[0], &row[0], &factor[0], len(row), len(sum))
	} else {
		addRowsAVX2(&sum[0], &row[0], &factor[0], len(row), len(sum))
	}
}

//go:noescape
func addRows3AVX2(sum0, sum1, sum2 *float32, row *uintptr, factor0, factor1, factor2 *float32, count, n int)

//go:noescape
func addRows3AVX512(sum0, sum1, sum2 *float32, row *uintptr, factor0, factor1, factor2 *float32, count, n int)

// addRows3 is addRows for three sums over the same rows: the same bits, and a row is loaded once.
func addRows3(sum [3][]float32, row []uintptr, factor [3][]float32) {
	n, count := len(sum[0]), len(row)
	if simd < avx2 || n == 0 || count == 0 {
		for i := range sum {
			addRows(sum[i], row, factor[i])
		}
		return
	}
	for i := range sum {
		_, _ = sum[i][n-1], factor[i][count-1]
	}
	if simd == avx512 {
		addRows3AVX512(&sum[0][0], &sum[1][0], &sum[2][0], &row[0], &factor[0][0], &factor[1][0], &factor[2][0], count, n)
	} else {
		addRows3AVX2(&sum[0][0], &sum[1][0], &sum[2][0], &row[0], &factor[0][0], &factor[1][0], &factor[2][0], count, n)
	}
}
