//go:build cuda

package engine

import (
	"testing"

	"reprise/internal/golden"
	"reprise/kernels"
)

// TestCUDASpeculativeTexts: in bfloat16, speculation sends no more texts another way than another number of neighbours does,
// and those that go another way do so where rounding decides.
func TestCUDASpeculativeTexts(t *testing.T) {
	for _, name := range []string{"demo-nemotron", "demo-qwen35"} {
		t.Run(name, func(t *testing.T) {
			c := textComparison{golden: golden.Open(t, name), open: func() kernels.Device { return gpu(t, kernels.BF16) }, act: kernels.BF16, texts: 64, length: 256}
			alone, drafted := c.run(t)
			for _, a := range drafted {
				if err := c.fault(a, alone); err != nil {
					t.Error(err)
				}
			}
		})
	}
}
