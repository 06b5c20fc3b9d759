package kernels

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

var stateFormatList = []StateFormat{StateF32, StateF16, StateBF16, StateF8, StateNVFP4}

func TestPrecision(t *testing.T) {
	for _, c := range []struct {
		p    Precision
		two  bool
		read StateFormat
		text string
		err  string
	}{
		{Precision{}, false, StateF32, "float32", ""},
		{Precision{Rounding: Stochastic}, false, StateF32, "float32", ""},
		{Precision{HP: StateF16}, false, StateF16, "float16", ""},
		{Precision{StateF8, StateF8, Stochastic}, false, StateF8, "fp8+sr", ""},
		{Precision{StateF16, StateNVFP4, Stochastic}, true, StateNVFP4, "float16+sr/nvfp4", ""},
		{Precision{StateF32, StateBF16, Nearest}, true, StateBF16, "float32/bfloat16", ""},
		{Precision{StateF16, StateBF16, Nearest}, true, StateBF16, "float16/bfloat16", "must be smaller"},
		{Precision{StateNVFP4, StateF8, Nearest}, true, StateF8, "nvfp4/fp8", "must be smaller"},
		{Precision{HP: 77}, false, 77, "state format(77)", "precision 77"},
	} {
		if c.p.Two() != c.two || c.p.Read() != c.read || c.p.String() != c.text {
			t.Errorf("%+v: two %v, reads %v, %q", c.p, c.p.Two(), c.p.Read(), c.p)
		}
		if err := c.p.Validate(); (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%v: error %v, want %q", c.p, err, c.err)
		}
	}
	for _, f := range stateFormatList {
		if g, err := ParseStateFormat(f.String()); g != f || err != nil {
			t.Errorf("%v is parsed as %v, %v", f, g, err)
		}
	}
	if _, err := ParseStateFormat("int8"); err == nil {
		t.Error("int8 is no error")
	}
}

// Sizes of released layers, from the definition of the formats.
func TestCheckpointBytes(t *testing.T) {
	super := Mamba2Dims{Heads: 128, HeadDim: 64, State: 128, Groups: 8, Taps: 4}
	elements := int64(128 * 64 * 128)
	for f, want := range map[StateFormat]int64{
		StateF32: 4 * elements, StateF16: 2 * elements, StateBF16: 2 * elements,
		StateF8: elements + 4*elements/128, StateNVFP4: elements/2 + elements/16 + 4*128,
	} {
		l := Mamba2Checkpoint(super, Precision{HP: f})
		if l.HP != l.LP || l.Bytes() != want || l.HP.HeadBytes()*128 != want {
			t.Errorf("%v: %d bytes, %d a head, want %d", f, l.Bytes(), l.HP.HeadBytes(), want)
		}
		if l.ScratchBytes() != 4*elements {
			t.Errorf("%v: %d bytes of scratch", f, l.ScratchBytes())
		}
	}
}

