package cpu

// simdName tells which arithmetic is used.
const simdName = "generic"

// dot is the inner product of a and b, which are equally long. 32 lanes take turns (element i goes to lane i%32) and
// are summed pairwise, so that the result depends on the length only.
func dot(a, b []float32) float32 {
	var lanes [32]float32
	b = b[:len(a)]
	for i := range a {
		lanes[i%32] += a[i] * b[i]
	}
	for width := 16; width > 0; width /= 2 {
		for i := range width {
			lanes[i] += lanes[i+width]
		}
	}
	return lanes[0]
}

// axpy adds a*x to y; y is at least as long as x.
func axpy(a float32, x, y []float32) {
	y = y[:len(x)]
	for i, v := range x {
		y[i] += a * v
	}
}

// scale multiplies x by a.
func scale(a float32, x []float32) {
	for i := range x {
		x[i] *= a
	}
}
