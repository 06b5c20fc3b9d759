//go:build cuda

package cuda

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"reprise/kernels"
	"reprise/kernels/kernelbench"
)

// tableRepeats is how often a captured program runs in one replay, so that starting a graph and waiting for it do not count.
const tableRepeats = 20

// tableDevice captures programs several times over, and times them with each of the step kernels alone besides.
type tableDevice struct {
	*Device
	variants *string // of the last program: milliseconds a replay
}

func (d tableDevice) Capture(p kernels.Program) (kernels.Graph, error) {
	many := kernels.ProgramFunc(func(o kernels.Ops) {
		for range tableRepeats {
			p.Run(o)
		}
	})
	*d.variants = ""
	kept := d.ops.ssm
	for v := range 3 {
		d.only(v)
		if g, err := d.Device.Capture(many); err == nil {
			*d.variants += fmt.Sprintf(" %8.3f", d.milliseconds(g))
		}
		d.ops.ssm = kept
	}
	return d.Device.Capture(many)
}

// only leaves one choice of step kernel.
func (d tableDevice) only(v int) {
	for i := range d.ops.ssm.mamba2.step {
		for j := range d.ops.ssm.mamba2.step[i] {
			list := &d.ops.ssm.mamba2.step[i][j]
			list[0], list[1], list[2] = list[v], list[v], list[v]
		}
	}
	for i := range d.ops.ssm.delta.step {
		for j := range d.ops.ssm.delta.step[i] {
			list := &d.ops.ssm.delta.step[i][j]
			list[0], list[1], list[2] = list[v], list[v], list[v]
		}
	}
}

// milliseconds is the median time of a replay.
func (d tableDevice) milliseconds(g kernels.Graph) float64 {
	var times []float64
	for range 4 {
		begin := time.Now()
		d.Replay(g)
		if d.Wait(d.Mark()) != nil {
			return 0
		}
		times = append(times, time.Since(begin).Seconds()*1e3)
	}
	slices.Sort(times)
	return times[1]
}

// BenchmarkTable times rows of kernelbench: -test.bench 'Table/delta_step' -test.benchtime 1x. It checks nothing.
func BenchmarkTable(b *testing.B) {
	for _, op := range []string{"mamba2 step", "delta step", "mamba2 scan", "delta scan"} {
		b.Run(op, func(b *testing.B) {
			d := tableDevice{openFor(b, kernels.BF16).(*Device), new(string)}
			defer d.Close()
			read, flops, err := d.MeasuredRates()
			if err != nil {
				b.Fatal(err)
			}
			fmt.Printf("%s: read %.0f GB/s, %.0f TFLOP/s; then ms a replay with kernels 0, 1, 2 alone\n", op, read/1e9, flops/1e12)
			err = kernelbench.Run(d, kernelbench.Rates{Read: read, Flops: flops}, kernelbench.Options{
				Match: func(o, _ string) bool { return o == op },
			}, func(r kernelbench.Row) {
				us := r.Micro / tableRepeats
				fmt.Printf("%-24s %9.2f us, floor %9.2f us, ratio %5.2f |%s\n", r.Shape, us, r.Floor, us/r.Floor, *d.variants)
			})
			if err != nil {
				b.Fatal(err)
			}
		})
	}
}
