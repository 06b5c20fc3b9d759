//go:build cuda

package cuda

import (
	"fmt"
	"testing"

	"reprise/kernels"
	"reprise/kernels/kernelbench"
)

// tableRepeats is how often a captured program runs in one replay, so that starting a graph and waiting for it do not count.
const tableRepeats = 20

// tableDevice captures programs several times over.
type tableDevice struct{ *Device }

func (d tableDevice) Capture(p kernels.Program) (kernels.Graph, error) {
	return d.Device.Capture(kernels.ProgramFunc(func(o kernels.Ops) {
		for range tableRepeats {
			p.Run(o)
		}
	}))
}

// BenchmarkTable times rows of kernelbench: -test.bench 'Table/delta_step' -test.benchtime 1x. It checks nothing.
func BenchmarkTable(b *testing.B) {
	for _, op := range []string{"mamba2 step", "delta step", "mamba2 scan", "delta scan"} {
		b.Run(op, func(b *testing.B) {
			d := tableDevice{openFor(b, kernels.BF16).(*Device)}
			defer d.Close()
			read, flops, err := d.MeasuredRates()
			if err != nil {
				b.Fatal(err)
			}
			fmt.Printf("%s: read %.0f GB/s, %.0f TFLOP/s\n", op, read/1e9, flops/1e12)
			err = kernelbench.Run(d, kernelbench.Rates{Read: read, Flops: flops}, kernelbench.Options{
				Match: func(o, _ string) bool { return o == op },
			}, func(r kernelbench.Row) {
				us := r.Micro / tableRepeats
				fmt.Printf("%-24s %9.2f us, floor %9.2f us, ratio %5.2f\n", r.Shape, us, r.Floor, us/r.Floor)
			})
			if err != nil {
				b.Fatal(err)
			}
		})
	}
}
