//go:build cuda

package cuda

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"

	"reprise/kernels"
)

// chainLayer is products as a layer has them, of sizes that this GPU's blocks are good for; odd: outputs that are no multiple of
// four.
func (k *chainKernels) layer(act kernels.Activation, cols, odd int) []layerProduct {
	blocks := chainBlocks * k.clusters
	hidden := 88*k.clusters - 8
	wide := (chainPairs/2)*blocks - 40
	if act == kernels.ReLU2 {
		hidden, wide = 112*k.clusters-16, 104*blocks-24
	}
	return []layerProduct{
		{name: "out", n: hidden, k: cols, add: true},
		{name: "up", n: wide, k: hidden, norm: true, activate: true, act: act},
		{name: "down", n: hidden, k: wide, add: true},
		{name: "in", n: 64*blocks - odd, k: hidden, norm: true},
	}
}

// Runs of products: they agree with the same products apart; a token's bits depend neither on other tokens nor on their
// number; nothing is read behind the rows that there are or written beside what there is.
func TestChainBits(t *testing.T) {
	r := newRig(t, kernels.BF16)
	k := &r.dev.ops.linear.chain
	for _, act := range []kernels.Activation{kernels.SiLUMul, kernels.ReLU2} {
		for odd := range 2 {
			t.Run(fmt.Sprint(act, odd), func(t *testing.T) {
				r.T = t
				r.chainBits(k.layer(act, 264+64*odd, 31*odd))
			})
		}
	}
}

// A product with few outputs behind a norm is none of a run: a cluster that shares its columns does not know what scales them.
func TestChainRefuses(t *testing.T) {
	r := newRig(t, kernels.BF16)
	k := &r.dev.ops.linear.chain
	hidden := 88*k.clusters - 8
	layer := []layerProduct{
		{name: "out", n: hidden, k: 264, add: true},
		{name: "few", n: hidden - 8, k: hidden, norm: true},
		{name: "down", n: hidden, k: hidden - 8, add: true},
		{name: "in", n: 64*chainBlocks*k.clusters - 31, k: hidden, norm: true},
	}
	run := r.chainOf(layer, chainTokens, 2)
	got, want := run(17, oneLaunch), run(17, oneByOne)
	for i, l := range layer {
		r.chainNear(l, got[i], want[i])
	}
}

// Two devices of a process on one GPU: blocks that wait for each other never hold a multiprocessor that the other launch's
// blocks need.
func TestChainsBeside(t *testing.T) {
	var rigs [2]*rig
	for i := range rigs {
		rigs[i] = newRig(t, kernels.BF16)
	}
	var beside sync.WaitGroup
	for _, r := range rigs {
		beside.Go(func() {
			for range 8 {
				r.chainBits(r.dev.ops.linear.chain.layer(kernels.ReLU2, 264, 0))
			}
		})
	}
	beside.Wait()
}

// chainOf gives what the products of a layer leave for the first m of so many tokens; in the end the last so many wait to run
// together.
func (r *rig) chainOf(layer []layerProduct, tokens, waiting int) func(m int, how chainWay) [][]uint16 {
	r.Helper()
	weights := make([]kernels.Weight, len(layer))
	for i, l := range layer {
		w := r.pack(l.name, l.wide(), l.k, bytesOf(r.repeated(l.wide()*l.k, 1/math.Sqrt(float64(l.k)))))
		r.Cleanup(func() { r.dev.Free(own(w).buf) })
		weights[i] = w
	}
	factors := make([]float32, layer[1].k)
	for i := range factors {
		factors[i] = 0.5 + r.rng.Float32()
	}
	x, y := r.bf16s(tokens*layer[0].k, 1), r.bf16s(tokens*layer[0].n, 1)
	return func(m int, how chainWay) [][]uint16 {
		return r.chainRun(layer, weights, factors, x[:m*layer[0].k], y[:m*layer[0].n], m, waiting, how)
	}
}

// repeated is bf16s of which many are the same, but not at the same columns.
func (r *rig) repeated(n int, deviation float64) []uint16 {
	some := r.bf16s(min(n, 1<<20+7), deviation)
	v := make([]uint16, 0, n+len(some))
	for len(v) < n {
		v = append(v, some...)
	}
	return v[:n]
}

