package cpu

import (
	"unsafe"

	"reprise/kernels"
)

// Shape of a tile.
const (
	tileRows   = 4 // stored rows: of a weight, or keys
	tileTokens = 3 // float32 rows at most
)

// dotTile is the inner products of tileRows stored rows with up to tileTokens float32 rows. Element k of each product is
// added to lane k%8 in order of k and the lanes are added in a fixed tree, so that a product depends on its two rows
// alone: not on which other rows share the tile. The addresses must be kept alive by others.
type dotTile struct {
	w     [tileRows]uintptr
	x     [tileTokens]uintptr
	n     int // length of all rows, a multiple of 8
	ahead int // the same place of the rows w, this many bytes ahead, is prefetched
	out   [tileTokens * tileRows]float32
}

// tileLanes is what n must be a multiple of.
const tileLanes = 8

// maxTileLength is the longest row of one assembly call (12 products of it take 50 us).
const maxTileLength = 1 << 18

// direct reports whether rows of t can be multiplied as stored; others are widened to F32 first.
func direct(t kernels.DType) bool { return t == kernels.F32 || t == kernels.BF16 }

// tileGo is the reference: out[x*tileRows+w] for the given number of tokens.
func tileGo(t *dotTile, dtype kernels.DType, tokens int) {
	for m := range tokens {
		x := elements[float32](t.x[m], t.n)
		for r, w := range t.w {
			var lanes [tileLanes]float32
			if dtype == kernels.BF16 {
				for k, v := range elements[uint16](w, t.n) {
					lanes[k%tileLanes] += kernels.BF16ToF32(v) * x[k]
				}
			} else {
				for k, v := range elements[float32](w, t.n) {
					lanes[k%tileLanes] += v * x[k]
				}
			}
			t.out[m*tileRows+r] = (lanes[0] + lanes[1] + (lanes[2] + lanes[3])) + (lanes[4] + lanes[5] + (lanes[6] + lanes[7]))
		}
	}
}

// elements is the n elements at an address.
func elements[E any](addr uintptr, n int) []E { return unsafe.Slice((*E)(pointer(addr)), n) }

// address is where s starts; the caller keeps s alive.
func address[E any](s []E) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(s))) }
