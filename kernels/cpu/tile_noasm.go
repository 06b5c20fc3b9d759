//go:build !amd64 || purego

package cpu

import "reprise/kernels"

// multiply is tileGo.
func (t *dotTile) multiply(dtype kernels.DType, tokens int) { tileGo(t, dtype, tokens) }

// swizzle is swizzleGo; len(x) is a multiple of 16.
func swizzle(dst, x []float32) { swizzleGo(dst, x) }
