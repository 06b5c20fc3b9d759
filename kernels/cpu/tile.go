package cpu

import (
	"unsafe"

	"reprise/kernels"
)

// Shape of a tile.
const (
	tileRows   = 4  // stored rows: of a weight, or keys
	tileTokens = 12 // float32 rows at most, see bestTokens
	tileLanes  = 8  // running sums of a product
)

// dotTile is the inner products of tileRows stored rows w with up to tileTokens float32 rows x. A product is summed in
// eight lanes in an order that depends on its length alone, and the lanes are added in a fixed tree: it does not matter
// which other rows share the tile or into how many calls the length is cut. Rows w of BF16 take rows x that were
// swizzled. The addresses must be kept alive by others.
type dotTile struct {
	w     [tileRows]uintptr
	x     [tileTokens]uintptr
	n     int     // length of all rows, a multiple of tileStep
	ahead int     // the same place of the rows w, this many bytes ahead, is prefetched
	lanes uintptr // [bestTokens()][tileRows][tileLanes] float32 between the calls of a product
	begun int     // 1: go on from lanes
	more  int     // 1: leave the sums in lanes, out is not written
	out   [tileTokens * tileRows]float32
}

// laneFloats is what a row x takes of dotTile.lanes.
const laneFloats = tileRows * tileLanes

// bestTokens is how many rows x make the best use of the registers.
func bestTokens() int {
	if simd == avx512 {
		return tileTokens
	}
	return 3
}

// tileStep is what the length of rows w must be a multiple of, 0 for types that must be widened to F32 first.
func tileStep(t kernels.DType) int {
	switch t {
	case kernels.F32:
		return tileLanes
	case kernels.BF16:
		return 2 * tileLanes
	}
	return 0
}

// fits reports whether rows of n elements can be multiplied as stored.
func fits(t kernels.DType, n int) bool { return tileStep(t) != 0 && n%tileStep(t) == 0 }

// maxTileLength is the longest row of one assembly call: 12 products of it take about 50 us. Callers with more tokens
// keep rows shorter, see matmul.prepare.
const maxTileLength = 1 << 17

// tileGo is the reference: out[x*tileRows+w] for the given number of tokens.
func tileGo(t *dotTile, dtype kernels.DType, tokens int) {
	var all [][tileLanes]float32
	if t.begun != 0 || t.more != 0 {
		all = elements[[tileLanes]float32](t.lanes, tokens*tileRows)
	}
	for m := range tokens {
		x := elements[float32](t.x[m], t.n)
		for r, w := range t.w {
			var lanes [tileLanes]float32
			if t.begun != 0 {
				lanes = all[m*tileRows+r]
			}
			if dtype == kernels.BF16 {
				addProductBF16(&lanes, elements[uint16](w, t.n), x)
			} else {
				addProduct(&lanes, elements[float32](w, t.n), x)
			}
			if t.more != 0 {
				all[m*tileRows+r] = lanes
				continue
			}
			t.out[m*tileRows+r] = (lanes[0] + lanes[1] + (lanes[2] + lanes[3])) + (lanes[4] + lanes[5] + (lanes[6] + lanes[7]))
		}
	}
}

func addProduct(lanes *[tileLanes]float32, w, x []float32) {
	for k, v := range w {
		lanes[k%tileLanes] += v * x[k]
	}
}

// addProductBF16 takes the even elements of sixteen, then the odd ones.
func addProductBF16(lanes *[tileLanes]float32, w []uint16, x []float32) {
	for k := range w {
		block, lane, odd := k&^15, k%8, k>>3&1
		lanes[lane] += kernels.BF16ToF32(w[block+2*lane+odd]) * x[k]
	}
}

// swizzleGo writes, of every sixteen elements of x, the even ones and then the odd ones.
func swizzleGo(dst, x []float32) {
	for k := range x {
		dst[k] = x[k&^15+k%8*2+k>>3&1]
	}
}

// elements is the n elements at an address.
func elements[E any](addr uintptr, n int) []E { return unsafe.Slice((*E)(pointer(addr)), n) }

// address is where s starts; the caller keeps s alive.
func address[E any](s []E) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(s))) }
