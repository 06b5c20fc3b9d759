package kernels

import (
	"math"
	"testing"
)

// nearest returns the code whose value is nearest to f, ties to the even code.
func nearest(f float32, codes int, value func(int) float32) int {
	best, dist := -1, math.Inf(1)
	for c := range codes {
		v := float64(value(c))
		if math.IsNaN(v) || math.IsInf(v, 0) {
			continue
		}
		d := math.Abs(v - float64(f))
		if d < dist || d == dist && c&1 == 0 {
			best, dist = c, d
		}
	}
	return best
}

func TestF8E4M3RoundsToNearestEven(t *testing.T) {
	value := func(c int) float32 { return F8E4M3ToF32(uint8(c)) }
	for i := -1000; i <= 1000; i++ {
		for _, scale := range []float32{1, 1e-2, 1e-4, 0.4481} {
			f := float32(i) * scale
			got, want := F32ToF8E4M3(f), nearest(f, 256, value)
			if value(int(got)) != value(want) {
				t.Fatalf("F32ToF8E4M3(%g) = %#x (%g), want %#x (%g)", f, got, value(int(got)), want, value(want))
			}
		}
	}
	for c := range 256 {
		if v := value(c); v == v && F32ToF8E4M3(v) != uint8(c) {
			t.Errorf("code %#x does not survive a round trip", c)
		}
	}
	if v := F8E4M3ToF32(0x01); v != 1.0/512 {
		t.Errorf("smallest subnormal = %g, want 2^-9", v)
	}
}

func TestF16AndBF16RoundTrip(t *testing.T) {
	for c := range 1 << 16 {
		h := uint16(c)
		if v := F16ToF32(h); v == v && F32ToF16(v) != h {
			t.Fatalf("half %#x -> %g -> %#x", h, v, F32ToF16(v))
		}
		if v := BF16ToF32(h); v == v && F32ToBF16(v) != h {
			t.Fatalf("bfloat16 %#x -> %g -> %#x", h, v, F32ToBF16(v))
		}
	}
	nan := float32(math.NaN())
	if v := F16ToF32(F32ToF16(nan)); v == v {
		t.Error("NaN lost by half")
	}
	if v := BF16ToF32(F32ToBF16(nan)); v == v {
		t.Error("NaN lost by bfloat16")
	}
	if v := F8E4M3ToF32(F32ToF8E4M3(nan)); v == v {
		t.Error("NaN lost by e4m3")
	}
}

func TestF16RoundsToNearestEven(t *testing.T) {
	for c := range 0x7c00 - 1 { // halfway points between neighbours, and a hair to each side
		lo, hi := float64(F16ToF32(uint16(c))), float64(F16ToF32(uint16(c+1)))
		mid := float32((lo + hi) / 2)
		even := uint16(c + c&1)
		if got := F32ToF16(mid); got != even {
			t.Fatalf("halfway %g: %#x, want %#x", mid, got, even)
		}
		if got := F32ToF16(math.Nextafter32(mid, 0)); got != uint16(c) {
			t.Fatalf("below halfway %g: %#x, want %#x", mid, got, c)
		}
		if got := F32ToF16(math.Nextafter32(mid, 1e9)); got != uint16(c+1) {
			t.Fatalf("above halfway %g: %#x, want %#x", mid, got, c+1)
		}
	}
}
