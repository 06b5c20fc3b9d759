package layers

import (
	"fmt"
	"strconv"
	"strings"

	"reprise/kernels"
	"reprise/model"
)

// Part is one matrix of a Linear: a tensor name and its rows.
type Part struct {
	Name string
	Rows int
}

// Linear multiplies one input by a group of matrices; their outputs lie side by side. Matrices of equal stored type
// are packed and multiplied as one weight; callers see only columns.
type Linear struct {
	parts   []int // rows by part
	weights []kernels.Weight
	widths  []int // rows by weight
}

// Linear reads the parts [rows, cols] as one group.
func (l *Loader) Linear(cols int, parts ...Part) Linear {
	var g Linear
	var run []kernels.HostTensor
	for _, p := range parts {
		g.parts = append(g.parts, p.Rows)
		t, ok := l.tensor(p.Name, kernels.BF16, model.InitMatrix, p.Rows, cols)
		if !ok {
			continue
		}
		if len(run) > 0 && run[0].DType != t.DType {
			g.add(l, run)
			run = nil
		}
		run = append(run, t)
	}
	if len(run) > 0 {
		g.add(l, run)
	}
	return g
}

func (g *Linear) add(l *Loader, run []kernels.HostTensor) {
	rows := 0
	for _, t := range run {
		rows += t.Shape[0]
	}
	g.weights = append(g.weights, l.pack(kernels.WeightSpec{Name: run[0].Name, Parts: run}))
	g.widths = append(g.widths, rows)
}

func (l *Loader) pack(s kernels.WeightSpec) kernels.Weight {
	if l.err != nil {
		return nil
	}
	w, err := l.dev.Pack(s)
	if err != nil {
		l.Fail(fmt.Errorf("tensor %s: %w", s.Name, err))
		return nil
	}
	l.bytes += w.Bytes()
	return w
}

// Nil reports whether there is no such layer.
func (g Linear) Nil() bool { return len(g.parts) == 0 }

// Rows is the width of the output.
func (g Linear) Rows() int {
	n := 0
	for _, r := range g.parts {
		n += r
	}
	return n
}

// Part is the columns of an output y that belong to part i.
func (g Linear) Part(y kernels.Mat, i int) kernels.Mat {
	from := 0
	for _, r := range g.parts[:i] {
		from += r
	}
	return y.ColRange(from, g.parts[i])
}

// Forward is y = x W^T; y is [tokens, Rows()].
func (g Linear) Forward(o kernels.Ops, x Input, y kernels.Mat) { g.multiply(o, x, y, false) }

// Add is y += x W^T, the product summed over the devices of a tensor-parallel group.
func (g Linear) Add(o kernels.Ops, x, y kernels.Mat) {
	g.each(o, Ready(x), y, kernels.Linear{Add: true, Reduce: true})
}

func (g Linear) multiply(o kernels.Ops, x Input, y kernels.Mat, add bool) {
	g.each(o, x, y, kernels.Linear{Add: add})
}

// each multiplies by every weight, as p says.
func (g Linear) each(o kernels.Ops, x Input, y kernels.Mat, p kernels.Linear) {
	if len(g.weights) > 1 {
		x = Ready(x.Rows(o))
	}
	from := 0
	for i, w := range g.weights {
		p.Y, p.W = y.ColRange(from, g.widths[i]), w
		x.apply(&p)
		o.Linear(p)
		from += g.widths[i]
	}
}

// ExpertForm is one way in which a checkpoint may store the matrices of its experts: Stacked as [experts, rows, cols]
// tensors, or one [rows, cols] tensor an expert whose name has the expert's number in place of {e}.
type ExpertForm struct {
	Stacked bool
	Parts   []Part
}

func (f ExpertForm) name(part, expert int) string {
	return strings.Replace(f.Parts[part].Name, "{e}", strconv.Itoa(expert), 1)
}

// Experts reads the matrices of all experts in whichever of the forms the checkpoint has; the first is the release's.
func (l *Loader) Experts(experts, cols int, forms ...ExpertForm) kernels.Weight {
	form := forms[0]
	for _, f := range forms {
		if l.Has(f.name(0, 0)) {
			form = f
			break
		}
	}
	var parts []kernels.HostTensor
	for i, p := range form.Parts {
		if form.Stacked {
			t, _ := l.tensor(p.Name, kernels.BF16, model.InitMatrix, experts, p.Rows, cols)
			parts = append(parts, t)
			continue
		}
		for e := range experts {
			t, _ := l.tensor(form.name(i, e), kernels.BF16, model.InitMatrix, p.Rows, cols)
			parts = append(parts, t)
		}
	}
	if l.err != nil || l.record {
		return nil
	}
	for _, t := range parts {
		if t.DType != parts[0].DType {
			l.Fail(fmt.Errorf("tensor %s is %v but %s is %v: experts of mixed types are not supported", parts[0].Name, parts[0].DType, t.Name, t.DType))
		}
	}
	return l.pack(kernels.WeightSpec{Name: parts[0].Name, Experts: experts, Parts: parts})
}
