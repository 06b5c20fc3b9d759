package kerneltest

import (
	"fmt"
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

// TestParts: parts are the whole table, each case once.
func TestParts(t *testing.T) {
	all := families(true)[1].cases
	seen := map[string]int{}
	for i := range 7 {
		p, err := ParsePart(fmt.Sprintf("%d/7", i))
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range p.of(all) {
			seen[c.name]++
		}
	}
	for _, c := range all {
		if seen[c.name] != 1 {
			t.Errorf("%s: %d times", c.name, seen[c.name])
		}
	}
	for _, text := range []string{"", "1", "7/7", "-1/7", "x/7", "0/0"} {
		if _, err := ParsePart(text); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}
