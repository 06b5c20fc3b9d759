package ref

import "math"

// real is the precision that an op computes in.
type real interface{ float32 | float64 }

func exp[F real](x F) F { return F(math.Exp(float64(x))) }

func rsqrt[F real](x F) F { return 1 / F(math.Sqrt(float64(x))) }

func sigmoid[F real](x F) F {
	if x < 0 {
		e := exp(x)
		return e / (1 + e)
	}
	return 1 / (1 + exp(-x))
}

func silu[F real](x F) F { return x * sigmoid(x) }

// softplus is log(1 + e^x), the input itself above 20.
func softplus[F real](x F) F {
	if x > 20 {
		return x
	}
	return F(math.Log1p(math.Exp(float64(x))))
}

func dot[F real](x, y []F) F {
	var s F
	for i := range x {
		s += x[i] * y[i]
	}
	return s
}

// normalise is x / rms(x) * w.
func normalise[F real](x, w []F, eps F) []F {
	scale := rsqrt(dot(x, x)/F(len(x)) + eps)
	y := make([]F, len(x))
	for i := range x {
		y[i] = x[i] * scale * w[i]
	}
	return y
}
