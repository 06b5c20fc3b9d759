package engine

import (
	"fmt"
	"testing"

	"reprise/internal/golden"
	"reprise/kernels"
	"reprise/kernels/ref"
)

// lent is a device for several engines, one after another: Close waits for it, and leaves it and what it allocated.
type lent struct{ kernels.Device }

func (d lent) Close() error { return d.Wait(d.Mark()) }

// formatReader reads forced texts on a device and on the CPU.
type formatReader struct {
	dev   kernels.Device
	exact map[string][][][]float64 // by golden: the CPU in float32
}

func newFormatReader(dev kernels.Device) formatReader {
	return formatReader{dev, map[string][][][]float64{}}
}

// formatComparison is how far device and CPU are apart in a format, and the CPU in it from float32: the largest difference of
// log probabilities over all places and tokens.
type formatComparison struct{ apart, format, float float64 }

// compare reads the texts of a golden. Prompts are computed in chunks and the window is short, so that states are rounded often.
func (r formatReader) compare(t *testing.T, g *golden.Golden, f format) (c formatComparison) {
	t.Helper()
	const n = 28
	o := Options{Window: 8, MaxTokens: 24}
	if r.exact[g.Name] == nil {
		r.exact[g.Name] = forced(t, device(t), g, o, n)
	}
	cpu := forced(t, device(t), g, f.options(o), n)
	_, c.format = difference(cpu, r.exact[g.Name], 0, n)
	_, c.apart = difference(forced(t, r.dev, g, f.options(o), n), cpu, 0, n)
	c.float = floatTolerance(g) / 10
	t.Logf("from the CPU: %.2g, allowed %.2g; the format changes %.2g", c.apart, c.limit(), c.format)
	return c
}

// limit is what two float32 implementations may differ by, and a third of what the format changes: all elements are rounded by
// the same random numbers, and only the few that lie where a last bit decides go the other way. Differences of an H200 were two
// fifths of it in float16 and less in every other format.
func (c formatComparison) limit() float64 { return c.format/3 + c.float }

func (c formatComparison) fault() error {
	if !(c.apart <= c.limit()) {
		return fmt.Errorf("it differs from the CPU by %g, allowed %g", c.apart, c.limit())
	}
	return nil
}

// TestFormatsOnTheOracle compares the CPU with a device whose last bits are others.
func TestFormatsOnTheOracle(t *testing.T) {
	r := newFormatReader(lent{ref.New()})
	forFormats(t, formatModels(), func(t *testing.T, g *golden.Golden, f format) {
		few := *g
		few.Cases = g.Cases[1:3] // the oracle takes its time
		if err := r.compare(t, &few, f).fault(); err != nil {
			t.Error(err)
		}
	})
}

// misrounding is a device whose recurrent steps alter the state's parameters.
type misrounding struct {
	kernels.Device
	change func(s *kernels.State)
}

func (d misrounding) Submit(p kernels.Program) {
	d.Device.Submit(kernels.ProgramFunc(func(o kernels.Ops) { p.Run(misroundingOps{o, d.change}) }))
}

type misroundingOps struct {
	kernels.Ops
	change func(s *kernels.State)
}

func (o misroundingOps) Mamba2Step(p kernels.Mamba2) { o.change(&p.State); o.Ops.Mamba2Step(p) }
func (o misroundingOps) DeltaStep(p kernels.Delta)   { o.change(&p.State); o.Ops.DeltaStep(p) }

// TestFormatsCatchesFaults: the random numbers of another layer, and none, are seen in every format that is rounded so.
func TestFormatsCatchesFaults(t *testing.T) {
	for _, name := range formatModels() {
		g := golden.Open(t, name)
		g.Cases = g.Cases[1:3]
		for _, state := range []string{"float16", "bfloat16", "fp8", "nvfp4"} {
			for fault, change := range map[string]func(s *kernels.State){
				"another layer": func(s *kernels.State) { s.Layer++ },
				"nearest":       func(s *kernels.State) { s.Precision.Rounding = kernels.Nearest },
			} {
				r := newFormatReader(misrounding{device(t), change})
				if r.compare(t, g, format{state, "same", kernels.Stochastic}).fault() == nil {
					t.Errorf("%s, %s: %s is not seen", name, state, fault)
				}
			}
		}
	}
}
