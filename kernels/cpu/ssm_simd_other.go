//go:build !amd64 || purego

package cpu

// The routines are never called.

func siluMul8(out, z, y *float32, n int)                     {}
func convSilu8(out, w, bias, x0, x1, x2, x3 *float32, n int) {}
func dot8(out, a, v *float32, lda, n int)                    {}
func scaleMul8(out, x, w *float32, n int, a float32)         {}
func dot1(out, a, v *float32, n int)                         {}

func tile4x16(dst, src, a, b *float32, ldd, lds, rs, cs, ldb, k int, beta float32) {}
func tile1x16(dst, src, a, b *float32, cs, ldb, k int, beta float32)               {}
func prefetch64(p *float32, ahead, lines int)                                      {}
func transpose8(dst, src *float32, ldd, lds int)                                   {}

func siluMul16(out, z, y *float32, n int)                                          {}
func scaleMul16(out, x, w *float32, n int, a float32)                              {}
func convSilu16(out, w, bias, x0, x1, x2, x3 *float32, n int)                      {}
func tile8x32(dst, src, a, b *float32, ldd, lds, rs, cs, ldb, k int, beta float32) {}
