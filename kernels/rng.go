package kernels

import "math/bits"

// Uniform is the random number of a position: it depends on the request's seed and the token's index in its sequence
// only, so neighbours, batching, preemption and speculation do not change what is sampled. In [0, 1), 24 bits.
// Philox4x32-10 (Salmon et al., SC 2011, sec. 4) with key = seed and counter = (index, 0, 0, 0).
func Uniform(seed uint64, index int32) float32 {
	return float32(Philox(seed, uint64(uint32(index)), 0)[0]>>8) * (1.0 / (1 << 24))
}

// Philox is the block of four random words for a key and a 128-bit counter.
func Philox(key, lo, hi uint64) [4]uint32 { return philox(key, lo, hi, 10) }

// philox is Philox of the given number of rounds; 7 are the fewest that pass every test of the authors.
func philox(key, lo, hi uint64, rounds int) [4]uint32 {
	k0, k1 := uint32(key), uint32(key>>32)
	c := [4]uint32{uint32(lo), uint32(lo >> 32), uint32(hi), uint32(hi >> 32)}
	for range rounds {
		h0, l0 := bits.Mul32(0xD2511F53, c[0])
		h1, l1 := bits.Mul32(0xCD9E8D57, c[2])
		c = [4]uint32{h1 ^ c[1] ^ k0, l1, h0 ^ c[3] ^ k1, l0}
		k0 += 0x9E3779B9
		k1 += 0xBB67AE85
	}
	return c
}
