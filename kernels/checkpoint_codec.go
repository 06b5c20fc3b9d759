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

// chunk is how many elements are rounded together: whole blocks of every format.
const chunk = F8Block

// noiseReader is the numbers of consecutive elements.
type noiseReader struct {
	StateNoise
	next    int
	numbers [chunk + 8]uint16
}

// take is the numbers of the next n elements, at most chunk; nil if rounding is to nearest.
func (r *noiseReader) take(n int) []uint16 {
	if !r.Stochastic {
		return nil
	}
	skip := r.next % 8
	for i := 0; i < skip+n; i += 8 {
		*(*[8]uint16)(r.numbers[i:]) = r.Eight(uint32((r.next - skip + i) / 8))
	}
	r.next += n
	return r.numbers[skip : skip+n]
}

// E2M1ToF32 widens the low four bits of an e2m1; exact.
func E2M1ToF32(b uint8) float32 { return e2m1Values[b&15] }

var e2m1Values = [16]float32{0, 0.5, 1, 1.5, 2, 3, 4, 6, float32(math.Copysign(0, -1)), -0.5, -1, -1.5, -2, -3, -4, -6}

// F32ToE2M1 rounds to nearest, ties to even, saturating at +-6; NaN becomes 0, for want of one.
func F32ToE2M1(x float32) uint8 {
	if x != x {
		return 0
	}
	return nearestE2M1(math.Float32bits(x))
}

// nearestE2M1 takes the bits of a number, which are rounded where they are cut; below 1, where codes are 1/2 apart, an
// addition aligns and rounds.
func nearestE2M1(u uint32) uint8 {
	const aligned = 1 << 22
	abs := u &^ (1 << 31)
	code := min((abs-0x3f000000+0x1fffff+abs>>22&1)>>22, 7)
	if small := math.Float32bits(math.Float32frombits(abs)+aligned) - 0x4a800000; abs < 0x3f800000 {
		code = small
	}
	return uint8(u>>28&8 | code)
}

// above is 1 if x > y, for numbers of 31 bits.
func above(x, y uint32) uint8 { return uint8((y - x) >> 31) }

// The stochastic roundings work on the bits of x: noise, brought to the place behind the last bit that is kept, is added
// and what lies behind is cut off. A subnormal result is found by byChance, or, of e2m1, in fixed point. All round |x|, in
// units of the last place, up iff (noise + 1/2) / 65536 >= 1 - (the part behind the point), to as many bits of noise as can matter.

// byChance is t >= 0 rounded to one of its neighbours.
func byChance(t float32, noise uint16) uint32 {
	n := uint32(t)
	threshold := math.Float32bits(1 - (t - float32(n)))
	return n + 1 - uint32(above(threshold, math.Float32bits((float32(noise)+0.5)*(1.0/65536))))
}

// nearestHalf is F32ToF16, saturating.
func nearestHalf(x float32) uint16 {
	h := F32ToF16(x)
	if h&0x7fff == 0x7c00 {
		h--
	}
	return h
}

func stochasticHalf(x float32, noise uint16) uint16 {
	u := math.Float32bits(x)
	sign, abs := uint16(u>>16&0x8000), u&^(1<<31)
	switch {
	case abs > 0x7f800000:
		return sign | 0x7e00
	case abs < 0x38800000: // 2^-14
		return sign | uint16(byChance(math.Float32frombits(abs)*(1<<24), noise))
	}
	return sign | uint16(min((abs-0x38000000+uint32(noise>>3))>>13, 0x7bff))
}

func stochasticBF16(x float32, noise uint16) uint16 {
	u := math.Float32bits(x)
	if u&0x7f800000 == 0x7f800000 {
		return F32ToBF16(x)
	}
	return uint16(u>>16&0x8000 | min((u&^(1<<31)+uint32(noise))>>16, 0x7f7f))
}

func stochasticE4M3(x float32, noise uint16) uint8 {
	u := math.Float32bits(x)
	sign, abs := uint8(u>>24&0x80), u&^(1<<31)
	if abs < 0x3c800000 { // 2^-6
		return sign | uint8(byChance(math.Float32frombits(abs)*512, noise))
	}
	return sign | uint8(min((abs-0x3c000000+(uint32(noise)<<4|8))>>20, 0x7e))
}

func stochasticE2M1(x float32, noise uint16) uint8 {
	u := math.Float32bits(x)
	sign, abs := uint8(u>>28&8), u&^(1<<31)
	n := uint32(noise)<<6 | 32
	code := min((abs-0x3f000000+n)>>22, 7)
	if small := (uint32(math.Float32frombits(min(abs, 0x3f800000))*(1<<23)) + n) >> 22; abs < 0x3f800000 { // no branch: either is as likely
		code = small
	}
	return sign | uint8(code)
}

