//go:build cuda

package cuda

import (
	flags "flag"
	"fmt"
	"sync"
	"testing"

	"reprise/kernels"
	"reprise/kernels/kerneltest"
)

// sayNoGPU prints a line, once, so that a run that tests nothing does not look like one that found nothing.
var sayNoGPU = sync.OnceFunc(func() { fmt.Println("no GPU: every test that needs one is skipped") })

// openFor opens the GPU in one mode; without a GPU the test is skipped.
func openFor(t testing.TB, act kernels.DType) kernels.Device {
	t.Helper()
	d, err := Open(Options{Activations: act, OwnProducts: *ownProducts})
	if err != nil {
		skip(t, err)
	}
	return d
}

func skip(t testing.TB, err error) {
	t.Helper()
	sayNoGPU()
	t.Skipf("no GPU: %v", err)
}

var (
	part        = flags.String("part", "", "INDEX/COUNT: only every COUNT-th case of each family of the conformance suite, from case INDEX on, all on one device")
	ownProducts = flags.Bool("own", false, "products without cuBLASLt")
)

func TestConformanceBF16(t *testing.T) { conform(t, kernels.BF16) }

func TestConformanceF32(t *testing.T) { conform(t, kernels.F32) }

func conform(t *testing.T, act kernels.DType) {
	open := func(t testing.TB) kernels.Device { return openFor(t, act) }
	if *part == "" {
		kerneltest.Run(t, open)
		return
	}
	p, err := kerneltest.ParsePart(*part)
	if err != nil {
		t.Fatal(err)
	}
	kerneltest.RunPart(t, p, open)
}

// Few processors take the kernels that many rows take, and little scratch memory several launches.
func TestConformanceManyRows(t *testing.T) {
	kerneltest.RunFamily(t, "ssm", func(t testing.TB) kernels.Device {
		d := openFor(t, kernels.BF16).(*Device)
		scans := &d.ops.ssm.scans
		scans.processors, scans.scratch = 1, scans.scratch.Slice(0, 3<<20)
		return d
	})
}
