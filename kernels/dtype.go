package kernels

import (
	"fmt"
	"math"
)

// DType is the type of stored elements.
type DType uint8

// Element types of activations, states, caches and checkpoint files.
const (
	Invalid DType = iota
	F32
	F16
	BF16
	F8E4M3 // e4m3fn: largest 448, no infinities, NaN 0x7f/0xff
	F8E5M2
	U8
	I8
	I16
	I32
	I64
)

var dtypes = [...]struct {
	name string
	size int
}{
	Invalid: {"invalid", 0}, F32: {"float32", 4}, F16: {"float16", 2}, BF16: {"bfloat16", 2}, F8E4M3: {"float8_e4m3", 1},
	F8E5M2: {"float8_e5m2", 1}, U8: {"uint8", 1}, I8: {"int8", 1}, I16: {"int16", 2}, I32: {"int32", 4}, I64: {"int64", 8},
}

// Size is the bytes of one element.
func (t DType) Size() int { return dtypes[t].size }

func (t DType) String() string {
	if int(t) < len(dtypes) {
		return dtypes[t].name
	}
	return fmt.Sprintf("dtype(%d)", uint8(t))
}

// Float reports whether t holds floating-point numbers.
func (t DType) Float() bool { return t >= F32 && t <= F8E5M2 }

// BF16ToF32 widens a bfloat16; exact.
func BF16ToF32(b uint16) float32 { return math.Float32frombits(uint32(b) << 16) }

// F32ToBF16 rounds to nearest, ties to even; NaN stays NaN.
func F32ToBF16(f float32) uint16 {
	u := math.Float32bits(f)
	if u&0x7fffffff > 0x7f800000 {
		return uint16(u>>16) | 0x40
	}
	return uint16((u + 0x7fff + u>>16&1) >> 16)
}

// F16ToF32 widens an IEEE half; exact.
func F16ToF32(h uint16) float32 {
	sign, exp, frac := uint32(h>>15)<<31, uint32(h>>10&31), uint32(h&0x3ff)
	switch {
	case exp == 31:
		return math.Float32frombits(sign | 0x7f800000 | frac<<13)
	case exp == 0:
		f := float32(frac) * (1.0 / (1 << 24))
		return math.Float32frombits(sign | math.Float32bits(f))
	}
	return math.Float32frombits(sign | (exp+112)<<23 | frac<<13)
}

// F32ToF16 rounds to nearest, ties to even; values beyond the range become infinities.
func F32ToF16(f float32) uint16 {
	u := math.Float32bits(f)
	sign, abs := uint16(u>>16&0x8000), u&0x7fffffff
	switch {
	case abs > 0x7f800000:
		return sign | 0x7e00
	case abs >= 0x477ff000: // rounds past 65504
		return sign | 0x7c00
	case abs < 0x38800000: // subnormal result: the addition aligns and rounds
		return sign | uint16(math.Float32bits(math.Float32frombits(abs)+0.5)-0x3f000000)
	}
	return sign | uint16((abs-0x38000000+0xfff+abs>>13&1)>>13)
}

// F8E4M3ToF32 widens an e4m3fn; exact.
func F8E4M3ToF32(b uint8) float32 {
	sign, exp, frac := uint32(b>>7)<<31, uint32(b>>3&15), uint32(b&7)
	switch {
	case b&0x7f == 0x7f:
		return float32(math.NaN())
	case exp == 0:
		return math.Float32frombits(sign | math.Float32bits(float32(frac)*(1.0/512)))
	}
	return math.Float32frombits(sign | (exp+120)<<23 | frac<<20)
}

// F32ToF8E4M3 rounds to nearest, ties to even, saturating at +-448; NaN becomes NaN.
func F32ToF8E4M3(f float32) uint8 {
	u := math.Float32bits(f)
	sign, abs := uint8(u>>24&0x80), u&0x7fffffff
	switch {
	case abs > 0x7f800000:
		return sign | 0x7f
	case abs >= 0x43e00000: // 448
		return sign | 0x7e
	case abs < 0x3c800000: // below 2^-6: subnormal result, unit 2^-9
		return sign | uint8(math.Float32bits(math.Float32frombits(abs)+16384)-0x46800000)
	}
	return sign | uint8((abs-0x3c000000+0x7ffff+abs>>20&1)>>20)
}

// F8E5M2ToF32 widens an e5m2; exact.
func F8E5M2ToF32(b uint8) float32 { return F16ToF32(uint16(b) << 8) }
