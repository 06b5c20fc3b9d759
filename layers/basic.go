package layers

import (
	"reprise/kernels"
	"reprise/model"
)

// Norm is RMSNorm; Weight is the factor (1+w already applied), f32 [width].
type Norm struct {
	Weight kernels.Buffer
	Eps    float32
}

// Norm reads a norm of the given width; k is Plain or OnePlus.
func (l *Loader) Norm(name string, k Kind, width int, eps float32) Norm {
	return Norm{l.Vector(name, k, width), eps}
}

// Forward is x += add (if there is an add), y = norm(x). y may be x's neighbour columns but not x.
func (n Norm) Forward(o kernels.Ops, x, add, y kernels.Mat) {
	o.Norm(kernels.Norm{X: x, Add: add, Y: y, Weight: n.Weight, Eps: n.Eps})
}

// Input is what a layer reads: rows of the residual stream and the norm before it, or rows that are normed already.
type Input struct {
	X      kernels.Mat
	Norm   Norm        // without a weight: none
	Normed kernels.Mat // as X: memory that a device may normalise in
}

// Ready is rows that need no norm.
func Ready(x kernels.Mat) Input { return Input{X: x} }

// apply adds the norm to a product.
func (in Input) apply(p *kernels.Linear) {
	p.X, p.NormW, p.Eps = in.X, in.Norm.Weight, in.Norm.Eps
	if !p.NormW.Nil() {
		p.Normed = in.Normed
	}
}

// Rows is the normed rows themselves, for a layer that reads them several times.
func (in Input) Rows(o kernels.Ops) kernels.Mat {
	if in.Norm.Weight.Nil() {
		return in.X
	}
	in.Norm.Forward(o, in.X, kernels.Mat{}, in.Normed)
	return in.Normed
}

// Vocabulary is the token table [vocab, hidden] and the head of the same shape, which may be one weight.
type Vocabulary struct{ table, head kernels.Weight }

// Vocabulary reads the embedding and, unless head is "" (tied), the head.
func (l *Loader) Vocabulary(embed, head string, vocab, hidden int) Vocabulary {
	table := l.matrix(embed, vocab, hidden)
	if head == "" {
		return Vocabulary{table, table}
	}
	return Vocabulary{table, l.matrix(head, vocab, hidden)}
}

func (l *Loader) matrix(name string, rows, cols int) kernels.Weight {
	t, ok := l.tensor(name, kernels.BF16, model.InitMatrix, rows, cols)
	if !ok {
		return nil
	}
	return l.pack(kernels.WeightSpec{Name: name, Parts: []kernels.HostTensor{t}})
}

// Top is the vocabulary whose head knows the first tokens alone, in the same memory.
func (v Vocabulary) Top(tokens int) Vocabulary { return Vocabulary{v.table, v.head.Top(tokens)} }

// Embed looks the rows of ids, i32 [out.Rows], up.
func (v Vocabulary) Embed(o kernels.Ops, ids kernels.Buffer, out kernels.Mat) {
	o.Embed(kernels.Embed{Table: v.table, IDs: ids, Out: out})
}

// Logits is out [rows, tokens of the head] = hidden [rows, hidden] times the head.
func (v Vocabulary) Logits(o kernels.Ops, hidden, out kernels.Mat) {
	o.Linear(kernels.Linear{X: hidden, Y: out, W: v.head})
}

// MLP is down(act(up(x))); for SiLUMul up is the group [gate | up].
type MLP struct {
	Up, Down Linear
	Act      kernels.Activation
}

// MLP reads an MLP of the given widths. up holds the one or two matrices [inner, hidden], down is [hidden, inner].
func (l *Loader) MLP(act kernels.Activation, hidden, inner int, down string, up ...string) MLP {
	parts := make([]Part, len(up))
	for i, name := range up {
		parts[i] = Part{name, inner}
	}
	return MLP{l.Linear(hidden, parts...), l.Linear(inner, Part{down, hidden}), act}
}

// Nil reports whether there is no such layer.
func (m MLP) Nil() bool { return m.Up.Nil() }

// Add is y += mlp(x), summed over the devices of a tensor-parallel group.
func (m MLP) Add(o kernels.Ops, s *Scratch, x Input, y kernels.Mat) {
	defer s.Release(s.Mark())
	m.Down.Add(o, m.inner(o, s, x), y)
}

// run is y = mlp(x), or y += mlp(x) with add, on this device alone.
func (m MLP) run(o kernels.Ops, s *Scratch, x Input, y kernels.Mat, add bool) {
	defer s.Release(s.Mark())
	m.Down.multiply(o, Ready(m.inner(o, s, x)), y, add)
}

// inner is act(up(x)), in scratch memory.
func (m MLP) inner(o kernels.Ops, s *Scratch, x Input) kernels.Mat {
	up := s.Mat(x.X.Rows, m.Up.Rows())
	act := s.Mat(up.Rows, up.Cols/m.Act.InWidth(1))
	if len(m.Up.weights) == 1 {
		p := kernels.Linear{Y: act, W: m.Up.weights[0], Raw: up, Kind: m.Act}
		x.apply(&p)
		o.Linear(p)
	} else {
		m.Up.Forward(o, x, up)
		o.Activate(kernels.Activate{Kind: m.Act, X: up, Y: act})
	}
	return act
}