// Parts of a layout neither overlap nor leave the share, whatever the shape; every part starts at a multiple of 256.
func TestCheckpointLayout(t *testing.T) {
	for _, d := range []DeltaDims{{1, 1, 1, 1, 4}, {1, 3, 5, 7, 3}, {2, 4, 8, 16, 4}, {1, 2, 129, 3, 4}, {2, 4, 128, 128, 4}} {
		for _, hp := range stateFormatList {
			for _, lp := range stateFormatList {
				p := Precision{HP: hp, LP: lp}
				if p.Validate() != nil {
					continue
				}
				l := DeltaCheckpoint(d, p)
				if l.HP.Heads != d.ValueHeads || l.HP.Rows != d.ValueDim || l.HP.Cols != d.KeyDim {
					t.Fatalf("%v: %+v", d, l.HP)
				}
				end := int64(0)
				arrays := []StateArray{l.HP, l.LP}
				for _, a := range arrays[:1+btoi(p.Two())] {
					lines := int64(a.Heads) * int64(a.Rows)
					end = part(t, a.Values, end, lines*int64(a.RowBytes()))
					if a.RowScales() > 0 {
						end = part(t, a.Scales, end, lines*int64(a.RowScales()*a.ScaleBytes()))
					}
					if a.Format == StateNVFP4 {
						end = part(t, a.HeadScales, end, 4*int64(a.Heads))
					}
					if end != a.End {
						t.Errorf("%v %v: ends at %d, not %d", d, p, a.End, end)
					}
				}
				if l.Bytes() < end || l.Bytes()%256 != 0 {
					t.Errorf("%v %v: %d bytes", d, p, l.Bytes())
				}
			}
		}
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// part requires that a part of size bytes starts behind end, and returns its own.
func part(t *testing.T, at, end, size int64) int64 {
	t.Helper()
	if at < end || at%256 != 0 {
		t.Errorf("a part at %d behind one that ends at %d", at, end)
	}
	return at + size
}

// GDN keeps v and beta exactly where there are two precisions, behind what it keeps anyway.
func TestDeltaRingOfTwoPrecisions(t *testing.T) {
	d, w := DeltaDims{2, 4, 8, 16, 4}, Window{8, 3}
	one := DeltaRing(d, w, BF16, Precision{HP: StateF16, LP: StateF16})
	two := DeltaRing(d, w, BF16, Precision{HP: StateF16, LP: StateF8})
	if one.V.Rows != 0 || one.Beta.Rows != 0 || one != DeltaRing(d, w, BF16, Precision{}) {
		t.Errorf("one precision: %+v", one)
	}
	if two.V != (Field{one.Bytes, 11, 64, BF16}) || two.Beta != (Field{one.Bytes + align(11*64*2), 11, 4, F32}) || two.X != one.X || two.Conv != one.Conv {
		t.Errorf("two precisions: %+v", two)
	}
}

// minifloat is a small floating-point format with subnormal numbers.
type minifloat struct {
	mantissa, minExponent int // bits; exponent of the smallest normal number
	sign                  int // bit of the sign
	largest               uint32
	max                   float32
}

// The small formats: what the fast roundings are compared with.
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

// chance rounds up with a probability that is the fraction, to 16 bits: iff (noise + 1/2) / 65536 >= 1 - fraction.
func chance(noise uint16) func(fraction float32, odd bool) uint32 {
	return func(fraction float32, _ bool) uint32 {
		if (float32(noise)+0.5)*(1.0/65536) >= 1-fraction {
			return 1
		}
		return 0
	}
}

// Rounding to nearest is that of the conversions which are tested exhaustively; float16 saturates.
func TestMinifloatNearest(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 300_000 {
		x := math.Float32frombits(r.Uint32())
		if x != x {
			continue
		}
		h := F32ToF16(x)
		if h&0x7fff == 0x7c00 {
			h--
		}
		if got := uint16(half.code(x, toEven)); got != h {
			t.Fatalf("%v: half %#x, want %#x", x, got, h)
		}
		if got := uint8(e4m3.code(x, toEven)); got != F32ToF8E4M3(x) {
			t.Fatalf("%v: e4m3 %#x, want %#x", x, got, F32ToF8E4M3(x))
		}
	}
	for i := -7000; i <= 7000; i++ {
		x := float32(i) / 1000
		if got := E2M1ToF32(F32ToE2M1(x)); math.Abs(float64(got-x)) > e2m1Distance(x)+1e-7 {
			t.Fatalf("%v becomes %v", x, got)
		}
	}
	for x, want := range map[float32]float32{0.25: 0, 0.75: 1, 1.25: 1, 1.75: 2, 2.5: 2, 3.5: 4, 5: 4, -5: -4, 1e30: 6, -1e30: -6} {
		if got := E2M1ToF32(F32ToE2M1(x)); got != want {
			t.Errorf("%v becomes %v, ties to even %v", x, got, want)
		}
	}
}

func e2m1Distance(x float32) float64 {
	best := math.Inf(1)
	for _, v := range e2m1Values {
		best = min(best, math.Abs(float64(v-x)))
	}
	return best
}

// The roundings that work on bits are those of the definition, for numbers of every size.
func TestMinifloatStochastic(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	for i := range 2_000_000 {
		x, n := math.Float32frombits(r.Uint32()), uint16(r.Uint32())
		if i%2 == 0 { // near the formats' ranges
			x = float32(r.NormFloat64() * math.Exp2(float64(r.IntN(40)-30)))
		}
		if x != x {
			continue
		}
		if got, want := stochasticHalf(x, n), uint16(half.code(x, chance(n))); got != want {
			t.Fatalf("half of %v, noise %d: %#x, want %#x", x, n, got, want)
		}
		if got, want := stochasticE4M3(x, n), uint8(e4m3.code(x, chance(n))); got != want {
			t.Fatalf("e4m3 of %v, noise %d: %#x, want %#x", x, n, got, want)
		}
		if got, want := stochasticE2M1(x, n), uint8(e2m1.code(x, chance(n))); got != want {
			t.Fatalf("e2m1 of %v, noise %d: %#x, want %#x", x, n, got, want)
		}
		if got, want := F32ToE2M1(x), uint8(e2m1.code(x, toEven)); got != want {
			t.Fatalf("e2m1 of %v: %#x, want %#x", x, got, want)
		}
		a := float32(math.Abs(float64(x)))
		if got, want := upE4M3(a), uint8(e4m3.code(a, ceiling)); got != want {
			t.Fatalf("e4m3 above %v: %#x, want %#x", a, got, want)
		}
	}
}

// Over all noises a number becomes one of its two neighbours, the upper one as often as its place between them says, to
// one in 65,536: the expectation is the number.
func TestStochasticRoundingIsUnbiased(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	cases := []struct {
		name  string
		scale float64
		round func(x float32, noise uint16) float32
	}{
		{"float16", 1, func(x float32, n uint16) float32 { return F16ToF32(stochasticHalf(x, n)) }},
		{"float16 subnormal", 3e-5, func(x float32, n uint16) float32 { return F16ToF32(stochasticHalf(x, n)) }},
		{"bfloat16", 1, func(x float32, n uint16) float32 { return BF16ToF32(stochasticBF16(x, n)) }},
		{"e4m3", 20, func(x float32, n uint16) float32 { return F8E4M3ToF32(stochasticE4M3(x, n)) }},
		{"e4m3 subnormal", 0.01, func(x float32, n uint16) float32 { return F8E4M3ToF32(stochasticE4M3(x, n)) }},
		{"e2m1", 2, func(x float32, n uint16) float32 { return E2M1ToF32(stochasticE2M1(x, n)) }},
	}
	for _, c := range cases {
		for range 20 {
			x := float32(max(-5.9, min(5.9, r.NormFloat64())) * c.scale)
			low, high, sum := c.round(x, 0), c.round(x, 65535), 0.0
			for n := range 1 << 16 {
				v := c.round(x, uint16(n))
				if v != low && v != high {
					t.Fatalf("%s: %v becomes %v, neither %v nor %v", c.name, x, v, low, high)
				}
				sum += float64(v)
			}
			gap := math.Abs(float64(high - low))
			if err := math.Abs(sum/65536 - float64(x)); err > gap/65536+math.Abs(float64(x))*1e-7 {
				t.Errorf("%s: the mean of %v is off by %v of a gap of %v", c.name, x, err, gap)
			}
		}
		for _, exact := range []float32{0, 1, -2, 6} {
			if c.round(exact, 65535) != exact || c.round(exact, 0) != exact {
				t.Errorf("%s: %v does not stay", c.name, exact)
			}
		}
	}
}

// encoded is a head's state through a format and back.
func encoded(a StateArray, state []float32, n StateNoise) []float32 {
	share := make([]byte, a.End)
	out := make([]float32, len(state))
	size := a.Rows * a.Cols
	for h := range a.Heads {
		a.EncodeHead(share, h, state[h*size:(h+1)*size], n)
	}
	for h := range a.Heads {
		a.DecodeRows(out[h*size:(h+1)*size], share, h, 0)
	}
	return out
}

func randomState(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64() * math.Exp2(float64(r.IntN(8)-4)))
	}
	return x
}

