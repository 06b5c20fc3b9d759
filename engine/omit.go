package engine

import (
	"fmt"
	"slices"

	"reprise/kernels"
)

// Kind names operations that Omit can leave out together.
type Kind string

// Kinds of operations; Nothing leaves none out.
const (
	Nothing    Kind = ""
	Products   Kind = "products"
	Norms      Kind = "norms"
	Activation Kind = "activations"
	States     Kind = "state steps"
	Writes     Kind = "KV writes"
	Attention  Kind = "attention"
	MoE        Kind = "experts"
	Sampling   Kind = "sampling"
)

// Kinds lists what can be left out.
func Kinds() []Kind {
	return []Kind{Products, Norms, Activation, States, Writes, Attention, MoE, Sampling}
}

// Omit captures steps of so many rows anew, without the operations of a kind, and reports how many of these a plain step
// has. Only the cost of steps is left to learn from the engine: what it answers means nothing from then on. It is for a
// device with graphs, while no request runs.
func (e *Engine) Omit(kind Kind, rows int) (count int, err error) {
	if !e.dev.Graphs() {
		return 0, fmt.Errorf("%s gains nothing by captured steps, so none can be captured without %s", e.dev.Name(), kind)
	}
	i := slices.IndexFunc(buckets(e.geometry().seqs), func(n int) bool { return n >= rows })
	if i < 0 {
		return 0, fmt.Errorf("steps have at most %d rows, not %d", e.geometry().seqs, rows)
	}
	e.do(func() {
		o := &omitting{kind: kind}
		e.omit = o
		var g *graph
		if g, err = e.captureStep(buckets(e.geometry().seqs)[i], 1); err == nil {
			e.graphs, count = graphs{1: {g}}, o.count
		}
	})
	return count, err
}

// do runs f on the loop's goroutine, between steps.
func (e *Engine) do(f func()) {
	done := make(chan struct{})
	e.tasks <- func() { f(); close(done) }
	e.wakeUp()
	select {
	case <-done:
	case <-e.done:
	}
}

// omitting are operations of which those of a kind do nothing but count.
type omitting struct {
	kernels.Ops
	kind  Kind
	count int
}

// of is the operations to capture with.
func (m *omitting) of(o kernels.Ops) kernels.Ops {
	if m == nil || m.kind == Nothing {
		return o
	}
	m.Ops = o
	return m
}

func (m *omitting) skips(k Kind) bool {
	if m.kind == k {
		m.count++
	}
	return m.kind == k
}

func omit[P any](m *omitting, k Kind, p P, f func(P)) {
	if !m.skips(k) {
		f(p)
	}
}

// The operations that can be left out.
func (m *omitting) Linear(p kernels.Linear)     { omit(m, Products, p, m.Ops.Linear) }
func (m *omitting) Norm(p kernels.Norm)         { omit(m, Norms, p, m.Ops.Norm) }
func (m *omitting) Activate(p kernels.Activate) { omit(m, Activation, p, m.Ops.Activate) }
func (m *omitting) Mamba2Step(p kernels.Mamba2) { omit(m, States, p, m.Ops.Mamba2Step) }
func (m *omitting) DeltaStep(p kernels.Delta)   { omit(m, States, p, m.Ops.DeltaStep) }
func (m *omitting) WriteKV(p kernels.WriteKV)   { omit(m, Writes, p, m.Ops.WriteKV) }
func (m *omitting) Attend(p kernels.Attend)     { omit(m, Attention, p, m.Ops.Attend) }
func (m *omitting) Route(p kernels.Route)       { omit(m, MoE, p, m.Ops.Route) }
func (m *omitting) Experts(p kernels.Experts)   { omit(m, MoE, p, m.Ops.Experts) }
func (m *omitting) AddGated(p kernels.AddGated) { omit(m, MoE, p, m.Ops.AddGated) }
func (m *omitting) Sample(p kernels.Sample)     { omit(m, Sampling, p, m.Ops.Sample) }
