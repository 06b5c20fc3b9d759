package kerneltest

import (
	"encoding/binary"
	"math"

	"reprise/kernels"
)

// encode rounds v to stored elements of type t.
func encode(t kernels.DType, v []float32) []byte {
	data := make([]byte, len(v)*t.Size())
	for i, f := range v {
		switch t {
		case kernels.F32:
			binary.LittleEndian.PutUint32(data[4*i:], math.Float32bits(f))
		case kernels.F16:
			binary.LittleEndian.PutUint16(data[2*i:], kernels.F32ToF16(f))
		case kernels.BF16:
			binary.LittleEndian.PutUint16(data[2*i:], kernels.F32ToBF16(f))
		case kernels.F8E4M3:
			data[i] = kernels.F32ToF8E4M3(f)
		case kernels.F8E5M2: // cut, not rounded: any code will do
			data[i] = byte(kernels.F32ToF16(f) >> 8)
		default:
			panic("kerneltest: cannot encode " + t.String())
		}
	}
	return data
}

// decode widens stored elements.
func decode(t kernels.DType, data []byte) []float64 {
	v := make([]float64, len(data)/t.Size())
	for i := range v {
		switch t {
		case kernels.F32:
			v[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:])))
		case kernels.F16:
			v[i] = float64(kernels.F16ToF32(binary.LittleEndian.Uint16(data[2*i:])))
		case kernels.BF16:
			v[i] = float64(kernels.BF16ToF32(binary.LittleEndian.Uint16(data[2*i:])))
		case kernels.F8E4M3:
			v[i] = float64(kernels.F8E4M3ToF32(data[i]))
		default:
			panic("kerneltest: cannot decode " + t.String())
		}
	}
	return v
}

var nan = float32(math.NaN())

// nans is n poisoned numbers.
func nans(n int) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = nan
	}
	return v
}
