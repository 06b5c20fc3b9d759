//go:build !purego

package cpu

// ssmSIMD says that the routines below may run.
var ssmSIMD = hasAVX2

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
