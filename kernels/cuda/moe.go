//go:build cuda

package cuda

import (
	"fmt"

	"reprise/kernels"
	"reprise/kernels/cuda/driver"
)

// Limits of src/moe.cu.
const (
	mostExperts    = 1024
	expertsScratch = 128 << 20
	expertsStride  = 36 // floats a pair and warp in shared memory
)

// expertsKernels are those of src/moe.cu.
type expertsKernels struct {
	route, sort, sum, plain driver.Function

	up      [2][4]driver.Function // by activation; 8, 16, 32, 64 pairs
	down    [4]driver.Function
	scratch kernels.Buffer
}

func (k *expertsKernels) load(l *loader) error {
	l.open("moe")
	k.route, k.sort, k.plain = l.kernel("route", 0), l.kernel("experts_sort", 0), l.kernel("experts_plain", 0)
	k.sum = l.active("experts_sum", 0)
	for i := range k.down {
		pairs := 8 << i
		k.down[i] = l.kernel(fmt.Sprintf("experts_down_%d", pairs), expertsShared(pairs))
		for act := range k.up {
			k.up[act][i] = l.kernel(fmt.Sprintf("experts_up_%d_%d", act, pairs), expertsShared(pairs))
		}
	}
	k.scratch = l.scratch(expertsScratch)
	return nil
}

func expertsShared(pairs int) int { return 8 * pairs * expertsStride * 4 }

func flag(b bool) int32 {
	if b {
		return 1
	}
	return 0
}

// Route chooses experts.
func (o *ops) Route(p kernels.Route) {
	o.enter("Route")
	must(p.Validate())
	if p.Logits.Cols > mostExperts {
		panic(fmt.Errorf("cuda: %d experts: %w", p.Logits.Cols, kernels.ErrUnsupported))
	}
	type params struct {
		logits                                          mat
		bias, ids, weights                              uint64
		experts, topK, groups, keep, softmax, normalize int32
		scale                                           float32
		_                                               int32
	}
	launch(o, o.experts.route, line(p.Logits.Rows, 32), params{logits: matOf(p.Logits), bias: addr(p.Bias), ids: addr(p.IDs), weights: addr(p.Weights),
		experts: int32(p.Logits.Cols), topK: int32(p.TopK), groups: int32(p.Groups), keep: int32(p.TopGroups), softmax: flag(p.Score == kernels.Softmax),
		normalize: flag(p.Normalize), scale: p.Scale})
}

// expertsCall is one Experts over tokens whose intermediate values fit into the scratch memory.
type expertsCall struct {
	kernels.Experts
	up, down     *weight
	inner, pairs int
	hidden, sums mat // of pairs
	rest         uint64
}

// Experts runs the chosen experts and sums them by weight.
func (o *ops) Experts(p kernels.Experts) {
	o.enter("Experts")
	must(p.Validate())
	o.is(p.X, "X")
	o.is(p.Out, "Out")
	c := expertsCall{Experts: p, up: own(p.Up), down: own(p.Down)}
	c.inner = c.down.cols
	if c.down.experts > mostExperts {
		panic(fmt.Errorf("cuda: %d experts: %w", c.down.experts, kernels.ErrUnsupported))
	}
	// A pair's hidden values take four bytes at most, and there are its sums, its place and perhaps a tile.
	hidden, sums := ceil(c.inner, 64)*64, ceil(p.Out.Cols, 64)*64
	const fixed = 16 * (mostExperts + 16)
	most := min((expertsScratch-fixed)/(p.TopK*(4*hidden+4*sums+4+16)), gridRows)
	if most == 0 {
		panic(fmt.Errorf("cuda: experts of %d and %d columns: %w", c.inner, p.Out.Cols, kernels.ErrUnsupported))
	}
	base := addr(o.experts.scratch)
	for from := 0; from < p.X.Rows; from += most {
		n := min(p.X.Rows-from, most)
		c.X, c.Out, c.pairs = p.X.RowRange(from, n), p.Out.RowRange(from, n), n*p.TopK
		at, size := int64(4*from*p.TopK), int64(4*c.pairs)
		c.IDs, c.Weights = p.IDs.Slice(at, size), p.Weights.Slice(at, size)
		c.hidden = mat{base, int64(hidden)}
		c.sums = mat{base + uint64(c.pairs*hidden*4), int64(sums)}
		c.rest = c.sums.addr + uint64(c.pairs*sums*4)
		o.expertsRange(&c)
	}
}

