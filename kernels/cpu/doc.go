// Package cpu is the CPU device: pure Go, with Go assembly where the processor has AVX2 and FMA.
//
// Here live: the device (memory outside the Go heap, the stream goroutine, tickets and faults), the pool of workers
// and the operations of kernels.Ops, whose arithmetic is float32. Weights are multiplied as the checkpoint stores
// them and are not copied. A result depends neither on the number of workers nor on the other rows of a batch.
//
// Not here: what the operations mean (package kernels), their float64 oracles (kernels/ref), the suite that compares
// the two (kernels/kerneltest), and who owns the memory.
//
// Each assembly routine stands next to a Go function of the same arithmetic; the build tag purego leaves the
// assembly out.
package cpu
