package cpu

// sumGo adds the elements of x in 8 lanes.
func sumGo(x []float32) float32 {
	var s [8]float32
	for ; len(x) >= 8; x = x[8:] {
		for i := range s {
			s[i] += x[i]
		}
	}
	return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]))
}

// fmaLoopGo does the arithmetic of the assembly, 96 multiply-adds a round.
func fmaLoopGo(n int) float32 {
	var a [12]float32
	const x, y = 0.5, 1.5
	for range n * 8 {
		for i := range a {
			a[i] = a[i]*x + y
		}
	}
	return a[0] + a[11]
}