// The error of an element is at most half a unit of its block's format, or a whole unit if stochastic; float32 has none.
func TestEncodeError(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for _, dims := range [][3]int{{2, 3, 128}, {3, 7, 5}, {1, 4, 200}, {2, 64, 128}, {1, 1, 1}} {
		for _, f := range stateFormatList {
			a := stateArray(f, dims[0], dims[1], dims[2], 256)
			x := randomState(r, dims[0]*dims[1]*dims[2])
			for _, n := range []StateNoise{{}, {true, 3, 99}} {
				for i, v := range encoded(a, x, n) {
					limit := unit(a, x, i)
					if !n.Stochastic {
						limit /= 2
					}
					if math.Abs(float64(v-x[i])) > limit*(1+1e-5) {
						t.Fatalf("%v %v %+v: element %d is %v, was %v; allowed %v", f, dims, n, i, v, x[i], limit)
					}
				}
			}
		}
	}
}

// unit is a generous distance between neighbours around element i, given its block's largest.
func unit(a StateArray, x []float32, i int) float64 {
	v := math.Abs(float64(x[i]))
	switch a.Format {
	case StateF16:
		return max(v*math.Ldexp(1, -10), math.Ldexp(1, -24))
	case StateBF16:
		return v * math.Ldexp(1, -7)
	case StateF8:
		return max(v/8, blockLargest(a, x, i, F8Block)/448/512)
	case StateNVFP4: // between 4 and 6 neighbours lie 2 apart; the scale may be 1/16 off, and a small block's 2^-9 of the largest
		size := a.Rows * a.Cols
		head := float64(largestOf(x[i/size*size : (i/size+1)*size]))
		return (blockLargest(a, x, i, NVFP4Block)*(1+1.0/8) + head/448/256) / 3
	}
	return 0
}

