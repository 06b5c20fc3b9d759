//go:build !purego

package cpu

import "reprise/kernels"

// The routines are widenGo for one dtype and n a multiple of 8.

//go:noescape
func widenBF16(dst *float32, src *byte, n int)

//go:noescape
func widenF16(dst *float32, src *byte, n int)

//go:noescape
func widenE4M3(dst *float32, src *byte, n int)

//go:noescape
func widenE5M2(dst *float32, src *byte, n int)

// widenE2M1 writes n blocks of sixteen elements from eight bytes each, times twice halves by block.
//
//go:noescape
func widenE2M1(dst *float32, src *byte, halves *float32, n int)

// widenFourBits is widenFourBitsGo for len(halves) blocks, at least one.
func widenFourBits(dst []float32, src []byte, halves []float32) {
	if simd < avx2 {
		widenFourBitsGo(dst, src, halves)
		return
	}
	n := len(halves)
	_, _ = dst[16*n-1], src[8*n-1]
	widenE2M1(&dst[0], &src[0], &halves[0], n)
}

// widenBlocks widens a leading part of src and returns its elements.
func widenBlocks(dst []float32, src []byte, dtype kernels.DType) int {
	n := len(dst) &^ 7
	if simd < avx2 || n == 0 || dtype == kernels.F32 {
		return 0
	}
	src = src[:n*dtype.Size()]
	from := 0
	if simd == avx512 {
		from = widenWide(dst, src, dtype)
	}
	for ; from < n; from += longest {
		d, s, count := &dst[from], &src[from*dtype.Size()], min(longest, n-from)
		switch dtype {
		case kernels.BF16:
			widenBF16(d, s, count)
		case kernels.F16:
			widenF16(d, s, count)
		case kernels.F8E4M3:
			widenE4M3(d, s, count)
		case kernels.F8E5M2:
			widenE5M2(d, s, count)
		default:
			return 0
		}
	}
	return n
}

//go:noescape
func widen512BF16(dst *float32, src *byte, n int)

//go:noescape
func widen512F16(dst *float32, src *byte, n int)

//go:noescape
func widen512E4M3(dst *float32, src *byte, n int)

//go:noescape
func widen512E5M2(dst *float32, src *byte, n int)

// widenWide widens a leading part of src, a multiple of 16 elements, and returns its elements.
func widenWide(dst []float32, src []byte, dtype kernels.DType) int {
	n := len(dst) &^ 15
	for from := 0; from < n; from += longest {
		d, s, count := &dst[from], &src[from*dtype.Size()], min(longest, n-from)
		switch dtype {
		case kernels.BF16:
			widen512BF16(d, s, count)
		case kernels.F16:
			widen512F16(d, s, count)
		case kernels.F8E4M3:
			widen512E4M3(d, s, count)
		case kernels.F8E5M2:
			widen512E5M2(d, s, count)
		default:
			return 0
		}
	}
	return n
}
