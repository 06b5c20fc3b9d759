//go:build !purego

package cpu

// The routines named ...8 and ...1, tile4x16, tile1x16 and transpose8 need avx2, those with 16 or 32 avx512. dot8 has no
// wider form: its sums are of eight lanes.

//go:noescape
func siluMul8(out, z, y *float32, n int)

//go:noescape
func convSilu8(out, w, bias, x0, x1, x2, x3 *float32, n int)

//go:noescape
func dot8(out, a, v *float32, lda, n int)

//go:noescape
func dot1(out, a, v *float32, n int)

//go:noescape
func tile4x16(dst, src, a, b *float32, ldd, lds, rs, cs, ldb, k int, beta float32)

//go:noescape
func tile1x16(dst, src, a, b *float32, cs, ldb, k int, beta float32)

//go:noescape
func scaleMul8(out, x, w *float32, n int, a float32)

//go:noescape
func prefetch64(p *float32, ahead, lines int)

//go:noescape
func transpose8(dst, src *float32, ldd, lds int)

// siluMul16 is siluMul for n elements, n > 0.
//
//go:noescape
func siluMul16(out, z, y *float32, n int)

// scaleMul16 is scaleMul for n elements, n > 0.
//
//go:noescape
func scaleMul16(out, x, w *float32, n int, a float32)

//go:noescape
func convSilu16(out, w, bias, x0, x1, x2, x3 *float32, n int)

//go:noescape
func tile8x32(dst, src, a, b *float32, ldd, lds, rs, cs, ldb, k int, beta float32)
