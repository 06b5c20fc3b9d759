//go:build !purego

package cpu

import "reprise/kernels"

// The routines are tileGo for one dtype and number of tokens, as those of tile_amd64.go.

//go:noescape
func tile512F32x1(t *dotTile)

//go:noescape
func tile512F32x2(t *dotTile)

//go:noescape
func tile512F32x3(t *dotTile)

//go:noescape
func tile512F32x4(t *dotTile)

//go:noescape
func tile512F32x6(t *dotTile)

//go:noescape
func tile512F32x8(t *dotTile)

//go:noescape
func tile512F32x12(t *dotTile)

//go:noescape
func tile512BF16x1(t *dotTile)

//go:noescape
func tile512BF16x2(t *dotTile)

//go:noescape
func tile512BF16x3(t *dotTile)

//go:noescape
func tile512BF16x4(t *dotTile)

//go:noescape
func tile512BF16x6(t *dotTile)

//go:noescape
func tile512BF16x8(t *dotTile)

//go:noescape
func tile512BF16x12(t *dotTile)

// swizzleAVX512 is swizzleGo for n elements.
//
//go:noescape
func swizzleAVX512(dst, x *float32, n int)

// multiplyAVX512 runs the smallest routine for at least so many tokens. Rows x beyond them are copies of the last: their
// products are not used.
func (t *dotTile) multiplyAVX512(dtype kernels.DType, tokens int) {
	for i := tokens; i < len(t.x); i++ {
		t.x[i] = t.x[tokens-1]
	}
	if dtype == kernels.BF16 {
		t.multiplyBF16(tokens)
	} else {
		t.multiplyF32(tokens)
	}
}

func (t *dotTile) multiplyF32(tokens int) {
	switch {
	case tokens <= 1:
		tile512F32x1(t)
	case tokens <= 2:
		tile512F32x2(t)
	case tokens <= 3:
		tile512F32x3(t)
	case tokens <= 4:
		tile512F32x4(t)
	case tokens <= 6:
		tile512F32x6(t)
	case tokens <= 8:
		tile512F32x8(t)
	default:
		tile512F32x12(t)
	}
}

func (t *dotTile) multiplyBF16(tokens int) {
	switch {
	case tokens <= 1:
		tile512BF16x1(t)
	case tokens <= 2:
		tile512BF16x2(t)
	case tokens <= 3:
		tile512BF16x3(t)
	case tokens <= 4:
		tile512BF16x4(t)
	case tokens <= 6:
		tile512BF16x6(t)
	case tokens <= 8:
		tile512BF16x8(t)
	default:
		tile512BF16x12(t)
	}
}
