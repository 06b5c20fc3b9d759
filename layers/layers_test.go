package layers

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"reprise/kernels"
	"reprise/kernels/ref"
	"reprise/model"
)

// source is tensors by name.
type source map[string]kernels.HostTensor

func (s source) Has(name string) bool { _, ok := s[name]; return ok }

func (s source) Get(name string, shape ...int) (kernels.HostTensor, error) {
	t, ok := s[name]
	if !ok || !slices.Equal(t.Shape, shape) {
		return t, fmt.Errorf("tensor %s: %v, want shape %v", name, t.Shape, shape)
	}
	return t, nil
}

// put stores values, which must be exact in the dtype.
func (s source) put(name string, d kernels.DType, values []float32, shape ...int) {
	var data []byte
	for _, v := range values {
		switch d {
		case kernels.F32:
			data = binary.LittleEndian.AppendUint32(data, math.Float32bits(v))
		case kernels.F16:
			data = binary.LittleEndian.AppendUint16(data, kernels.F32ToF16(v))
		case kernels.BF16:
			data = binary.LittleEndian.AppendUint16(data, kernels.F32ToBF16(v))
		case kernels.F8E4M3:
			data = append(data, kernels.F32ToF8E4M3(v))
		case kernels.F8E5M2:
			data = append(data, byte(kernels.F32ToF16(v)>>8))
		default:
			data = append(data, make([]byte, d.Size())...)
		}
	}
	s[name] = kernels.HostTensor{Name: name, DType: d, Shape: shape, Data: data}
}

// small is random numbers that every float dtype holds exactly.
func small(rng *rand.Rand, n int) []float32 {
	out := make([]float32, n)
	for i := range out {
		out[i] = float32(rng.IntN(7)-3) / 2
	}
	return out
}

type machine struct {
	*testing.T
	*ref.Device
}

func (m machine) run(f func(kernels.Ops)) {
	m.Helper()
	m.Submit(kernels.ProgramFunc(f))
	if err := m.Wait(m.Mark()); err != nil {
		m.Fatal(err)
	}
}

func (m machine) read(b kernels.Buffer) []float32 {
	m.Helper()
	data := make([]byte, b.Size)
	m.run(func(o kernels.Ops) { o.Download(data, b) })
	out := make([]float32, len(data)/4)
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:]))
	}
	return out
}

func (m machine) mat(rows, cols int, values []float32) kernels.Mat {
	m.Helper()
	b, err := m.Alloc(int64(4 * rows * cols))
	if err != nil {
		m.Fatal(err)
	}
	s := source{}
	s.put("x", kernels.F32, values)
	m.run(func(o kernels.Ops) { o.Upload(b.Slice(0, int64(len(s["x"].Data))), s["x"].Data) })
	return kernels.NewMat(b, kernels.F32, rows, cols)
}

func TestVector(t *testing.T) {
	m, values := machine{t, ref.New()}, []float32{0.5, -1, 2, 0}
	prepared := map[Kind]func(float64) float64{
		OnePlus: func(v float64) float64 { return 1 + v }, NegExp: func(v float64) float64 { return -math.Exp(v) },
	}
	for _, d := range []kernels.DType{kernels.F32, kernels.F16, kernels.BF16, kernels.F8E4M3, kernels.F8E5M2} {
		for k := Plain; k <= Conv; k++ {
			s := source{}
			s.put("v", d, values, 2, 1, 2)
			l := NewLoader(m, s)
			got := m.read(l.Vector("v", k, 2, 1, 2))
			for i, v := range values {
				want := float64(v)
				if f := prepared[k]; f != nil {
					want = f(want)
				}
				if got[i] != float32(want) {
					t.Errorf("%v kind %d: element %d is %g, want %g", d, k, i, got[i], want)
				}
			}
			if l.Err() != nil || l.Bytes() != 16 {
				t.Error(l.Err(), l.Bytes())
			}
		}
	}
}

func TestBadTensors(t *testing.T) {
	s := source{}
	s.put("nan.weight", kernels.F32, []float32{1, float32(math.NaN())}, 2)
	s.put("inf.weight", kernels.BF16, []float32{float32(math.Inf(-1)), 1}, 2)
	s.put("int.weight", kernels.I32, []float32{1, 2}, 2)
	s.put("short.weight", kernels.F32, []float32{1}, 2)
	s.put("ok.weight", kernels.F32, []float32{1, 2}, 2)
	s.put("scaled.weight", kernels.F8E4M3, []float32{1, 2}, 2)
	s.put("scaled.weight_scale", kernels.F32, []float32{1})
	s.put("stacked", kernels.F8E4M3, []float32{1, 2}, 1, 1, 2)
	s.put("stacked_scale_inv", kernels.F32, []float32{1}, 1)
	l := NewLoader(ref.New(), s)
	if l.Experts(1, 2, ExpertForm{Stacked: true, Parts: []Part{{"stacked", 1}}}); !errors.Is(l.Err(), ErrQuantised) {
		t.Errorf("stacked experts with scales: %v", l.Err())
	}
	for _, name := range []string{"nan", "inf", "int", "short", "scaled", "none"} {
		l := NewLoader(ref.New(), s)
		l.Vector(name+".weight", Plain, 2)
		first := l.Err()
		if first == nil || !strings.Contains(first.Error(), "tensor "+name) {
			t.Errorf("%s: %v", name, first)
		}
		if b := l.Vector("ok.weight", Plain, 2); !b.Nil() || !errors.Is(l.Err(), first) {
			t.Errorf("%s: went on after an error: %v", name, l.Err())
		}
	}
}

