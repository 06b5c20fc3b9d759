package kernels

import (
	"encoding/binary"
	"math"
)

// This file is what the formats mean, in float32 operations that every device repeats: the same float32 state gives the
// same bytes everywhere. A device's own state differs from another's by the order of its sums, its rounding does not.
//
// With a the largest absolute value of a block (of a head, A):
//
//	fp8     scale = a / 448;                 element = round(x * (448 / a))
//	nvfp4   head scale G = A / 2688; block scale s = e4m3(a * (448 / A)); element = round(x * (1 / (s * G)))
//
// Elements saturate. A block (of nvfp4 a head) whose largest is below 2^-96 becomes zeros with a scale of zero, and one
// that holds a NaN or an infinity gets the scale NaN and elements of zero: what is broken stays broken. float16
// saturates at 65504, stochastically rounded bfloat16 at its largest finite number. A block scale of nvfp4 is rounded to nearest where the
// elements are, and up where they are rounded stochastically: there an element beyond 6 would be cut, which is a bias.

// tinyState is the largest absolute value below which a block is stored as zeros.
const tinyState = 1.0 / (1 << 48) / (1 << 48)

// StateNoise is the random numbers of one rounding: Layer counts the model's SSM layers and Position the tokens in the
// state that is rounded. Slots, blocks, requests and neighbours have no part in it. The zero value rounds to nearest.
type StateNoise struct {
	Stochastic      bool
	Layer, Position uint32
}

// Noise is the random numbers for writing HP of a layer, the state being that after position tokens.
func (p Precision) Noise(layer int, position int32) StateNoise {
	return StateNoise{p.Rounding == Stochastic, uint32(layer), uint32(position)}
}

// Eight is the 16-bit numbers of elements 8i..8i+7 of the layer's state, counted over [Heads, Rows, Cols]: number j of
// the block Philox4x32-7(key = (Layer, 0), counter = (i, Position, 0, 0)) is word j/2, the low half first.
func (n StateNoise) Eight(i uint32) [8]uint16 {
	w := philox(uint64(n.Layer), uint64(n.Position)<<32|uint64(i), 0, 7)
	return [8]uint16{
		uint16(w[0]), uint16(w[0] >> 16), uint16(w[1]), uint16(w[1] >> 16),
		uint16(w[2]), uint16(w[2] >> 16), uint16(w[3]), uint16(w[3] >> 16),
	}
}

// noiseReader is the numbers of consecutive elements.
type noiseReader struct {
	StateNoise
	next  int
	eight [8]uint16
}

// reader starts at an element of the layer's state.
func (n StateNoise) reader(element int) noiseReader {
	r := noiseReader{StateNoise: n, next: element}
	if n.Stochastic && element%8 > 0 {
		r.eight = n.Eight(uint32(element / 8))
	}
	return r
}

func (r *noiseReader) take() uint16 {
	if r.next%8 == 0 {
		r.eight = r.Eight(uint32(r.next / 8))
	}
	r.next++
	return r.eight[(r.next-1)%8]
}

// minifloat is a small floating-point format with subnormal numbers.
type minifloat struct {
	mantissa, minExponent int // bits; exponent of the smallest normal number
	sign                  int // bit of the sign
	largest               uint32
	max                   float32
}

// Formats that are rounded to by minifloat.round. bfloat16, whose exponents are float32's, has a function of its own.
var (
	half = minifloat{10, -14, 15, 0x7bff, 65504}
	e4m3 = minifloat{3, -6, 7, 0x7e, 448}
	e2m1 = minifloat{1, 0, 3, 7, 6}
)

// code is x in the format, x not NaN, saturating: in units u of the last place of x, |x| / u is rounded down after
// up(the part behind the point) of 0 or 1 is added.
func (f minifloat) code(x float32, up func(fraction float32, odd bool) uint32) uint32 {
	sign := math.Float32bits(x) >> 31 << f.sign
	abs := min(math.Float32frombits(math.Float32bits(x)&^(1<<31)), f.max)
	e := max(int(math.Float32bits(abs)>>23)-127, f.minExponent)
	t := abs * math.Float32frombits(uint32(f.mantissa-e+127)<<23)
	n := uint32(t)
	n += up(t-float32(n), n&1 == 1)
	return sign | min(uint32(e-f.minExponent)<<f.mantissa+n, f.largest)
}

