package spec

import (
	"math"
	"testing"
)

// The coin keeps its promise: tokens a step over many rows are the mean that Tokens gives, within four standard errors.
func TestSyntheticCoin(t *testing.T) {
	const steps, rows, depth = 4000, 3, 3
	for _, tokens := range []float64{1, 1.7, 3, 4} {
		chance, err := Even(tokens, depth)
		if err != nil {
			t.Fatal(err)
		}
		s := &Synthetic{Chance: chance, Seed: 5}
		if got := s.Tokens(depth); math.Abs(got-tokens) > 1e-9 {
			t.Errorf("%g tokens a step give chances %v, which give %g", tokens, chance, got)
		}
		sum := 0
		for step := range steps {
			for row := range rows {
				a := 0
				for a < depth && s.Coin(step, row, a) {
					a++
				}
				sum += 1 + a
			}
		}
		const largestDeviation = 1.5 // of 1..4 tokens
		if got := float64(sum) / (steps * rows); math.Abs(got-tokens) > 4*largestDeviation/math.Sqrt(steps*rows) {
			t.Errorf("%g tokens a step: the coin gave %g", tokens, got)
		}
	}
	for _, bad := range []float64{0.9, 4.1, math.NaN()} {
		if _, err := Even(bad, depth); err == nil {
			t.Errorf("%g tokens a step were possible", bad)
		}
	}
	if (&Synthetic{Chance: []float64{0.5, 1.5}}).Check() == nil {
		t.Error("a probability above 1 passed")
	}
}
