package attention

import (
	"fmt"
	"math"

	"reprise/kernels"
	"reprise/layers"
	"reprise/model"
)

// Dims is the shape of an attention layer and what it does besides attending.
type Dims struct {
	Hidden                   int
	QHeads, KVHeads, HeadDim int
	// Gated: q_proj has 2*HeadDim rows a head, first the query, then a gate whose sigmoid multiplies the output.
	Gated bool
	// QKNorm: q and k are RMS-normalised head by head, factor 1+w, before the rotation.
	QKNorm bool
	Eps    float32
	Rope   *Rope // nil: no positions
}

// Mixer is one attention layer.
type Mixer struct {
	dims           Dims
	qkv, out       layers.Linear
	qNorm, kNorm   kernels.Buffer
	invFreq        kernels.Buffer
	kScale, vScale float32
}

// Load reads the tensors prefix{q,k,v,o}_proj.weight, prefix{q,k}_norm.weight if QKNorm, and the scales of an FP8 cache
// prefix{k_proj.k,v_proj.v}_scale if there are any.
func Load(l *layers.Loader, prefix string, d Dims) *Mixer {
	perHead := d.HeadDim
	if d.Gated {
		perHead *= 2
	}
	m := &Mixer{dims: d}
	m.qkv = l.Linear(d.Hidden,
		layers.Part{Name: prefix + "q_proj.weight", Rows: d.QHeads * perHead},
		layers.Part{Name: prefix + "k_proj.weight", Rows: d.KVHeads * d.HeadDim},
		layers.Part{Name: prefix + "v_proj.weight", Rows: d.KVHeads * d.HeadDim})
	m.out = l.Linear(d.QHeads*d.HeadDim, layers.Part{Name: prefix + "o_proj.weight", Rows: d.Hidden})
	if d.QKNorm {
		m.qNorm = l.ScaledNorm(prefix+"q_norm.weight", layers.OnePlus, d.HeadDim, d.rotaryScale())
		m.kNorm = l.ScaledNorm(prefix+"k_norm.weight", layers.OnePlus, d.HeadDim, d.rotaryScale())
	}
	if d.Rope != nil {
		m.invFreq = l.Constant("rotary frequencies", d.Rope.InvFreq())
	}
	m.kScale = cacheScale(l, prefix+"k_proj.k_scale")
	m.vScale = cacheScale(l, prefix+"v_proj.v_scale")
	return m
}

// rotaryScale is the factor of each dim of a head that YaRN wants. A rotation commutes with one factor for both dims of
// a pair, so the factor can be part of the norm before it.
func (d Dims) rotaryScale() []float64 {
	if d.Rope == nil || d.Rope.Yarn == nil {
		return nil
	}
	f := make([]float64, d.HeadDim)
	for i := range f {
		f[i] = 1
		if i < d.Rope.Rotary {
			f[i] = d.Rope.scale()
		}
	}
	return f
}

// cacheScale is the constant scale of an FP8 cache, or 0: a scale of its own for each token and head.
func cacheScale(l *layers.Loader, name string) float32 {
	if !l.Has(name) {
		return 0
	}
	s := l.Scalar(name)
	if s <= 0 {
		l.Fail(fmt.Errorf("tensor %s: a scale of %g", name, s))
	}
	return s
}

// Add is y [tokens, hidden] += attention of x [tokens, hidden] over the layer's cache kv, to which it appends. y may be what
// x is the norm of.
func (m *Mixer) Add(o kernels.Ops, s *layers.Scratch, b *model.Batch, kv kernels.KV, x layers.Input, y kernels.Mat) {
	defer s.Release(s.Mark())
	m.out.Add(o, m.attention(o, s, b, kv, x), y)
}

// AddOnly is y [n, hidden] = rows only, i32 [n], of x0 + attention of x; all of x goes into the cache. x0 may be what x is the
// norm of. A row whose number is negative becomes 0.
func (m *Mixer) AddOnly(o kernels.Ops, s *layers.Scratch, b *model.Batch, kv kernels.KV, x layers.Input, x0 kernels.Mat, only kernels.Buffer, y kernels.Mat) {
	defer s.Release(s.Mark())
	out := m.attention(o, s, b, kv, x)
	some := s.Mat(y.Rows, out.Cols)
	o.GatherRows(kernels.GatherRows{X: out, Y: some, Index: only})
	o.GatherRows(kernels.GatherRows{X: x0, Y: y, Index: only})
	m.out.Add(o, some, y)
}

// attention is what the heads answer, side by side, in scratch memory.
func (m *Mixer) attention(o kernels.Ops, s *layers.Scratch, b *model.Batch, kv kernels.KV, x layers.Input) kernels.Mat {
	width := m.dims.QHeads * m.dims.HeadDim
	qkv := s.Mat(x.X.Rows, m.qkv.Rows())
	q, out := s.Mat(x.X.Rows, width), s.Mat(x.X.Rows, width)
	m.qkv.Forward(o, x, qkv)
	m.attend(o, b, b.Step, kv, qkv, q, out)
	m.attend(o, b, b.Prefill, kv, qkv, q, out)
	return out
}

func (m *Mixer) attend(o kernels.Ops, b *model.Batch, rows kernels.Rows, kv kernels.KV, qkv, q, out kernels.Mat) {
	if rows.Empty() {
		return
	}
	d, rotary := m.dims, 0
	if d.Rope != nil {
		rotary = d.Rope.Rotary
	}
	raw := m.qkv.Part(qkv, 0)
	stride := raw.Cols / d.QHeads
	o.WriteKV(kernels.WriteKV{
		Rows: rows, Cursors: b.Cursors, Pos: b.Pos, KV: kv,
		Q: raw, K: m.qkv.Part(qkv, 1), V: m.qkv.Part(qkv, 2), QHeads: d.QHeads, QStride: stride,
		QNorm: m.qNorm, KNorm: m.kNorm, Eps: d.Eps, Rotary: rotary, InvFreq: m.invFreq,
		KScale: m.kScale, VScale: m.vScale, QOut: q,
	})
	a := kernels.Attend{
		Rows: rows, Cursors: b.Cursors, KV: kv, Q: q, QHeads: d.QHeads,
		Scale: float32(1 / math.Sqrt(float64(d.HeadDim))), Out: out,
	}
	if d.Gated {
		a.Gate, a.GateStride = raw.ColRange(d.HeadDim, raw.Cols-d.HeadDim), stride
	}
	o.Attend(a)
}
