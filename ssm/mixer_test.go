package ssm_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"reprise/kernels"
	"reprise/kernels/cpu"
	"reprise/layers"
	"reprise/model"
	"reprise/ssm"
)

// source is a checkpoint in memory.
type source map[string]kernels.HostTensor

func (s source) Has(name string) bool { _, ok := s[name]; return ok }

func (s source) Get(name string, shape ...int) (kernels.HostTensor, error) {
	t, ok := s[name]
	if !ok || !slices.Equal(t.Shape, shape) {
		return t, fmt.Errorf("tensor %s: %v, want shape %v", name, t.Shape, shape)
	}
	return t, nil
}

func (s source) put(name string, v []float32, shape ...int) []float32 {
	s[name] = kernels.HostTensor{Name: name, DType: kernels.F32, Shape: shape, Data: floatBytes(v)}
	return v
}

// mixer is one of the two with its tensors.
type mixer struct {
	kind
	load    func(*layers.Loader)
	forward func(o kernels.Ops, s *layers.Scratch, b *model.Batch, x, y kernels.Mat)
	tensors source
	in, out []float32 // projections, in the order of the kind's widths; to hidden
	p       *params
}

const mixerHidden = 6

func mamba2Mixer(r *rand.Rand) *mixer {
	d := kernels.Mamba2Dims{Heads: 4, HeadDim: 3, State: 5, Groups: 2, Taps: 4}
	m := &mixer{kind: mamba2Kind("mamba2", d, true), tensors: source{}}
	m.p = m.params(r)
	var layer ssm.Mamba2
	m.load = func(l *layers.Loader) {
		layer = ssm.LoadMamba2(l, "m.", ssm.Mamba2Config{Dims: d, Hidden: mixerHidden, Eps: testEps, ConvBias: true})
	}
	m.forward = func(o kernels.Ops, s *layers.Scratch, b *model.Batch, x, y kernels.Mat) {
		o.Zero(y.Buf)
		layer.Add(o, s, b, 0, layers.Ready(x), y)
	}
	rows := d.Inner() + d.Conv() + d.Heads
	m.in = m.tensors.put("m.in_proj.weight", normals(r, rows*mixerHidden, 0, 0.5), rows, mixerHidden)
	m.out = m.tensors.put("m.out_proj.weight", normals(r, mixerHidden*d.Inner(), 0, 0.5), mixerHidden, d.Inner())
	m.tensors.put("m.conv1d.weight", m.p.convW, d.Conv(), 1, d.Taps)
	m.tensors.put("m.conv1d.bias", m.p.convB, d.Conv())
	m.p.a = fromLogs(m.tensors.put("m.A_log", normals(r, d.Heads, 0, 1), d.Heads))
	m.tensors.put("m.D", m.p.d, d.Heads)
	m.tensors.put("m.dt_bias", m.p.dtBias, d.Heads)
	m.tensors.put("m.norm.weight", m.p.norm, d.Inner())
	return m
}

func deltaMixer(r *rand.Rand) *mixer {
	d := kernels.DeltaDims{KeyHeads: 2, ValueHeads: 4, KeyDim: 5, ValueDim: 3, Taps: 4}
	m := &mixer{kind: deltaKind("delta", d), tensors: source{}}
	m.p = m.params(r)
	var layer ssm.Delta
	m.load = func(l *layers.Loader) {
		layer = ssm.LoadDelta(l, "g.", ssm.DeltaConfig{Dims: d, Hidden: mixerHidden, Eps: testEps})
	}
	m.forward = func(o kernels.Ops, s *layers.Scratch, b *model.Batch, x, y kernels.Mat) {
		o.Zero(y.Buf)
		layer.Add(o, s, b, 0, layers.Ready(x), y)
	}
	for i, name := range []string{"qkv", "z", "b", "a"} {
		m.in = append(m.in, m.tensors.put("g.in_proj_"+name+".weight", normals(r, m.widths[i]*mixerHidden, 0, 0.5), m.widths[i], mixerHidden)...)
	}
	m.out = m.tensors.put("g.out_proj.weight", normals(r, mixerHidden*d.Values(), 0, 0.5), mixerHidden, d.Values())
	m.tensors.put("g.conv1d.weight", m.p.convW, d.Conv(), 1, d.Taps)
	m.p.a = fromLogs(m.tensors.put("g.A_log", normals(r, d.ValueHeads, 0, 1), d.ValueHeads))
	m.tensors.put("g.dt_bias", m.p.dtBias, d.ValueHeads)
	m.tensors.put("g.norm.weight", m.p.norm, d.ValueDim)
	return m
}

func fromLogs(v []float32) []float32 {
	a := make([]float32, len(v))
	for i, x := range v {
		a[i] = float32(-math.Exp(float64(x)))
	}
	return a
}

func matVec(w []float32, x []float64) []float64 {
	out := make([]float64, len(w)/len(x))
	for i := range out {
		for j, v := range x {
			out[i] += float64(w[i*len(x)+j]) * v
		}
	}
	return out
}

