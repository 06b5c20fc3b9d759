package cpu

import "math"

// Vector routines. The functions named ...Go are the reference of the assembly and what other processors run; they
// differ from the assembly only in that products are rounded before they are added.

// dotGo sums in 32 lanes (element i in lane i%32) as far as blocks of 32 go, then blocks of 8 in the first 8 lanes,
// then what is left one by one. The lanes are added pairwise.
func dotGo(a, b []float32) float32 {
	var lanes [32]float32
	b = b[:len(a)]
	i := 0
	for ; i+32 <= len(a); i += 32 {
		for j := range lanes {
			lanes[j] += a[i+j] * b[i+j]
		}
	}
	for ; i+8 <= len(a); i += 8 {
		for j := range 8 {
			lanes[j] += a[i+j] * b[i+j]
		}
	}
	var rest float32
	for ; i < len(a); i++ {
		rest += a[i] * b[i]
	}
	for j := range 8 {
		lanes[j] = lanes[j] + lanes[j+8] + (lanes[j+16] + lanes[j+24])
	}
	return sumEight((*[8]float32)(lanes[:8])) + rest
}

// sumEight adds halves, then neighbours.
func sumEight(l *[8]float32) float32 {
	return (l[0] + l[4] + (l[1] + l[5])) + (l[2] + l[6] + (l[3] + l[7]))
}

func axpyGo(a float32, x, y []float32) {
	y = y[:len(x)]
	for i, v := range x {
		y[i] += a * v
	}
}

func scaleGo(a float32, x []float32) {
	for i := range x {
		x[i] *= a
	}
}

// Constants of expGo: 1/ln 2, ln 2 in two parts, and q of e^r = 1 + r + r^2 q(r) on [-ln2/2, ln2/2] interpolated at the
// Chebyshev nodes; relative error 1e-8.
const (
	invLn2 = 1.44269504
	ln2Hi  = 0.693115234375
	ln2Lo  = 3.194618494528623e-05
	expQ1  = 0.1666657702559799
	expQ2  = 0.041666554662050534
	expQ3  = 0.008363173074513711
	expQ4  = 0.001392617611993558

	expLowest  = -104 // e^x is 0 below
	expHighest = 89   // and infinite above
)

// expGo writes e^x; within 2 units in the last place, subnormal results included.
func expGo(dst, x []float32) {
	dst = dst[:len(x)]
	for i, v := range x {
		dst[i] = exp1Go(v)
	}
}

func exp1Go(x float32) float32 {
	if x != x {
		return x
	}
	x = min(max(x, expLowest), expHighest)
	n := float32(math.RoundToEven(float64(x * invLn2)))
	r := x - n*ln2Hi
	r -= n * ln2Lo
	q := ((expQ4*r+expQ3)*r+expQ2)*r + expQ1
	q = q*r + 0.5
	p := 1 + (r + r*r*q)
	half := int32(n) >> 1
	return p * power2(half) * power2(int32(n)-half)
}

// power2 is 2^n for a normal result.
func power2(n int32) float32 { return math.Float32frombits(uint32(n+127) << 23) }
