//go:build cuda

package cuda

import (
	"testing"

	"reprise/kernels"
	"reprise/kernels/kerneltest"
)

// openFor opens the GPU in one mode; without a GPU the test is skipped.
func openFor(t testing.TB, act kernels.DType) kernels.Device {
	t.Helper()
	d, err := Open(Options{Activations: act})
	if err != nil {
		t.Skipf("no GPU: %v", err)
	}
	return d
}

func TestConformanceBF16(t *testing.T) {
	kerneltest.Run(t, func(t testing.TB) kernels.Device { return openFor(t, kernels.BF16) })
}

func TestConformanceF32(t *testing.T) {
	kerneltest.Run(t, func(t testing.TB) kernels.Device { return openFor(t, kernels.F32) })
}
