//go:build !amd64 || purego

package cpu

import "reprise/kernels"

// multiply fills t.out for rows w of F32 or BF16.
func (t *dotTile) multiply(dtype kernels.DType, tokens int) { tileGo(t, dtype, tokens) }
