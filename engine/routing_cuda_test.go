//go:build cuda

package engine

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"reprise/internal/golden"
	"reprise/kernels"
)

// routed is a device that notes what every Route of a program that is not captured chose, token by token.
type routed struct {
	kernels.Device
	calls *[]choice
}

// choice is one Route: logits [tokens, experts] and chosen experts [tokens, top].
type choice struct {
	tokens, experts, top int
	logits               []float32
	ids                  []int32
}

func (routed) Graphs() bool { return false }

func (r routed) Submit(p kernels.Program) {
	r.Device.Submit(kernels.ProgramFunc(func(o kernels.Ops) { p.Run(routedOps{o, r.calls}) }))
}

type routedOps struct {
	kernels.Ops
	calls *[]choice
}

func (o routedOps) Route(p kernels.Route) {
	o.Ops.Route(p)
	c := choice{tokens: p.Logits.Rows, experts: p.Logits.Cols, top: p.TopK}
	c.logits, c.ids = make([]float32, c.tokens*c.experts), make([]int32, c.tokens*c.top)
	for t := range c.tokens {
		o.Download(bytesOf(c.logits[t*c.experts:(t+1)*c.experts]), p.Logits.RowRange(t, 1).Buf)
	}
	o.Download(bytesOf(c.ids), p.IDs.Slice(0, int64(len(c.ids))*4))
	*o.calls = append(*o.calls, c)
}

// routes runs a prompt in one piece and returns the choices of its layers.
func routes(t *testing.T, dev kernels.Device, g *golden.Golden, prompt []int32) []choice {
	t.Helper()
	var calls []choice
	e := openOn(t, routed{dev, &calls}, g, Options{})
	if r := read(t, submit(t, e, greedy(prompt, 1))); r.err != nil {
		t.Fatal(r.err)
	}
	return slices.Clone(calls)
}

// TestCUDARouting says for every case whether bfloat16 chooses other experts than float32 does. A first difference must be
// one of rounding: the expert that float32 prefers leads by no more than the logits of the two differ.
func TestCUDARouting(t *testing.T) {
	g := golden.Open(t, "qwen35-moe-mtp")
	for i, c := range g.Cases {
		t.Run(fmt.Sprint("case ", i), func(t *testing.T) {
			flips := flipped(t, g, c.Prompt)
			t.Logf("case %d: routing differs for %d tokens of layers; a plain bfloat16 run is off by %.3g of the largest logit", i, flips, c.BF16)
		})
	}
}

// flipped counts the tokens of layers of a prompt for which bfloat16 chooses other experts.
func flipped(t *testing.T, g *golden.Golden, prompt []int32) (flips int) {
	t.Helper()
	exact, rounded := routes(t, device(t), g, prompt), routes(t, gpu(t, kernels.BF16), g, prompt)
	if len(exact) != len(rounded) || len(exact) == 0 {
		t.Fatalf("%d and %d routed layers", len(exact), len(rounded))
	}
	for layer := range exact {
		flips += compareRouting(t, layer, exact[layer], rounded[layer], flips == 0)
	}
	return flips
}

// compareRouting counts the tokens that go to other experts. Only in the first layer where that happens must it be
// rounding: behind it the inputs differ.
func compareRouting(t *testing.T, layer int, exact, rounded choice, first bool) (flips int) {
	t.Helper()
	for token := range exact.tokens {
		want, got := sorted(exact.ids, token, exact.top), sorted(rounded.ids, token, rounded.top)
		if slices.Equal(want, got) {
			continue
		}
		flips++
		x, y := exact.logits[token*exact.experts:], rounded.logits[token*exact.experts:]
		lead, off := math.Inf(1), 0.0
		for _, a := range want {
			for _, b := range got {
				if !slices.Contains(got, a) && !slices.Contains(want, b) {
					lead = min(lead, float64(x[a]-x[b]))
					off = max(off, math.Abs(float64(x[a]-y[a]))+math.Abs(float64(x[b]-y[b])))
				}
			}
		}
		t.Logf("layer %d token %d: routing: float32 chooses %v, bfloat16 %v; lead %.3g, logits off by %.3g", layer, token, want, got, lead, off)
		if first && !(lead <= off) {
			t.Errorf("layer %d token %d: other experts although the logits differ less than the lead: not a matter of rounding", layer, token)
		}
	}
	return flips
}

func sorted(ids []int32, token, top int) []int32 {
	s := slices.Clone(ids[token*top : (token+1)*top])
	slices.Sort(s)
	return s
}
