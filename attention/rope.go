package attention

import "math"

// Rope is rotary position encoding of the first Rotary dims of a head.
type Rope struct {
	Rotary int
	Theta  float64
	Yarn   *Yarn // nil: ordinary
}

// Yarn stretches the positions a model was trained for (arXiv 2309.00071): slow frequencies are divided by Factor, fast
// ones stay, with a linear ramp between BetaFast and BetaSlow rotations over the original context.
type Yarn struct {
	Factor             float64
	OriginalMaxLen     int
	BetaFast, BetaSlow float64
	AttentionFactor    float64 // of rotated q and of rotated k; 0 = 1 + 0.1 ln(Factor)
	Exact              bool    // do not round the ends of the ramp to whole dims
}

// InvFreq is the angle per position of each of the Rotary/2 pairs.
func (r Rope) InvFreq() []float32 {
	out := make([]float32, r.Rotary/2)
	low, high := r.ramp()
	for i := range out {
		f := math.Pow(r.Theta, -2*float64(i)/float64(r.Rotary))
		if r.Yarn != nil {
			slow := min(max((float64(i)-low)/(high-low), 0), 1)
			f = f/r.Yarn.Factor*slow + f*(1-slow)
		}
		out[i] = float32(f)
	}
	return out
}

// ramp is the pairs between which frequencies go from kept to divided.
func (r Rope) ramp() (low, high float64) {
	y := r.Yarn
	if y == nil {
		return 0, 1
	}
	low, high = r.pair(y.BetaFast), r.pair(y.BetaSlow)
	if !y.Exact {
		low, high = math.Floor(low), math.Ceil(high)
	}
	low, high = max(low, 0), min(high, float64(r.Rotary-1))
	if low == high {
		high += 0.001
	}
	return low, high
}

// pair is the (fractional) pair that makes the given number of rotations over the original context.
func (r Rope) pair(rotations float64) float64 {
	n := float64(r.Yarn.OriginalMaxLen) / (rotations * 2 * math.Pi)
	return float64(r.Rotary) * math.Log(n) / (2 * math.Log(r.Theta))
}

// scale is the factor of rotated dims of q and k.
func (r Rope) scale() float64 {
	switch {
	case r.Yarn == nil:
		return 1
	case r.Yarn.AttentionFactor > 0:
		return r.Yarn.AttentionFactor
	case r.Yarn.Factor <= 1:
		return 1
	}
	return 0.1*math.Log(r.Yarn.Factor) + 1
}
