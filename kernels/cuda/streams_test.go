//go:build cuda

package cuda

import (
	"bytes"
	"fmt"
	"math"
	"testing"

	"reprise/kernels"
)

// layerProduct is one product of a layer: y is [rows, n] outputs, x has k columns.
type layerProduct struct {
	name     string
	n, k     int
	norm     bool
	act      kernels.Activation
	activate bool
	add      bool
}

// wide is the rows of the weight.
func (l layerProduct) wide() int {
	if l.activate {
		return l.act.InWidth(l.n)
	}
	return l.n
}

// layersOf is the products of a recurrent layer, an attention layer and the head of two models.
func layersOf() map[string][][]layerProduct {
	up := layerProduct{name: "up", n: 9216, k: 2560, norm: true, activate: true, act: kernels.SiLUMul}
	down := layerProduct{name: "down", n: 2560, k: 9216, add: true}
	nanoUp := layerProduct{name: "up", n: 12544, k: 3136, norm: true, activate: true, act: kernels.ReLU2}
	nanoDown := layerProduct{name: "down", n: 3136, k: 12544, add: true}
	return map[string][][]layerProduct{
		"q4b": {
			{{name: "in", n: 12352, k: 2560, norm: true}, {name: "out", n: 2560, k: 4096, add: true}, up, down},
			{{name: "qkv", n: 10240, k: 2560, norm: true}, {name: "out", n: 2560, k: 4096, add: true}, up, down},
			{{name: "head", n: 248320, k: 2560, norm: true}},
		},
		"nano": {
			{{name: "in", n: 17504, k: 3136, norm: true}, {name: "out", n: 3136, k: 7680, add: true}, nanoUp, nanoDown},
			{{name: "qkv", n: 7168, k: 3136, norm: true}, {name: "out", n: 3136, k: 5120, add: true}, nanoUp, nanoDown},
			{{name: "head", n: 131072, k: 3136, norm: true}},
		},
	}
}

// productChain is layers in a row, each with weights of its own.
type productChain struct {
	weights []*weight
	list    []layerProduct
	x       map[int]kernels.Buffer // by columns
	normed  map[int]kernels.Buffer
	norm    kernels.Buffer
	bytes   int
}

// copiesOf is how many of a layer have weights of about so many bytes, two at least.
func copiesOf(layer []layerProduct, bytes int) int {
	size := 0
	for _, l := range layer {
		size += l.wide() * l.k * 2
	}
	return max(2, bytes/size)
}

func (r *rig) products(layer []layerProduct, tokens, copies int) *productChain {
	c := &productChain{x: map[int]kernels.Buffer{}, normed: map[int]kernels.Buffer{}, norm: r.upload(bytesOf(ones(16384)))}
	for range copies {
		for _, l := range layer {
			c.list = append(c.list, l)
			size := l.wide() * l.k * 2
			b := r.alloc(size)
			r.noise(b, size/2)
			c.weights = append(c.weights, &weight{experts: 1, rows: l.wide(), cols: l.k, dtype: kernels.BF16, stride: int64(l.k * 2), buf: b})
			c.bytes += size
			for _, cols := range []int{l.k, l.n, l.wide()} {
				if _, ok := c.x[cols]; !ok {
					c.x[cols], c.normed[cols] = r.alloc(tokens*cols*2), r.alloc(tokens*cols*2)
					r.noise(c.x[cols], tokens*cols)
				}
			}
		}
	}
	return c
}

func ones(n int) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = 1
	}
	return v
}

func (r *rig) noise(b kernels.Buffer, n int) {
	type noise struct {
		to uint64
		n  int64
	}
	o := r.dev.ops
	r.do(func(kernels.Ops) { launch(o, o.rates.noise, line(1024, 256), noise{addr(b), int64(n)}) })
}

func (c *productChain) free(r *rig) {
	for _, w := range c.weights {
		r.dev.Free(w.buf)
	}
	for cols, b := range c.x {
		r.dev.Free(b)
		r.dev.Free(c.normed[cols])
	}
	r.dev.Free(c.norm)
}

// run enqueues the chain for m tokens.
func (c *productChain) run(o kernels.Ops, m int) {
	for i, l := range c.list {
		o.Linear(c.linear(l, c.weights[i], m))
	}
}

func (c *productChain) linear(l layerProduct, w *weight, m int) kernels.Linear {
	p := kernels.Linear{X: kernels.NewMat(c.x[l.k], kernels.BF16, m, l.k), Y: kernels.NewMat(c.x[l.n], kernels.BF16, m, l.n), W: w, Add: l.add}
	if l.norm {
		p.NormW, p.Eps, p.Normed = c.norm.Slice(0, int64(l.k*4)), 1e-6, kernels.NewMat(c.normed[l.k], kernels.BF16, m, l.k)
	}
	if l.activate {
		p.Kind, p.Raw = l.act, kernels.NewMat(c.x[l.wide()], kernels.BF16, m, l.wide())
	}
	return p
}

