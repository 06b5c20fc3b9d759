package ref

import (
	"math"
	"slices"
	"testing"

	"reprise/kernels"
)

func logistic(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

func TestNormKnownAnswer(t *testing.T) {
	h := newHost(t)
	p := kernels.Norm{X: h.mat(2, 3, 4), Add: h.mat(2, 0, -4), Y: h.mat(2, 0, 0), Weight: h.floats(2, 5)}
	h.run(func(o kernels.Ops) { o.Norm(p) })
	h.near("x", h.read(p.X.Buf), []float64{3, 0})
	h.near("y", h.read(p.Y.Buf), []float64{2 * math.Sqrt2, 0})
}

// A quarter turn of the first two dims, the norm before it, and a single token to attend to.
func TestAttentionKnownAnswer(t *testing.T) {
	h := newHost(t)
	rows, cursors := h.sequence(1)
	kv := kernels.KV{PageTokens: 2, Heads: 1, HeadDim: 4, DType: kernels.F8E4M3, Table: h.ints(0, 0, 1, 0), TableStride: 2}
	kv.PageStride = kv.PageBytes()
	kv.Pages = h.buffer(make([]byte, 2*kv.PageStride))
	w := kernels.WriteKV{
		Rows: rows, Cursors: cursors, Pos: h.ints(1), KV: kv, Q: h.mat(8, 1, 2, 3, 4, 9, 9, 9, 9), K: h.mat(4, 2, 2, -2, 2), V: h.mat(4, 1, -448, 224, 7),
		QHeads: 1, QStride: 8, QNorm: h.floats(1, 1, 1, 1), KNorm: h.floats(3, 3, 3, 3), Rotary: 2, InvFreq: h.floats(math.Pi / 2), QOut: h.mat(4, 0, 0, 0, 0),
	}
	a := kernels.Attend{Rows: rows, Cursors: cursors, KV: kv, Q: w.QOut, QHeads: 1, Scale: 0.5, Gate: h.mat(4, 0, 0, 40, -40), GateStride: 4, Out: h.mat(4, 0, 0, 0, 0)}
	h.run(func(o kernels.Ops) { o.WriteKV(w); o.Attend(a) })
	s := math.Sqrt(30. / 4)
	h.near("q", h.read(w.QOut.Buf), []float64{-2 / s, 1 / s, 3 / s, 4 / s})
	page := kv.Pages.Slice(kv.PageStride, kv.PageStride)
	// Elements [K|V][token][dim]; the largest of a head is +-448: 3/448 and 1 are the scales.
	codes := h.dev.bytes(page.Slice(0, 16))
	if want := []byte{0xfe, 0x7e, 0xfe, 0x7e, 0, 0, 0, 0, 0x38, 0xfe, 0x76, 0x4e}; !slices.Equal(codes[:12], want) {
		t.Errorf("codes %#x, want %#x", codes[:12], want)
	}
	h.near("scales", h.read(page.Slice(16, 16)), []float64{3. / 448, 0, 1, 0})
	h.near("out", h.read(a.Out.Buf), []float64{0.5, -224, 224, 0})
}

func TestRouteKnownAnswer(t *testing.T) {
	h := newHost(t)
	// Groups {0,1,2} and {3,4,5}: the first has the single best expert, the second the better pair.
	logits := []float64{3, -9, -9, 2, 2, -9}
	p := kernels.Route{Logits: h.mat(6, logits...), Score: kernels.Sigmoid, TopK: 2, Groups: 2, TopGroups: 1, Normalize: true, Scale: 2.5, IDs: h.ints(0, 0), Weights: h.floats(0, 0)}
	h.run(func(o kernels.Ops) { o.Route(p) })
	if got := h.readInts(p.IDs); !slices.Equal(got, []int{3, 4}) {
		t.Errorf("ids %v", got)
	}
	h.near("weights", h.read(p.Weights), []float64{1.25, 1.25})
	// Without groups, and a bias that chooses but does not weigh.
	p.Groups, p.Normalize, p.Bias = 0, false, h.floats(0, 5, 0, 0, 0, 0)
	h.run(func(o kernels.Ops) { o.Route(p) })
	if got := h.readInts(p.IDs); !slices.Equal(got, []int{1, 0}) {
		t.Errorf("ids %v", got)
	}
	h.near("weights", h.read(p.Weights), []float64{2.5 * logistic(-9), 2.5 * logistic(3)})
}

// Each cut of the distribution works on what the one before left, and the draw goes in order of id.
func TestCandidates(t *testing.T) {
	for _, c := range []struct {
		name string
		p    []float64
		cut  kernels.SlotParams
		want []float64
	}{
		{"nothing", []float64{0.1, 0.4, 0.2, 0.3}, kernels.SlotParams{TopP: 1}, []float64{0.1, 0.4, 0.2, 0.3}},
		{"min-p", []float64{0.1, 0.4, 0.2, 0.3}, kernels.SlotParams{TopP: 1, MinP: 0.6}, []float64{0, 0.4, 0, 0.3}},
		{"top-k, lower id of a tie", []float64{0.25, 0.25, 0.25, 0.25}, kernels.SlotParams{TopP: 1, TopK: 2}, []float64{0.25, 0.25, 0, 0}},
		{"top-p reaches over", []float64{0.1, 0.4, 0.2, 0.3}, kernels.SlotParams{TopP: 0.41}, []float64{0, 0.4, 0, 0.3}},
		{"top-p keeps one", []float64{0.1, 0.4, 0.2, 0.3}, kernels.SlotParams{TopP: 0.01}, []float64{0, 0.4, 0, 0}},
		{"top-p of what top-k left", []float64{0.1, 0.4, 0.2, 0.3}, kernels.SlotParams{TopP: 0.5, TopK: 2}, []float64{0, 0.4, 0, 0}},
	} {
		if got := candidates(slices.Clone(c.p), c.cut); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
	for u, want := range map[float64]int{0: 1, 0.49: 1, 0.5: 3, 0.99: 3, 1: 3} {
		if got := pick([]float64{0, 0.25, 0, 0.25}, u); got != want {
			t.Errorf("draw at %g: %d, want %d", u, got, want)
		}
	}
}

func TestSoftplusGuard(t *testing.T) {
	for x, want := range map[float64]float64{-40: math.Exp(-40), 0: math.Ln2, 19: 19 + math.Log1p(math.Exp(-19)), 21: 21, 800: 800} {
		if got := softplus(x); math.Abs(got-want) > 1e-15*math.Max(1, want) {
			t.Errorf("softplus(%g) = %g, want %g", x, got, want)
		}
	}
}

func TestFloat16Saturates(t *testing.T) {
	if got := round(kernels.F16, []float64{1e6, -1e6, 1}); !slices.Equal(got, []float64{65504, -65504, 1}) {
		t.Errorf("got %v", got)
	}
}
