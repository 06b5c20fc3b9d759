package spec

import (
	"fmt"
	"math"
	"math/rand/v2"
)

// Synthetic lets a seeded coin accept drafts in place of the model, to measure steps on made-up weights: whatever it is
// used for must say so.
type Synthetic struct {
	Chance []float64 // that the draft at a position is accepted if those before it were; behind the list 0
	Seed   uint64
}

// Check requires probabilities.
func (s *Synthetic) Check() error {
	for i, p := range s.Chance {
		if !(p >= 0 && p <= 1) {
			return fmt.Errorf("synthetic acceptance %g at position %d is outside of [0, 1]", p, i)
		}
	}
	return nil
}

// Coin is whether the draft at a position of a row of a step would be accepted. Equal arguments give equal answers.
func (s *Synthetic) Coin(step, row, position int) bool {
	if position >= len(s.Chance) {
		return false
	}
	r := rand.NewPCG(s.Seed, uint64(step)<<24^uint64(row)<<4^uint64(position))
	return float64(r.Uint64()>>11)/(1<<53) < s.Chance[position]
}

// Tokens is the mean tokens a step of a row that verifies depth drafts.
func (s *Synthetic) Tokens(depth int) float64 {
	sum, p := 1.0, 1.0
	for i := range min(depth, len(s.Chance)) {
		p *= s.Chance[i]
		sum += p
	}
	return sum
}

// Even is the one probability for every position that gives a mean of tokens a step at a depth.
func Even(tokens float64, depth int) ([]float64, error) {
	if !(tokens >= 1 && tokens <= float64(1+depth)) {
		return nil, fmt.Errorf("%g tokens a step with %d drafts: must be from 1 to %d", tokens, depth, 1+depth)
	}
	chance := make([]float64, depth)
	set := func(p float64) float64 {
		for i := range chance {
			chance[i] = p
		}
		return (&Synthetic{Chance: chance}).Tokens(depth)
	}
	low, high := 0.0, 1.0
	for high-low > 1e-12 {
		if mid := (low + high) / 2; set(mid) < tokens {
			low = mid
		} else {
			high = mid
		}
	}
	set(math.Min(high, 1))
	return chance, nil
}