func widen(v []float32) []float64 {
	out := make([]float64, len(v))
	for i, x := range v {
		out[i] = float64(x)
	}
	return out
}

// project makes the inputs of token id i out of hidden row i.
func (m *mixer) project(hidden []float32) {
	m.p.inputs = make([][][]float32, len(m.widths))
	for ; len(hidden) > 0; hidden = hidden[mixerHidden:] {
		all := matVec(m.in, widen(hidden[:mixerHidden]))
		for i, w := range m.widths {
			row := make([]float32, w)
			for j := range row {
				row[j] = float32(all[j])
			}
			m.p.inputs[i], all = append(m.p.inputs[i], row), all[w:]
		}
	}
}

// TestMixers runs step rows beside packed prefill rows through the projections.
func TestMixers(t *testing.T) {
	for _, m := range []*mixer{mamba2Mixer(rand.New(rand.NewPCG(1, 5))), deltaMixer(rand.New(rand.NewPCG(2, 5)))} {
		t.Run(m.name, func(t *testing.T) { m.test(t) })
	}
}

func (m *mixer) test(t *testing.T) {
	dev, err := cpu.Open(cpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	l := layers.NewLoader(dev, m.tensors)
	if m.load(l); l.Err() != nil {
		t.Fatal(l.Err())
	}
	// Two step rows of T = 2, the second with one token that counts, then prefill rows of 3 and 1 tokens.
	const tokens = 8
	sequences := [][]int{{0, 1}, {2}, {4, 5, 6}, {7}}
	hidden := normals(rand.New(rand.NewPCG(3, 3)), tokens*mixerHidden, 0, 1)
	m.project(hidden)
	got := m.run(t, dev, hidden, tokens)
	for _, ids := range sequences {
		p := m.plain(m.p)
		for _, id := range ids {
			want := matVec(m.out, p.next(id))
			for j, w := range want {
				if e := math.Abs(float64(got[id*mixerHidden+j]) - w); !(e < 1e-4) {
					t.Errorf("token %d, column %d: %v, want %v", id, j, got[id*mixerHidden+j], w)
				}
			}
		}
	}
}

func (m *mixer) run(t *testing.T, dev kernels.Device, hidden []float32, tokens int) []float32 {
	c := m.config
	c.Window, c.Activations, c.Slots, c.Blocks = kernels.Window{L: 4, T: 2}, kernels.F32, 5, 5
	pool, err := ssm.NewPool(dev, c)
	if err != nil {
		t.Fatal(err)
	}
	buffer := func(data []byte) kernels.Buffer {
		b, err := dev.Alloc(int64(len(data)))
		if err != nil {
			t.Fatal(err)
		}
		run(t, dev, func(o kernels.Ops) { o.Upload(b, data) })
		return b
	}
	b := &model.Batch{Tokens: tokens, Cursors: pool.Cursors(), SSM: pool.Layers()}
	b.Step = kernels.Rows{Count: 2, Tokens: 4, T: 2, MaxLen: 2, Slot: buffer(intBytes([]int{1, 2})), N: buffer(intBytes([]int{2, 1}))}
	b.Prefill = kernels.Rows{Count: 2, First: 4, Tokens: 4, MaxLen: 3, Slot: buffer(intBytes([]int{3, 4})), N: buffer(intBytes([]int{3, 1})), Start: buffer(intBytes([]int{4, 7}))}
	x := kernels.NewMat(buffer(floatBytes(hidden)), kernels.F32, tokens, mixerHidden)
	y := kernels.NewMat(buffer(nans(int64(4*len(hidden)))), kernels.F32, tokens, mixerHidden)
	s := layers.NewScratch(kernels.F32)
	m.forward(layers.Discard{}, s, b, x, y)
	if err := s.Alloc(dev); err != nil {
		t.Fatal(err)
	}
	out := make([]byte, y.Buf.Size)
	run(t, dev, func(o kernels.Ops) {
		for slot := 1; slot < c.Slots; slot++ {
			pool.SetCursor(o, slot, kernels.Cursor{Src: int32(slot), Dst: int32(slot)})
		}
		m.forward(o, s, b, x, y)
		o.Download(out, y.Buf)
	})
	return floatsOf(out)
}

// TestSpecs compares what a recording loader lists with the tensors that loading needs.
func TestSpecs(t *testing.T) {
	for _, m := range []*mixer{mamba2Mixer(rand.New(rand.NewPCG(1, 5))), deltaMixer(rand.New(rand.NewPCG(2, 5)))} {
		l := layers.NewRecorder()
		m.load(l)
		if len(l.Specs()) != len(m.tensors) || l.Err() != nil {
			t.Errorf("%s: %d specs of %d tensors, error %v", m.name, len(l.Specs()), len(m.tensors), l.Err())
		}
		for _, s := range l.Specs() {
			if _, err := m.tensors.Get(s.Name, s.Shape...); err != nil {
				t.Error(err)
			}
		}
	}
}
