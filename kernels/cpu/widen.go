package cpu

import "reprise/kernels"

// widen writes the stored elements of src as float32, exactly.
func widen(dst []float32, src []byte, dtype kernels.DType) {
	done := widenBlocks(dst, src, dtype)
	widenGo(dst[done:], src[done*dtype.Size():], dtype)
}

// widenGo is widen element by element.
func widenGo(dst []float32, src []byte, dtype kernels.DType) {
	if len(dst) == 0 {
		return
	}
	at := address(src)
	switch dtype {
	case kernels.F32:
		copy(dst, elements[float32](at, len(dst)))
	case kernels.BF16:
		for i, v := range elements[uint16](at, len(dst)) {
			dst[i] = kernels.BF16ToF32(v)
		}
	case kernels.F16:
		for i, v := range elements[uint16](at, len(dst)) {
			dst[i] = kernels.F16ToF32(v)
		}
	case kernels.F8E4M3:
		for i := range dst {
			dst[i] = kernels.F8E4M3ToF32(src[i])
		}
	case kernels.F8E5M2:
		for i := range dst {
			dst[i] = kernels.F8E5M2ToF32(src[i])
		}
	default:
		panic("cpu: widen " + dtype.String())
	}
}
