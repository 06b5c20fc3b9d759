//go:build !purego

package cpu

import "reprise/kernels"

// The routines are tileGo for one dtype and number of tokens.

//go:noescape
func tileF32x1(t *dotTile)

//go:noescape
func tileF32x2(t *dotTile)

//go:noescape
func tileF32x3(t *dotTile)

//go:noescape
func tileBF16x1(t *dotTile)

//go:noescape
func tileBF16x2(t *dotTile)

//go:noescape
func tileBF16x3(t *dotTile)

// swizzleAVX2 is swizzleGo for n elements.
//
//go:noescape
func swizzleAVX2(dst, x *float32, n int)

// multiply is tileGo for up to bestTokens() tokens.
func (t *dotTile) multiply(dtype kernels.DType, tokens int) {
	switch simd {
	case generic:
		tileGo(t, dtype, tokens)
	case avx2:
		t.multiplyAVX2(dtype, tokens)
	default:
		t.multiplyAVX512(dtype, tokens)
	}
}

func (t *dotTile) multiplyAVX2(dtype kernels.DType, tokens int) {
	if dtype == kernels.BF16 {
		switch tokens {
		case 1:
			tileBF16x1(t)
		case 2:
			tileBF16x2(t)
		default:
			tileBF16x3(t)
		}
		return
	}
	switch tokens {
	case 1:
		tileF32x1(t)
	case 2:
		tileF32x2(t)
	default:
		tileF32x3(t)
	}
}

// swizzle is swizzleGo; len(x) is a multiple of 16.
func swizzle(dst, x []float32) {
	if simd < avx2 {
		swizzleGo(dst, x)
		return
	}
	dst = dst[:len(x)]
	for len(x) > 0 {
		n := min(len(x), longest)
		if simd == avx512 {
			swizzleAVX512(&dst[0], &x[0], n)
		} else {
			swizzleAVX2(&dst[0], &x[0], n)
		}
		dst, x = dst[n:], x[n:]
	}
}
