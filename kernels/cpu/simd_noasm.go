//go:build !amd64 || purego

package cpu

func bestLevel() level { return generic }

// dot is the inner product of a and b; the order of summation depends on len(a) only. b is at least as long as a.
func dot(a, b []float32) float32 { return dotGo(a, b) }

// axpy adds a*x to y; y is at least as long as x.
func axpy(a float32, x, y []float32) { axpyGo(a, x, y) }

// scale multiplies x by a.
func scale(a float32, x []float32) { scaleGo(a, x) }

// exp writes e^x to dst, which is at least as long and may be x. What an element gives does not depend on its place.
func exp(dst, x []float32) { expGo(dst, x) }

// addRows is addRowsGo.
func addRows(sum []float32, row []uintptr, factor []float32) { addRowsGo(sum, row, factor) }

// addRows3 is addRows for three sums over the same rows.
func addRows3(sum [3][]float32, row []uintptr, factor [3][]float32) {
	for i := range sum {
		addRowsGo(sum[i], row, factor[i])
	}
}