func blockLargest(a StateArray, x []float32, i, block int) float64 {
	row, col := i/a.Cols*a.Cols, i%a.Cols
	from := row + col/block*block
	return float64(largestOf(x[from:min(row+a.Cols, from+block)]))
}

// The mean over many positions of a stochastically rounded state is the state, to what chance allows: the standard
// deviation of the mean is at most half a unit by the root of the number of positions; six of them are allowed, and in
// the mean over all elements the same.
func TestStochasticStateIsUnbiased(t *testing.T) {
	const positions = 3000
	r := rand.New(rand.NewPCG(7, 8))
	for _, f := range stateFormatList[1:] {
		a := stateArray(f, 2, 4, 40, 0)
		x := randomState(r, 2*4*40)
		sum := make([]float64, len(x))
		for p := range positions {
			for i, v := range encoded(a, x, StateNoise{true, 5, uint32(p)}) {
				sum[i] += float64(v - x[i])
			}
		}
		bias, scale := 0.0, 0.0
		for i, s := range sum {
			u := unit(a, x, i)
			if math.Abs(s/positions) > 6*u/2/math.Sqrt(positions)+u*1e-4 {
				t.Errorf("%v: element %d (%v) is off by %v in the mean, a unit is %v", f, i, x[i], s/positions, u)
			}
			bias, scale = bias+s/positions/u, scale+1
		}
		if limit := 6 * 0.5 / math.Sqrt(positions*scale); math.Abs(bias/scale) > limit {
			t.Errorf("%v: the mean error is %v units, chance allows %v", f, bias/scale, limit)
		}
	}
}

