package cpu

import (
	"testing"

	"reprise/kernels"
	"reprise/kernels/kerneltest"
)

func TestConformance(t *testing.T) {
	kerneltest.Run(t, func(t testing.TB) kernels.Device {
		d, err := Open(Options{})
		if err != nil {
			t.Fatal(err)
		}
		return d
	})
}