func (r *rig) chainBits(layer []layerProduct) {
	r.Helper()
	const most = chainTokens
	r.dev.ops.linear.wide.few = most + 1
	run := r.chainOf(layer, most, len(layer))
	whole := run(most, oneLaunch)
	for i, want := range run(most, oneByOne) {
		r.chainNear(layer[i], whole[i], want)
	}
	for _, m := range []int{most, 1, 3, 8, 9, 17, 33, 63} {
		how := oneLaunch
		if m == most {
			how = oneGraph
		}
		for i, got := range run(m, how) {
			if !slices.Equal(got, whole[i][:len(got)]) {
				r.Errorf("%s: %d tokens (way %d) differ from %d", layer[i].name, m, how, most)
			}
		}
	}
}

// chainWay is how products run: in one launch, in one launch of a graph, or one after another.
type chainWay int

const (
	oneLaunch chainWay = iota
	oneGraph
	oneByOne
)

// chainRun is what every product of a layer leaves; the third adds to the first one's. Rows of NaN lie behind what it reads, marks behind what it writes.
func (r *rig) chainRun(layer []layerProduct, weights []kernels.Weight, factors []float32, x, y []uint16, m, waiting int, how chainWay) [][]uint16 {
	r.Helper()
	const mark, behind = 0x7fc1, 3
	fill := func(v []uint16, cols int) kernels.Mat {
		v = slices.Clone(v)
		for len(v) < (m+behind)*cols {
			v = append(v, mark)
		}
		return kernels.Mat{Buf: r.upload(bytesOf(v)), DType: kernels.BF16, Rows: m, Cols: cols, Stride: cols}
	}
	mats := map[int]kernels.Mat{layer[0].k: fill(x, layer[0].k), layer[0].n: fill(y, layer[0].n), layer[1].n: fill(nil, layer[1].n), layer[3].n: fill(nil, layer[3].n)}
	normed, raw, norm := fill(nil, layer[1].k), fill(nil, layer[1].wide()), r.upload(bytesOf(factors))
	after := make([][]uint16, len(layer))
	for i := range after {
		after[i] = make([]uint16, (m+behind)*layer[i].n)
	}
	products := func(o kernels.Ops) {
		if how == oneByOne {
			o = straight{o.(*ops)}
		}
		for i, l := range layer {
			p := kernels.Linear{X: mats[l.k], Y: mats[l.n], W: weights[i], Add: l.add}
			if l.norm {
				p.NormW, p.Eps, p.Normed = norm, 1e-6, normed
			}
			if l.activate {
				p.Kind, p.Raw = l.act, raw
			}
			o.Linear(p)
		}
		if n := r.dev.ops.linear.chain.count; how != oneByOne && n != waiting {
			r.Errorf("%d products wait to run together, not %d", n, waiting)
		}
	}
	if how == oneGraph {
		g, err := r.dev.Capture(kernels.ProgramFunc(products))
		if err != nil {
			r.Fatal(err)
		}
		r.dev.Replay(g)
		defer r.dev.drop(g.(*graph))
	} else {
		r.do(products)
	}
	r.do(func(o kernels.Ops) {
		for i, l := range layer {
			o.Download(bytesOf(after[i]), mats[l.n].Buf)
		}
	})
	for _, b := range []kernels.Buffer{normed.Buf, raw.Buf, norm} {
		r.dev.Free(b)
	}
	for _, b := range mats {
		r.dev.Free(b.Buf)
	}
	for i, l := range layer {
		for _, v := range after[i][m*l.n:] {
			if v != mark {
				r.Fatalf("%s: written behind row %d", l.name, m)
			}
		}
		after[i] = after[i][:m*l.n]
	}
	return after
}

// chainNear compares outputs of two ways.
func (r *rig) chainNear(l layerProduct, got, want []uint16) {
	r.Helper()
	var diff, size float64
	for i := range got {
		g, w := float64(kernels.BF16ToF32(got[i])), float64(kernels.BF16ToF32(want[i]))
		diff, size = diff+(g-w)*(g-w), size+w*w
	}
	// Outputs are rounded to bf16, and so are normalised rows, at other places: 3e-3 a product, and 5e-3 behind an activation.
	if e := math.Sqrt(diff / size); !(e < 1e-2) {
		r.Errorf("%s %d x %d: differs from apart by %.2g", l.name, l.n, l.k, e)
	}
}
