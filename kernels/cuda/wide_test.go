//go:build cuda

package cuda

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"reprise/kernels"
)

// plainActivation is an act of wideCase.
const plainActivation = -1

// wideCase is a product of src/wide.cu: of n outputs and k columns.
type wideCase struct {
	kernel *wideKernel
	n, k   int
	act    int // kernels.Activation, or plainActivation
	add    bool
}

// Products by wide tiles: they agree with the plain kernel's, a row's bits depend on no other row and not on their number, and
// nothing is read behind the rows that there are or written beside y.
func TestWideBits(t *testing.T) {
	r := newRig(t, kernels.BF16)
	for i := range r.dev.ops.linear.wide.list {
		k := &r.dev.ops.linear.wide.list[i]
		t.Run(fmt.Sprint(k.rows, k.splits, k.tokens), func(t *testing.T) {
			r.T = t
			r.wideBits(wideCase{k, 3 * k.rows, 1160, plainActivation, k.splits > 1})
			r.wideBits(wideCase{k, 5*k.rows - 13, 72 + 128*(k.splits-1), plainActivation, false})
			if k.splits == 1 {
				r.wideBits(wideCase{k, 3*k.rows - 5, 712, int(kernels.ReLU2), false})
			}
			if k.splits == 1 && k.rows >= widePairs {
				r.wideBits(wideCase{k, k.rows - 11, 712, int(kernels.SiLUMul), false})
			}
		})
	}
}

// wideBits compares products of different numbers of tokens.
func (r *rig) wideBits(c wideCase) {
	r.Helper()
	most, wide := 2*c.kernel.tokens, c.n
	if c.act >= 0 {
		wide = kernels.Activation(c.act).InWidth(c.n)
	}
	w := r.pack("w", wide, c.k, bytesOf(r.bf16s(wide*c.k, 0.05))).(*weight)
	defer r.dev.Free(w.buf)
	x := r.bf16s(most*(c.k+8), 1)
	for i := range most {
		for j := range 8 {
			x[i*(c.k+8)+c.k+j] = 0x7fc0
		}
	}
	whole := r.wideRun(c, w, x, most, c.n+8-c.n%8)
	if c.act >= 0 {
		r.nearActivated(w, x, whole, kernels.Activation(c.act))
	} else {
		r.nearPlain(w, x, whole, c.add)
	}
	for pad, m := range []int{c.kernel.tokens + 1, most - 1, c.kernel.tokens * 3 / 2, 1} { // rows of y of which only those of one are aligned
		if !slices.Equal(r.wideRun(c, w, x, m, c.n+8+pad-c.n%8), whole[:m*c.n]) {
			r.Errorf("%d outputs, activation %d, added %t: %d rows are not those of %d", c.n, c.act, c.add, m, most)
		}
	}
}

// wideRun is y [m, n] after the product of the first m rows of x; the others are NaN meanwhile.
func (r *rig) wideRun(c wideCase, w *weight, x []uint16, m, stride int) []uint16 {
	r.Helper()
	const mark = 0x1234
	xv, yv := slices.Clone(x), make([]uint16, (m+1)*stride)
	for i := range xv[m*(c.k+8):] {
		xv[m*(c.k+8)+i] = 0x7fc0
	}
	for i := range yv {
		yv[i] = mark
		if c.add && i/stride < m && i%stride < c.n {
			yv[i] = before(i/stride, i%stride)
		}
	}
	xb, yb := r.upload(bytesOf(xv)), r.upload(bytesOf(yv))
	defer r.dev.Free(xb)
	defer r.dev.Free(yb)
	p := kernels.Linear{X: kernels.Mat{Buf: xb, DType: kernels.BF16, Rows: m, Cols: c.k, Stride: c.k + 8}, Y: kernels.Mat{Buf: yb, DType: kernels.BF16, Rows: m, Cols: c.n, Stride: stride}, W: w, Add: c.add}
	if c.act >= 0 {
		p.Kind, p.Raw = kernels.Activation(c.act), kernels.Mat{Cols: w.rows}
	}
	if !c.kernel.does(&p) {
		r.Fatalf("%d rows of %d outputs are not for this kernel", m, c.n)
	}
	r.do(func(o kernels.Ops) {
		o.(*ops).wide(c.kernel, &p, c.kernel.params(&p, p.X))
		o.Download(bytesOf(yv), yb)
	})
	got := make([]uint16, 0, m*c.n)
	for i := range yv {
		if i/stride < m && i%stride < c.n {
			got = append(got, yv[i])
		} else if yv[i] != mark {
			r.Fatalf("%d rows: element %d behind row %d was written", m, i%stride, i/stride)
		}
	}
	return got
}

