package cuda

import "reprise/kernels"

// Options of Open.
type Options struct {
	// Activations is BF16 (also when Invalid) or F32, the mode in which equality tests run.
	Activations kernels.DType
	// WalkScans has prefill scans go token by token, to compare with the chunked kernels.
	WalkScans bool
	// OwnProducts leaves cuBLASLt out: under compute-sanitizer opening it takes longer than all tests.
	OwnProducts bool
	// Ordinal is the number of the GPU.
	Ordinal int
}
