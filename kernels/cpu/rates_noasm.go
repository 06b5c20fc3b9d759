//go:build !amd64 || purego

package cpu

// fmaLoopFlops is the arithmetic of one round of fmaLoop.
func fmaLoopFlops() int { return 12 * 8 * 2 }

// sum adds the elements of x.
func sum(x []float32) float32 { return sumGo(x) }

// fmaLoop does n rounds of independent multiply-adds; its result means nothing.
func fmaLoop(n int) float32 { return fmaLoopGo(n) }