// nearActivated compares y with the activation of the plain kernel's sums.
func (r *rig) nearActivated(w *weight, x, y []uint16, act kernels.Activation) {
	r.Helper()
	m := len(x) / (w.cols + 8)
	list, n := r.plainSums(w, x, m), len(y)/m
	var diff, size float64
	for i, v := range y {
		up := float64(list[i/n*w.rows+w.rows-n+i%n])
		want := max(up, 0) * max(up, 0)
		if act == kernels.SiLUMul {
			gate := float64(list[i/n*w.rows+i%n])
			want = gate / (1 + math.Exp(-gate)) * up
		}
		d := float64(kernels.BF16ToF32(v)) - want
		diff, size = diff+d*d, size+want*want
	}
	// Products are rounded to bf16 in front of the activation, and behind it.
	if e := math.Sqrt(diff / size); !(e < 5e-3) {
		r.Errorf("%d x %d, activation %d: off by %.2g", n, w.cols, act, e)
	}
}

// Products of a layer: they agree with the same products apart, norms and activations included, and a token's bits do not
// depend on the number of tokens.
func TestWideLayers(t *testing.T) {
	r := newRig(t, kernels.BF16)
	for _, layer := range [][]layerProduct{
		{{name: "out", n: 2560, k: 520, add: true}, {name: "up", n: 9216, k: 2560, norm: true, activate: true, act: kernels.SiLUMul}, {name: "down", n: 2560, k: 9216, add: true}, {name: "in", n: 12352, k: 2560, norm: true}},
		{{name: "out", n: 3136, k: 584, add: true}, {name: "up", n: 12544, k: 3136, norm: true, activate: true, act: kernels.ReLU2}, {name: "down", n: 3136, k: 12544, add: true}, {name: "qkv", n: 7163, k: 3136, norm: true}},
	} {
		t.Run(fmt.Sprint(layer[0].n), func(t *testing.T) {
			r.T = t
			r.wideLayer(layer)
		})
	}
}

func (r *rig) wideLayer(layer []layerProduct) {
	r.Helper()
	run := r.chainOf(layer, wideTokens, len(layer))
	for _, few := range [][2]int{{wideTokens, 160}, {wideTokens / 2, wideFew}} { // the most and the fewest tokens of kernels
		most := few[0]
		whole := run(most, oneGraph)
		for i, want := range run(most, oneByOne) {
			r.chainNear(layer[i], whole[i], want)
		}
		for _, m := range []int{few[1], few[1] + 30, most - 7, most - 1} {
			for i, got := range run(m, oneLaunch) {
				if !slices.Equal(got, whole[i][:len(got)]) {
					r.Errorf("%s: %d tokens differ from %d", layer[i].name, m, most)
				}
			}
		}
	}
}

// Times of a layer's products with their norms and activation, over weights that the L2 cache cannot hold: as they run without
// wide tiles - up to 64 rows in one launch, where they can, others one operation after another - and by wide tiles; and of
// each product by itself.
func TestWideTimes(t *testing.T) {
	r := newTimer(t)
	for _, model := range []string{"q4b", "nano"} {
		for i, layer := range layersOf()[model][:2] {
			layer = append(layer[1:len(layer):len(layer)], layer[0]) // as products stand in a row
			r.wideTimes(model+" layer "+layer[len(layer)-1].name, layer)
			for _, l := range layer {
				if i == 0 || l.norm && !l.activate {
					r.wideTimes(model+" "+l.name, []layerProduct{l})
				}
			}
		}
	}
}

func (r *rig) wideTimes(name string, layer []layerProduct) {
	r.Helper()
	copies := copiesOf(layer, 6e8)
	c := r.products(layer, wideTokens, copies)
	defer c.free(r)
	few := &r.dev.ops.linear.wide.few
	defer func(n int) { *few = n }(*few)
	fmt.Printf("%-15s without / by wide tiles, us", name)
	for _, m := range []int{8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256} {
		fmt.Printf(" | M %d", m)
		for _, wide := range []bool{false, true} {
			if *few = 1; !wide {
				*few = chainTokens + 1
			}
			s, err := r.dev.Time(5, kernels.ProgramFunc(func(o kernels.Ops) {
				if !wide && m > chainTokens {
					o = straight{o.(*ops)}
				}
				c.run(o, m)
			}))
			if err != nil {
				r.Fatal(err)
			}
			fmt.Printf(" %.1f", s/float64(copies)*1e6)
		}
	}
	fmt.Println()
}