func TestScalar(t *testing.T) {
	s := source{}
	s.put("bare", kernels.F32, []float32{2.5})
	s.put("one", kernels.BF16, []float32{0.5}, 1)
	s.put("two", kernels.F32, []float32{1, 2}, 2)
	l := NewLoader(ref.New(), s)
	if a, b := l.Scalar("bare"), l.Scalar("one"); a != 2.5 || b != 0.5 || l.Err() != nil {
		t.Error(a, b, l.Err())
	}
	if l.Scalar("two"); l.Err() == nil {
		t.Error("a vector is no scalar")
	}
}

// product is x [tokens, cols] times w [rows, cols] transposed.
func product(x, w []float32, tokens, rows, cols int) []float32 {
	y := make([]float32, 0, tokens*rows)
	for t := range tokens {
		for r := range rows {
			var sum float32
			for c := range cols {
				sum += x[t*cols+c] * w[r*cols+c]
			}
			y = append(y, sum)
		}
	}
	return y
}

func TestLinearGroups(t *testing.T) {
	const tokens, cols = 3, 5
	m, rng, s := machine{t, ref.New()}, rand.New(rand.NewPCG(1, 2)), source{}
	var parts []Part
	var stacked []float32
	for i, d := range []kernels.DType{kernels.BF16, kernels.BF16, kernels.F32, kernels.BF16} {
		p := Part{fmt.Sprintf("p%d.weight", i), 2 + i}
		w := small(rng, p.Rows*cols)
		s.put(p.Name, d, w, p.Rows, cols)
		parts, stacked = append(parts, p), append(stacked, w...)
	}
	l := NewLoader(m, s)
	g := l.Linear(cols, parts...)
	if l.Err() != nil || len(g.weights) != 3 || g.Rows() != 14 || g.Nil() {
		t.Fatalf("%v: %d weights of %d rows", l.Err(), len(g.weights), g.Rows())
	}
	values := small(rng, tokens*cols)
	x, y := m.mat(tokens, cols, values), m.mat(tokens, 14, nil)
	want := product(values, stacked, tokens, 14, cols)
	m.run(func(o kernels.Ops) { g.Forward(o, Ready(x), y) })
	if got := m.read(y.Buf); !slices.Equal(got, want) {
		t.Errorf("product %v, want %v", got, want)
	}
	m.run(func(o kernels.Ops) { g.Add(o, x, y) })
	for i, got := range m.read(y.Buf) {
		if got != 2*want[i] {
			t.Errorf("added element %d is %g, want %g", i, got, 2*want[i])
		}
	}
	if p := g.Part(y, 2); p.Cols != 4 || p.Stride != 14 || p.Buf.Addr != y.Buf.Addr+5*4 {
		t.Errorf("part 2 is %+v of %+v", p, y)
	}
}

func TestMLP(t *testing.T) {
	const tokens, hidden, inner = 2, 4, 3
	m, rng, s := machine{t, ref.New()}, rand.New(rand.NewPCG(3, 4)), source{}
	gate, up, down := small(rng, inner*hidden), small(rng, inner*hidden), small(rng, hidden*inner)
	s.put("gate", kernels.BF16, gate, inner, hidden)
	s.put("up", kernels.F32, up, inner, hidden)
	s.put("down", kernels.BF16, down, hidden, inner)
	values := small(rng, tokens*hidden)
	x, y := m.mat(tokens, hidden, values), m.mat(tokens, hidden, nil)
	g, u := product(values, gate, tokens, inner, hidden), product(values, up, tokens, inner, hidden)
	for act, names := range map[kernels.Activation][]string{kernels.SiLUMul: {"gate", "up"}, kernels.ReLU2: {"up"}} {
		l, scratch := NewLoader(m, s), NewScratch(kernels.F32)
		mlp := l.MLP(act, hidden, inner, "down", names...)
		mlp.Add(Discard{}, scratch, Ready(x), y)
		if l.Err() != nil || scratch.Alloc(m) != nil || scratch.Mark() != 0 {
			t.Fatal(l.Err(), scratch.Mark())
		}
		middle := make([]float32, len(u))
		for i := range u {
			if middle[i] = max(u[i], 0) * max(u[i], 0); act == kernels.SiLUMul {
				middle[i] = float32(float64(g[i])/(1+math.Exp(-float64(g[i])))) * u[i]
			}
		}
		m.run(func(o kernels.Ops) {
			o.Zero(y.Buf)
			mlp.Add(o, scratch, Ready(x), y)
		})
		for i, want := range product(middle, down, tokens, hidden, inner) {
			if got := m.read(y.Buf)[i]; math.Abs(float64(got-want)) > 1e-5 {
				t.Errorf("activation %d: element %d is %g, want %g", act, i, got, want)
			}
		}
	}
}