// toEven rounds to nearest.
func toEven(fraction float32, odd bool) uint32 {
	if fraction > 0.5 || fraction == 0.5 && odd {
		return 1
	}
	return 0
}

// ceiling rounds away from zero.
func ceiling(fraction float32, _ bool) uint32 {
	if fraction > 0 {
		return 1
	}
	return 0
}

// byChance rounds up with a probability that is the fraction, to 16 bits: iff (noise + 1/2) / 65536 >= 1 - fraction.
func byChance(noise uint16) func(fraction float32, odd bool) uint32 {
	return func(fraction float32, _ bool) uint32 {
		if (float32(noise)+0.5)*(1.0/65536) >= 1-fraction {
			return 1
		}
		return 0
	}
}

// round is x in the format, by chance if the reader is stochastic and else to nearest.
func (f minifloat) round(x float32, r *noiseReader) uint32 {
	if !r.Stochastic {
		return f.code(x, toEven)
	}
	return f.code(x, byChance(r.take()))
}

// E2M1ToF32 widens the low four bits of an e2m1; exact.
func E2M1ToF32(b uint8) float32 { return e2m1Values[b&15] }

var e2m1Values = [16]float32{0, 0.5, 1, 1.5, 2, 3, 4, 6, float32(math.Copysign(0, -1)), -0.5, -1, -1.5, -2, -3, -4, -6}

// F32ToE2M1 rounds to nearest, ties to even, saturating at +-6; NaN becomes 0, for want of one.
func F32ToE2M1(x float32) uint8 {
	if x != x {
		return 0
	}
	return uint8(e2m1.code(x, toEven))
}

func roundHalf(x float32, r *noiseReader) uint16 {
	if x != x {
		r.skip()
		return 0x7e00
	}
	return uint16(half.round(x, r))
}

func roundBF16(x float32, r *noiseReader) uint16 {
	if !r.Stochastic {
		return F32ToBF16(x)
	}
	return stochasticBF16(x, r.take())
}

// stochasticBF16 adds the noise to the bits behind a bfloat16 and cuts them off: what byChance does.
func stochasticBF16(x float32, noise uint16) uint16 {
	u := math.Float32bits(x)
	if u&0x7f800000 == 0x7f800000 {
		return F32ToBF16(x)
	}
	return uint16(u>>16&0x8000 | min((u&0x7fffffff+uint32(noise))>>16, 0x7f7f))
}

// skip passes over an element that is not rounded.
func (r *noiseReader) skip() {
	if r.Stochastic {
		r.take()
	}
}

// EncodeHead stores the state [Rows, Cols] of a head. share is the layer's share of a block.
func (a StateArray) EncodeHead(share []byte, head int, state []float32, n StateNoise) {
	r := n.reader(head * a.Rows * a.Cols)
	var scale headScale
	if a.Format == StateNVFP4 {
		scale = headScaleOf(state)
		binary.LittleEndian.PutUint32(share[a.HeadScales+4*int64(head):], math.Float32bits(scale.g))
	}
	for i := range a.Rows {
		a.encodeRow(share, head*a.Rows+i, state[i*a.Cols:(i+1)*a.Cols], scale, &r)
	}
}

// row is where row i, counted over all heads, has its values and its scales.
func (a StateArray) row(share []byte, i int) (values, scales []byte) {
	size, count := a.RowBytes(), a.RowScales()*a.ScaleBytes()
	values = share[a.Values+int64(i)*int64(size):][:size]
	if count > 0 {
		scales = share[a.Scales+int64(i)*int64(count):][:count]
	}
	return values, scales
}

func (a StateArray) encodeRow(share []byte, i int, x []float32, g headScale, r *noiseReader) {
	values, scales := a.row(share, i)
	switch a.Format {
	case StateF32:
		for j, v := range x {
			binary.LittleEndian.PutUint32(values[4*j:], math.Float32bits(v))
		}
	case StateF16:
		for j, v := range x {
			binary.LittleEndian.PutUint16(values[2*j:], roundHalf(v, r))
		}
	case StateBF16:
		for j, v := range x {
			binary.LittleEndian.PutUint16(values[2*j:], roundBF16(v, r))
		}
	case StateF8:
		encodeF8(values, scales, x, r)
	case StateNVFP4:
		encodeNVFP4(values, scales, x, g, r)
	}
}