// What an element is rounded to depends on its layer, its place and the position alone: not on the head's turn, and not
// on the block, which the codec is not told.
func TestStateNoise(t *testing.T) {
	n := StateNoise{true, 2, 1000}
	if n.Eight(5) == n.Eight(6) || n.Eight(5) == (StateNoise{true, 3, 1000}).Eight(5) || n.Eight(5) == (StateNoise{true, 2, 1001}).Eight(5) {
		t.Error("equal numbers for another element, layer or position")
	}
	whole := noiseReader{StateNoise: n}
	list := slices.Clone(whole.take(40))
	for from := range 40 {
		for r, i := (noiseReader{StateNoise: n, next: from}), from; i < 40; {
			for _, v := range r.take(min(1+i%7, 40-i)) {
				if v != list[i] {
					t.Fatalf("element %d, read from %d on: %#x, want %#x", i, from, v, list[i])
				}
				i++
			}
		}
	}
	if list[8] != n.Eight(1)[0] || list[39] != n.Eight(4)[7] {
		t.Error("numbers are not those of Eight")
	}
	if (Precision{HP: StateF16}).Noise(1, 2).Stochastic || !(Precision{HP: StateF16, Rounding: Stochastic}).Noise(1, 2).Stochastic {
		t.Error("noise does not follow the precision")
	}
}

// Broken states stay broken, zero and tiny ones become zero, huge ones saturate or have a scale.
func TestEncodeHostile(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, f := range stateFormatList {
		for _, n := range []StateNoise{{}, {true, 1, 1}} {
			a := stateArray(f, 1, 2, 32, 0)
			state := func(v float32) []float32 {
				x := make([]float32, 64)
				x[3] = v
				return x
			}
			if y := encoded(a, state(nan), n); y[3] == y[3] {
				t.Errorf("%v: NaN becomes %v", f, y[3])
			}
			if y := encoded(a, state(inf), n); y[3] < 65504 {
				t.Errorf("%v: infinity becomes %v", f, y[3])
			}
			for _, v := range []float32{0, 1e-38, math.SmallestNonzeroFloat32, float32(math.Copysign(0, -1))} {
				for i, w := range encoded(a, state(v), n) {
					if math.Abs(float64(w)) > math.Abs(float64(v)) && f != StateF16 && f != StateBF16 || w != w {
						t.Errorf("%v: %v leaves %v at %d", f, v, w, i)
					}
				}
			}
			for _, v := range []float32{-65504, 40000} {
				if y := encoded(a, state(v), n); math.Abs(float64(y[3]-v)) > 0.01*math.Abs(float64(v)) {
					t.Errorf("%v: %v becomes %v", f, v, y[3])
				}
			}
			if y := encoded(a, state(-3e38), n); !(y[3] <= -65504) || math.IsInf(float64(y[3]), 0) {
				t.Errorf("%v: -3e38 becomes %v", f, y[3])
			}
			zero := make([]float32, 64)
			a.DecodeRows(zero, make([]byte, a.End), 0, 0)
			if largestOf(zero) != 0 {
				t.Errorf("%v: a block of zero bytes holds %v", f, zero)
			}
		}
	}
}

// Rows are decoded alone as together.
func TestDecodeRows(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 9))
	for _, f := range stateFormatList {
		a := stateArray(f, 3, 5, 130, 512)
		x := randomState(r, 3*5*130)
		share := make([]byte, a.End)
		for h := range 3 {
			a.EncodeHead(share, h, x[h*650:(h+1)*650], StateNoise{})
		}
		all, some := make([]float32, 650), make([]float32, 260)
		a.DecodeRows(all, share, 1, 0)
		a.DecodeRows(some, share, 1, 2)
		for i, v := range some {
			if v != all[260+i] {
				t.Fatalf("%v: element %d alone is %v, together %v", f, i, v, all[260+i])
			}
		}
	}
}

func BenchmarkEncodeHead(b *testing.B) {
	x := randomState(rand.New(rand.NewPCG(1, 1)), 128*128)
	for _, f := range stateFormatList {
		for _, stochastic := range []bool{false, true} {
			a := stateArray(f, 1, 128, 128, 0)
			share := make([]byte, a.End)
			b.Run(Precision{HP: f, Rounding: Rounding(btoi(stochastic))}.String(), func(b *testing.B) {
				for i := range b.N {
					a.EncodeHead(share, 0, x, StateNoise{stochastic, 1, uint32(i)})
				}
				b.ReportMetric(b.Elapsed().Seconds()*1e9/float64(b.N)/float64(len(x)), "ns/element")
			})
		}
	}
}