func TestExpertForms(t *testing.T) {
	const experts, rows, cols = 3, 2, 4
	rng := rand.New(rand.NewPCG(5, 6))
	forms := []ExpertForm{{Parts: []Part{{"e.{e}.up.weight", rows}}}, {Stacked: true, Parts: []Part{{"e.up", rows}}}}
	single, stacked, mixed := source{}, source{}, source{}
	for e := range experts {
		single.put(fmt.Sprintf("e.%d.up.weight", e), kernels.BF16, small(rng, rows*cols), rows, cols)
		mixed.put(fmt.Sprintf("e.%d.up.weight", e), []kernels.DType{kernels.BF16, kernels.BF16, kernels.F32}[e], small(rng, rows*cols), rows, cols)
	}
	stacked.put("e.up", kernels.BF16, small(rng, experts*rows*cols), experts, rows, cols)
	for name, s := range map[string]source{"single": single, "stacked": stacked} {
		l := NewLoader(ref.New(), s)
		w := l.Experts(experts, cols, forms...)
		if l.Err() != nil {
			t.Fatal(name, l.Err())
		}
		if e, r, c := w.Shape(); e != experts || r != rows || c != cols {
			t.Errorf("%s: [%d, %d, %d]", name, e, r, c)
		}
	}
	l := NewLoader(ref.New(), mixed)
	if l.Experts(experts, cols, forms...); l.Err() == nil || !strings.Contains(l.Err().Error(), "mixed types") {
		t.Errorf("mixed types: %v", l.Err())
	}
	delete(single, "e.2.up.weight")
	l = NewLoader(ref.New(), single)
	if l.Experts(experts, cols, forms...); l.Err() == nil || !strings.Contains(l.Err().Error(), "e.2.up.weight") {
		t.Errorf("a missing expert: %v", l.Err())
	}
}

func TestRecorderListsTheReleaseForm(t *testing.T) {
	l := NewRecorder()
	l.Vector("a", NegExp, 4)
	l.Linear(3, Part{"w", 2})
	l.Experts(2, 3, ExpertForm{Parts: []Part{{"e.{e}.up", 5}}}, ExpertForm{Stacked: true, Parts: []Part{{"e.up", 5}}})
	l.Vocabulary("t", "", 7, 3)
	want := []model.TensorSpec{
		{Name: "a", Shape: []int{4}, DType: kernels.F32, Init: model.InitALog}, {Name: "w", Shape: []int{2, 3}, DType: kernels.BF16},
		{Name: "e.0.up", Shape: []int{5, 3}, DType: kernels.BF16}, {Name: "e.1.up", Shape: []int{5, 3}, DType: kernels.BF16},
		{Name: "t", Shape: []int{7, 3}, DType: kernels.BF16},
	}
	if got := fmt.Sprint(l.Specs()); got != fmt.Sprint(want) || l.Err() != nil || l.Bytes() != 0 {
		t.Errorf("%s, want %v (%v)", got, want, l.Err())
	}
}

func TestScratch(t *testing.T) {
	use := func(s *Scratch) (inner kernels.Mat) {
		defer s.Release(s.Mark())
		s.Mat(3, 5)
		mark := s.Mark()
		s.MatF32(2, 100)
		s.Release(mark)
		return s.Mat(1, 7)
	}
	s := NewScratch(kernels.BF16)
	use(s)
	if s.Mark() != 0 || s.Bytes() != 256+1024 {
		t.Fatalf("depth %d, peak %d", s.Mark(), s.Bytes())
	}
	d := ref.New()
	if err := s.Alloc(d); err != nil {
		t.Fatal(err)
	}
	if m := use(s); m.Buf.Addr%256 != 0 || m.Buf.Size != 14 || m.DType != kernels.BF16 {
		t.Errorf("%+v", m)
	}
	defer func() {
		if recover() == nil {
			t.Error("more than was measured is no panic")
		}
	}()
	s.Buffer(2048)
}