// largestOf is the largest absolute value, NaN if there is one.
func largestOf(x []float32) float32 {
	var a float32
	for _, v := range x {
		if v = math.Float32frombits(math.Float32bits(v) &^ (1 << 31)); !(v <= a) {
			a = v
			if a != a {
				return a
			}
		}
	}
	return a
}

func finite(a float32) bool { return a <= math.MaxFloat32 }

func encodeF8(values, scales []byte, x []float32, r *noiseReader) {
	for b := 0; b*F8Block < len(x); b++ {
		part := x[b*F8Block : min(len(x), (b+1)*F8Block)]
		scale, inverse := f8Scale(largestOf(part))
		binary.LittleEndian.PutUint32(scales[4*b:], math.Float32bits(scale))
		for j, v := range part {
			if inverse == 0 {
				values[b*F8Block+j] = 0
				r.skip()
				continue
			}
			values[b*F8Block+j] = uint8(e4m3.round(v*inverse, r))
		}
	}
}

// f8Scale is the scale of a block with the largest value a and what its elements are multiplied by, 0 for none.
func f8Scale(a float32) (scale, inverse float32) {
	switch {
	case !finite(a):
		return float32(math.NaN()), 0
	case a < tinyState:
		return 0, 0
	}
	return a / 448, 448 / a
}

// headScale is the scale of an nvfp4 head and what the largest value of a block is multiplied by to become its scale,
// 0 for none.
type headScale struct{ g, inverse float32 }

func headScaleOf(state []float32) headScale {
	switch a := largestOf(state); {
	case !finite(a):
		return headScale{float32(math.NaN()), 0}
	case a < tinyState:
		return headScale{}
	default:
		return headScale{a / (6 * 448), 448 / a}
	}
}

// block is the stored scale of a block with the largest value a and what its elements are multiplied by, 0 for none.
func (h headScale) block(a float32, stochastic bool) (stored uint8, inverse float32) {
	if h.inverse == 0 {
		return 0, 0
	}
	up := toEven
	if stochastic {
		up = ceiling
	}
	stored = uint8(e4m3.code(a*h.inverse, up))
	if stored == 0 {
		return 0, 0
	}
	return stored, 1 / (F8E4M3ToF32(stored) * h.g)
}

func encodeNVFP4(values, scales []byte, x []float32, g headScale, r *noiseReader) {
	clear(values)
	for b := 0; b*NVFP4Block < len(x); b++ {
		part := x[b*NVFP4Block : min(len(x), (b+1)*NVFP4Block)]
		stored, inverse := g.block(largestOf(part), r.Stochastic)
		scales[b] = stored
		for j, v := range part {
			if inverse == 0 {
				r.skip()
				continue
			}
			values[(b*NVFP4Block+j)/2] |= uint8(e2m1.round(v*inverse, r) << (4 * (j % 2)))
		}
	}
}

// DecodeRows widens rows from.. of a head into dst [n, Cols], whose length says how many. share is the layer's share of
// a block.
func (a StateArray) DecodeRows(dst []float32, share []byte, head, from int) {
	var g float32
	if a.Format == StateNVFP4 {
		g = math.Float32frombits(binary.LittleEndian.Uint32(share[a.HeadScales+4*int64(head):]))
	}
	for i := 0; i*a.Cols < len(dst); i++ {
		values, scales := a.row(share, head*a.Rows+from+i)
		a.decodeRow(dst[i*a.Cols:(i+1)*a.Cols], values, scales, g)
	}
}

func (a StateArray) decodeRow(dst []float32, values, scales []byte, g float32) {
	switch a.Format {
	case StateF32:
		for j := range dst {
			dst[j] = math.Float32frombits(binary.LittleEndian.Uint32(values[4*j:]))
		}
	case StateF16:
		for j := range dst {
			dst[j] = F16ToF32(binary.LittleEndian.Uint16(values[2*j:]))
		}
	case StateBF16:
		for j := range dst {
			dst[j] = BF16ToF32(binary.LittleEndian.Uint16(values[2*j:]))
		}
	case StateF8:
		for j := range dst {
			scale := math.Float32frombits(binary.LittleEndian.Uint32(scales[4*(j/F8Block):]))
			dst[j] = F8E4M3ToF32(values[j]) * scale
		}
	case StateNVFP4:
		for j := range dst {
			dst[j] = E2M1ToF32(values[j/2]>>(4*(j%2))) * (F8E4M3ToF32(scales[j/NVFP4Block]) * g)
		}
	}
}
