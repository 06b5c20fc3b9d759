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

// multiply fills t.out for rows w of F32 or BF16.
func (t *dotTile) multiply(dtype kernels.DType, tokens int) {
	if !hasAVX2 {
		tileGo(t, dtype, tokens)
		return
	}
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
