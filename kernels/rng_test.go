package kernels

import "testing"

// Known answers of the Random123 distribution for philox4x32-10.
func TestPhiloxKnownAnswers(t *testing.T) {
	for _, c := range []struct {
		key, lo, hi uint64
		want        [4]uint32
	}{
		{0, 0, 0, [4]uint32{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
		{^uint64(0), ^uint64(0), ^uint64(0), [4]uint32{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
		{0x299f31d0a4093822, 0x85a308d3243f6a88, 0x0370734413198a2e, [4]uint32{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
	} {
		if got := Philox(c.key, c.lo, c.hi); got != c.want {
			t.Errorf("Philox(%#x, %#x %#x) = %#x, want %#x", c.key, c.lo, c.hi, got, c.want)
		}
	}
}