func (o *ops) expertsRange(c *expertsCall) {
	x := matOf(c.X)
	if o.dev.act == kernels.BF16 && c.up.dtype == kernels.BF16 && c.down.dtype == kernels.BF16 && x.addr%16 == 0 && x.stride%8 == 0 {
		o.expertsGrouped(c)
	} else {
		o.expertsPlain(c)
	}
	type params struct {
		y, out     mat
		weights    uint64
		topK, cols int32
	}
	launch(o, o.experts.sum, grid(ceil(c.Out.Cols, 256), c.X.Rows, 1, 256), params{c.sums, matOf(c.Out), addr(c.Weights), int32(c.TopK), int32(c.Out.Cols)})
}

// productParams is struct Product of src/moe.cu.
type productParams struct {
	x, y                  mat
	w, order, tiles       uint64
	rowBytes, expertBytes int64
	n, k, topK, slices    int32
}

// expertsGrouped reads the weights of every chosen expert once for each tile of its pairs.
func (o *ops) expertsGrouped(c *expertsCall) {
	size := c.tile()
	pairs := 8 << size
	tiles := min(c.down.experts, c.pairs) + c.pairs/pairs
	order := c.rest
	list := (order + uint64(4*c.pairs) + 15) &^ 15
	type params struct {
		ids, order, tiles, trouble   uint64
		pairs, experts, tokens, most int32
	}
	launch(o, o.experts.sort, line(1, 1024), params{addr(c.IDs), order, list, o.dev.memory.trouble.addr(), int32(c.pairs), int32(c.down.experts), int32(pairs), int32(tiles)})
	product := func(f driver.Function, x, y mat, w *weight, n, rows int) {
		k := productParams{x: x, y: y, w: addr(w.buf), order: order, tiles: list, rowBytes: w.stride, expertBytes: int64(w.rows) * w.stride, n: int32(n), k: int32(w.cols), topK: int32(c.TopK), slices: 8}
		if w.cols < 1024 {
			k.slices = 4
		}
		g := grid(ceil(n, rows*8/int(k.slices)), tiles, 1, 256)
		g.Shared = uint32(expertsShared(pairs))
		launch(o, f, g, k)
	}
	rows := 32
	if c.Act == kernels.SiLUMul {
		rows = 16
	}
	product(o.experts.up[c.Act][size], matOf(c.X), c.hidden, c.up, c.inner, rows)
	product(o.experts.down[size], c.hidden, c.sums, c.down, c.Out.Cols, 32)
}

// tile chooses tiles of 8 << tile pairs: all of an expert's where tokens are few, else about twice the mean.
func (c *expertsCall) tile() int {
	want := min(c.X.Rows, 2*c.pairs/c.down.experts+4)
	for i := range 3 {
		if want <= 8<<i {
			return i
		}
	}
	return 3
}

// expertsPlain is for weights and activations of any type.
func (o *ops) expertsPlain(c *expertsCall) {
	type params struct {
		x, y                                    mat
		w, ids, trouble                         uint64
		rowBytes, expertBytes                   int64
		n, k, topK, experts, wtype, xtype, kind int32
		_                                       int32
	}
	product := func(x, y mat, xtype kernels.DType, w *weight, n int, kind int32) {
		launch(o, o.experts.plain, grid(c.pairs, ceil(n, 8), 1, 256), params{x: x, y: y, w: addr(w.buf), ids: addr(c.IDs), trouble: o.dev.memory.trouble.addr(),
			rowBytes: w.stride, expertBytes: int64(w.rows) * w.stride, n: int32(n), k: int32(w.cols), topK: int32(c.TopK), experts: int32(w.experts),
			wtype: int32(w.dtype), xtype: int32(xtype), kind: kind})
	}
	const down = 2 // behind the activations, see src/moe.cu
	product(matOf(c.X), c.hidden, o.dev.act, c.up, c.inner, int32(c.Act))
	product(c.hidden, c.sums, kernels.F32, c.down, c.Out.Cols, down)
}