// upE4M3 is the smallest e4m3 that is no less than x >= 0; 448 at most.
func upE4M3(x float32) uint8 {
	abs := math.Float32bits(x)
	if abs < 0x3c800000 { // 2^-6
		n := uint32(x * 512)
		if float32(n) < x*512 {
			n++
		}
		return uint8(n)
	}
	return uint8(min((abs-0x3c000000+0xfffff)>>20, 0x7e))
}

// EncodeHead stores the state [Rows, Cols] of a head. share is the layer's share of a block.
func (a StateArray) EncodeHead(share []byte, head int, state []float32, n StateNoise) {
	if a.Format == StateF32 {
		n = StateNoise{}
	}
	r := noiseReader{StateNoise: n, next: head * a.Rows * a.Cols}
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

// largestOf is the largest absolute value, NaN if there is one: as integers, NaN are above infinity.
func largestOf(x []float32) float32 {
	var a uint32
	for _, v := range x {
		a = max(a, math.Float32bits(v)&^(1<<31))
	}
	return math.Float32frombits(a)
}

func finite(a float32) bool { return a <= math.MaxFloat32 }

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
func (h headScale) block(a float32, up bool) (stored uint8, inverse float32) {
	if h.inverse == 0 {
		return 0, 0
	}
	if up {
		stored = upE4M3(a * h.inverse)
	} else {
		stored = F32ToF8E4M3(a * h.inverse)
	}
	if stored == 0 {
		return 0, 0
	}
	return stored, 1 / (F8E4M3ToF32(stored) * h.g)
}

// encodeNVFP4 is whole blocks, the last of a row perhaps shorter.
func encodeNVFP4(values, scales []byte, x []float32, g headScale, noise []uint16) {
	clear(values)
	for b := 0; len(x) > 0; b++ {
		n := min(NVFP4Block, len(x))
		inverse := float32(0)
		scales[b], inverse = g.block(largestOf(x[:n]), noise != nil)
		if noise == nil {
			nearestBlock(values, x[:n], inverse)
		} else {
			stochasticBlock(values, x[:n], inverse, noise)
			noise = noise[n:]
		}
		x, values = x[n:], values[(n+1)/2:]
	}
}

func nearestBlock(values []byte, x []float32, inverse float32) {
	if inverse == 0 {
		return
	}
	for j, v := range x {
		values[j/2] |= nearestE2M1(math.Float32bits(v*inverse)) << (4 * (j & 1))
	}
}

func stochasticBlock(values []byte, x []float32, inverse float32, noise []uint16) {
	if inverse == 0 {
		return
	}
	noise = noise[:len(x)]
	for j, v := range x {
		values[j/2] |= stochasticE2M1(v*inverse, noise[j]) << (4 * (j & 1))
	}
}

func (a StateArray) encodeRow(share []byte, i int, x []float32, g headScale, r *noiseReader) {
	values, scales := a.row(share, i)
	for ; len(x) > 0; x = x[min(chunk, len(x)):] {
		part := x[:min(chunk, len(x))]
		noise, size := r.take(len(part)), (len(part)*a.Format.Bits()+7)/8
		switch a.Format {
		case StateF32:
			encodeF32(values[:size], part)
		case StateF16:
			encodeF16(values[:size], part, noise)
		case StateBF16:
			encodeBF16(values[:size], part, noise)
		case StateF8:
			encodeF8(values[:size], scales, part, noise)
			scales = scales[4:]
		case StateNVFP4:
			encodeNVFP4(values[:size], scales, part, g, noise)
			scales = scales[min(chunk/NVFP4Block, len(scales)):]
		}
		values = values[size:]
	}
}

func encodeF32(values []byte, x []float32) {
	for j, v := range x {
		binary.LittleEndian.PutUint32(values[4*j:], math.Float32bits(v))
	}
}

// The encoders below round to nearest without noise.

func encodeF16(values []byte, x []float32, noise []uint16) {
	if noise == nil {
		for j, v := range x {
			binary.LittleEndian.PutUint16(values[2*j:], nearestHalf(v))
		}
		return
	}
	for j, n := range noise {
		binary.LittleEndian.PutUint16(values[2*j:], stochasticHalf(x[j], n))
	}
}

func encodeBF16(values []byte, x []float32, noise []uint16) {
	if noise == nil {
		for j, v := range x {
			binary.LittleEndian.PutUint16(values[2*j:], F32ToBF16(v))
		}
		return
	}
	for j, n := range noise {
		binary.LittleEndian.PutUint16(values[2*j:], stochasticBF16(x[j], n))
	}
}

// encodeF8 is one block.
func encodeF8(values, scales []byte, x []float32, noise []uint16) {
	scale, inverse := f8Scale(largestOf(x))
	binary.LittleEndian.PutUint32(scales, math.Float32bits(scale))
	switch {
	case inverse == 0:
		clear(values)
	case noise == nil:
		for j, v := range x {
			values[j] = F32ToF8E4M3(v * inverse)
		}
	default:
		for j, n := range noise {
			values[j] = stochasticE4M3(x[j]*inverse, n)
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