// Times of layers in a row, as a step has them, and of each product by itself in a row of its like, with the rate at which weights
// come; run alone, on a GPU that nobody else uses.
func TestStreamTimes(t *testing.T) {
	r := newTimer(t)
	for _, model := range []string{"q4b", "nano"} {
		for _, layer := range layersOf()[model] {
			r.streamTimes(model+" layer "+layer[0].name, layer)
			for _, l := range layer {
				r.streamTimes(model+" "+l.name, []layerProduct{l})
			}
		}
	}
}

func (r *rig) streamTimes(name string, layer []layerProduct) {
	copies := copiesOf(layer, 1e9)
	c := r.products(layer, chainTokens, copies)
	defer c.free(r)
	fmt.Printf("%-15s", name)
	for _, m := range []int{1, 8, 16, 32, 64} {
		s, err := r.dev.Time(5, kernels.ProgramFunc(func(o kernels.Ops) {
			if len(layer) == 1 {
				o = straight{o.(*ops)}
			}
			c.run(o, m)
		}))
		if err != nil {
			r.Fatal(err)
		}
		fmt.Printf(" | M %d %.1f us %.2f TB/s", m, s/float64(copies)*1e6, float64(c.bytes)/s/1e12)
	}
	fmt.Println()
}

// Streams: a token's bits do not depend on the number of tokens; and they agree with norm, product and activation apart.
func TestStreamBits(t *testing.T) {
	r := newRig(t, kernels.BF16)
	for _, model := range []string{"q4b", "nano"} {
		for _, layer := range layersOf()[model][:2] {
			for _, l := range layer {
				r.streamBits(l)
			}
		}
	}
}

func (r *rig) streamBits(l layerProduct) {
	c := r.products([]layerProduct{l}, chainTokens, 1)
	defer c.free(r)
	w := c.weights[0]
	nv := make([]float32, l.k)
	for i := range nv {
		nv[i] = 0.5 + r.rng.Float32()
	}
	y0 := bytesOf(r.bf16s(16*l.n, 1))
	r.do(func(o kernels.Ops) {
		o.Upload(c.x[l.k].Slice(0, int64(16*l.k*2)), bytesOf(r.bf16s(16*l.k, 1)))
		o.Upload(c.norm.Slice(0, int64(4*l.k)), bytesOf(nv))
	})
	all := make(map[int][]byte)
	for _, m := range []int{16, 8, 3, 1, 0} { // rows at once; 0: apart
		got := make([]byte, 16*l.n*2)
		out := r.upload(y0)
		normed, raw := r.alloc(16*l.k*2), r.alloc(16*l.wide()*2)
		r.do(func(o kernels.Ops) {
			for i := 0; i < 16; i += max(1, m) {
				rows := min(max(1, m), 16-i)
				if m == 0 {
					rows = 16
				}
				p := c.linear(l, w, 16)
				p.Y = kernels.NewMat(out, kernels.BF16, 16, l.n).RowRange(i, rows)
				p.X = p.X.RowRange(i, rows)
				if l.norm {
					p.Normed = kernels.NewMat(normed, kernels.BF16, rows, l.k)
				}
				if l.activate {
					p.Raw = kernels.NewMat(raw, kernels.BF16, rows, l.wide())
				}
				if m == 0 {
					p.Apart(straight{o.(*ops)})
					break
				}
				straight{o.(*ops)}.Linear(p)
			}
			o.Download(got, out)
		})
		r.dev.Free(out)
		r.dev.Free(normed)
		r.dev.Free(raw)
		all[m] = got
		if m > 0 && !bytes.Equal(got, all[16]) {
			r.Errorf("%s N %d K %d: %d tokens at once differ from 16", l.name, l.n, l.k, m)
		}
	}
	var diff, size float64
	for i := 0; i < 16*l.n; i++ {
		at := func(b []byte) float64 { return float64(kernels.BF16ToF32(uint16(b[2*i]) | uint16(b[2*i+1])<<8)) }
		diff += math.Pow(at(all[16])-at(all[0]), 2)
		size += math.Pow(at(all[0]), 2)
	}
	// Outputs are rounded to bf16, and so are normalised rows, at other places: 3e-3, and 5e-3 behind an activation.
	if e := math.Sqrt(diff / size); !(e < 1e-2) {
		r.Errorf("%s N %d K %d: differs from apart by %.2g", l.name, l.n, l.k, e)
	}
}
