package engine

import (
	"fmt"
	"slices"
	"testing"

	"reprise/internal/golden"
	"reprise/kernels"
)

// format is a choice of the three flags.
type format struct {
	state, read string
	rounding    kernels.Rounding
}

func (f format) String() string {
	return fmt.Sprintf("%s-%s-%v", f.state, f.read, f.rounding)
}

func (f format) options(o Options) Options {
	o.StateDType, o.ReadDType, o.Rounding = f.state, f.read, f.rounding
	return o
}

// formats are those of the paper's Sec. 7.4, the same rounded to nearest, and the rest of what is read apart from what is
// carried on.
var formats = []format{
	{"float32", "same", kernels.Nearest}, {"float32", "float16", kernels.Nearest}, {"float32", "nvfp4", kernels.Nearest},
	{"float16", "same", kernels.Nearest}, {"bfloat16", "same", kernels.Nearest}, {"fp8", "same", kernels.Nearest}, {"nvfp4", "same", kernels.Nearest},
	{"float16", "same", kernels.Stochastic}, {"bfloat16", "same", kernels.Stochastic}, {"fp8", "same", kernels.Stochastic}, {"nvfp4", "same", kernels.Stochastic},
	{"float16", "fp8", kernels.Stochastic}, {"float16", "nvfp4", kernels.Stochastic}, {"fp8", "nvfp4", kernels.Stochastic}, {"fp8", "nvfp4", kernels.Nearest},
	{"bfloat16", "fp8", kernels.Stochastic},
}

// forFormats runs f in every format on a model of each family.
func forFormats(t *testing.T, f func(t *testing.T, g *golden.Golden, f format)) {
	for _, name := range []string{"nemotron-latent-mtp", "qwen35-dense-tied-mtp"} {
		g := golden.Open(t, name)
		g.Cases = slices.Clone(g.Cases[:4])
		for i, format := range formats {
			if testing.Short() && i%4 > 0 {
				continue
			}
			t.Run(name+"/"+format.String(), func(t *testing.T) { f(t, g, format) })
		}
	}
}

// TestFormatsBatchEqualsSingle: in every format, requests at once give the bits of single runs, whatever slots, blocks and
// pages they get. The window is short, so that states are rounded many times; random numbers then depend on layer, element
// and position alone.
func TestFormatsBatchEqualsSingle(t *testing.T) {
	forFormats(t, func(t *testing.T, g *golden.Golden, f format) {
		want := alone(t, g, f.options(Options{MaxSeqs: 1, MaxLogProbs: 5, Window: 4}))
		e := open(t, g, f.options(Options{PageTokens: 8, MaxLogProbs: 5, Window: 4}))
		for round := range 2 { // the second finds slots and blocks used, in another order
			running := make([]*Sequence, len(g.Cases))
			for i := range g.Cases {
				i = (i*3 + round) % len(g.Cases)
				running[i] = submit(t, e, scored(&g.Cases[i], 24))
			}
			for i, s := range running {
				if err := read(t, s).equal(want[i]); err != nil {
					t.Errorf("case %d: %v", i, err)
				}
			}
		}
	})
}
