package engine

import (
	"fmt"
	"time"

	"reprise/kernels"
)

// graph is a step captured for a number of step rows of T tokens, without prefill rows and without log probabilities.
// Rows beyond those of a step are null: they read and write nothing.
type graph struct {
	rows, t         int
	forward, finish kernels.Graph
	drafts          []kernels.Graph // by depth; nil where no step of the engine proposes so many
	lane            *lane           // what the programs were bound to
}

// graphs are the captured steps, by T, in order of rows.
type graphs map[int][]*graph

// buckets are the numbers of rows that steps are captured for: close together where few rows are common, and 16 apart
// where a sixteenth more costs little.
func buckets(most int) []int {
	var out []int
	for n := 1; n < most; {
		out = append(out, n)
		switch {
		case n < 8:
			n *= 2
		case n < 64:
			n += 8
		case n < 256:
			n += 16
		default:
			n += 32
		}
	}
	return append(out, most)
}

// capture prepares the steps of all buckets on a device that gains by it.
func (e *Engine) capture(g geometry) error {
	if !e.dev.Graphs() {
		return nil
	}
	begin, p := time.Now(), GraphPlan{Rows: buckets(g.seqs), T: e.lengths()}
	e.graphs = graphs{}
	for _, t := range p.T {
		for _, rows := range p.Rows {
			if rows*t > g.tokens {
				break
			}
			c, err := e.captureStep(rows, t)
			if err != nil {
				return fmt.Errorf("capturing a step of %d rows x %d: %w", rows, t, err)
			}
			e.graphs[t] = append(e.graphs[t], c)
			c.count(&p)
		}
	}
	p.Took = time.Since(begin)
	e.plan.Graphs = p
	return nil
}

// lengths are the tokens of step rows that steps are captured for: with adaptive depth all that it may choose, else
// plain steps and the deepest.
func (e *Engine) lengths() []int {
	most := e.plan.Window.T
	if most > 1 && e.options.FixedDepth {
		return []int{1, most}
	}
	var out []int
	for t := 1; t <= most; t++ {
		out = append(out, t)
	}
	return out
}

// depths are the drafts that are captured behind every step: what follows a step does not depend on how deep it was.
func (e *Engine) depths() []int {
	if e.drafter == nil {
		return nil
	}
	var out []int
	if e.drafter.Follows() {
		out = append(out, 0)
	}
	for _, t := range e.lengths() {
		if t > 1 {
			out = append(out, t-1)
		}
	}
	return out
}

func (e *Engine) captureStep(rows, t int) (*graph, error) {
	copied := *e.lanes[0] // the device side of both lanes is the same
	l := &copied
	l.omit = e.omit
	e.bind(l, counts{steps: rows, t: t, tokens: rows * t, samples: rows * t})
	forward, finish := e.programs(l)
	g := &graph{rows: rows, t: t, lane: l}
	var err error
	if g.forward, err = e.dev.Capture(forward); err != nil {
		return nil, err
	}
	if g.finish, err = e.dev.Capture(finish); err != nil {
		return g, err
	}
	l.source = l
	g.drafts = make([]kernels.Graph, 1+e.options.Drafts)
	for _, k := range e.depths() {
		e.bindDrafts(l, rows, 0, k)
		if g.drafts[k], err = e.dev.Capture(e.drafting(l)); err != nil {
			return g, err
		}
	}
	return g, nil
}

// count adds a step's graphs to the plan.
func (g *graph) count(p *GraphPlan) {
	for _, c := range append([]kernels.Graph{g.forward, g.finish}, g.drafts...) {
		if c != nil {
			p.Count++
			p.Bytes += c.Bytes()
		}
	}
}

// graph is the captured step that a filled lane fits, padded with null rows; nil if there is none.
func (e *Engine) graph(l *lane) *graph {
	if len(l.prefills) > 0 || l.rows.TopN > 0 {
		return nil
	}
	n := len(l.steps)
	for _, g := range e.graphs[l.plan.T] {
		if g.rows >= n {
			return g
		}
	}
	return nil
}

// pad writes null rows behind the step rows of a lane, so that it can be replayed with more.
func (l *lane) pad(rows int) {
	in, t := &l.in, l.plan.T
	for i := len(l.steps); i < rows; i++ {
		in.stepSlot.host[i], in.want.host[i] = 0, 0
		in.draftSlot.host[i], in.draftWant.host[i] = 0, -1
		for j := range t {
			at := i*t + j
			if at < len(in.coin.host) {
				in.coin.host[at] = -1
			}
			in.rowToken.host[at], in.rowSlot.host[at], in.rowTarget.host[at], in.rowDepth.host[at] = int32(at), 0, -1, int32(j)
		}
	}
}
