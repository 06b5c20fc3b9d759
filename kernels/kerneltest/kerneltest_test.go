package kerneltest

import (
	"testing"

	"reprise/kernels"
	"reprise/kernels/ref"
)

func TestOracleAgreesWithItself(t *testing.T) {
	Run(t, func(testing.TB) kernels.Device { return ref.New() })
}

// The baseline of the tolerances passes them too.
func TestFloat32Baseline(t *testing.T) {
	if testing.Short() {
		t.Skip("takes as long as the oracle's run")
	}
	runTable(t, families(true), func(testing.TB) kernels.Device { return ref.NewFloat32() })
}

// halved is a device whose activations are bfloat16.
type halved struct{ *ref.Device }

func (halved) Activations() kernels.DType { return kernels.BF16 }

// The suite is ready for activations of bfloat16: matrices and rings then hold these.
func TestBFloat16Activations(t *testing.T) {
	if testing.Short() {
		t.Skip("takes as long as the oracle's run")
	}
	runTable(t, families(true), func(testing.TB) kernels.Device { return halved{ref.NewFloat32()} })
}
