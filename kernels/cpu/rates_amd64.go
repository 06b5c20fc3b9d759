//go:build !purego

package cpu

//go:noescape
func sumAVX2(x *float32, n int) float32

//go:noescape
func fmaLoopAVX2(n int) float32

//go:noescape
func fmaLoopAVX512(n int) float32

// fmaLoopFlops is the arithmetic of one round of fmaLoop: 12 vectors of 8 or 16 multiply-adds.
func fmaLoopFlops() int {
	if simd == avx512 {
		return 12 * 16 * 2
	}
	return 12 * 8 * 2
}

// sum adds the elements of x, whose length is a multiple of 64.
func sum(x []float32) float32 {
	if simd < avx2 {
		return sumGo(x)
	}
	var s float32
	for ; len(x) > longest; x = x[longest:] {
		s += sumAVX2(&x[0], longest)
	}
	return s + sumAVX2(&x[0], len(x))
}

// fmaLoop does n rounds of independent multiply-adds; its result means nothing.
func fmaLoop(n int) float32 {
	if simd < avx2 {
		return fmaLoopGo(n)
	}
	if simd == avx512 {
		return fmaLoopAVX512(n)
	}
	return fmaLoopAVX2(n)
}
