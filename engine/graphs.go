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
	draft           kernels.Graph // of as many drafts as there may be; nil without a drafter
	lane            *lane         // what the programs were bound to
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
	begin, bytes, sizes := time.Now(), int64(0), buckets(g.seqs)
	depths := []int{1}
	if e.plan.Window.T > 1 {
		depths = append(depths, e.plan.Window.T)
	}
	e.graphs = graphs{}
	for _, t := range depths {
		for _, rows := range sizes {
			if rows*t > g.tokens {
				break
			}
			c, err := e.captureStep(rows, t)
			if err != nil {
				return fmt.Errorf("capturing a step of %d rows x %d: %w", rows, t, err)
			}
			e.graphs[t] = append(e.graphs[t], c)
			bytes += c.bytes()
		}
	}
	e.plan.Graphs = GraphPlan{Rows: sizes, T: depths, Bytes: bytes, Took: time.Since(begin)}
	return nil
}

func (e *Engine) captureStep(rows, t int) (*graph, error) {
	copied := *e.lanes[0] // the device side of both lanes is the same
	l := &copied
	e.bind(l, counts{steps: rows, t: t, tokens: rows * t, samples: rows * t})
	forward, finish := e.programs(l)
	g := &graph{rows: rows, t: t, lane: l}
	var err error
	if g.forward, err = e.dev.Capture(forward); err != nil {
		return nil, err
	}
	if g.finish, err = e.dev.Capture(finish); err != nil || e.drafter == nil {
		return g, err
	}
	e.bindDrafts(l, rows, 0, e.options.Drafts)
	l.source = l
	g.draft, err = e.dev.Capture(e.drafting(l))
	return g, err
}

func (g *graph) bytes() int64 {
	n := g.forward.Bytes() + g.finish.Bytes()
	if g.draft != nil {
		n += g.draft.Bytes()
	}
	return n
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
			in.rowToken.host[at], in.rowSlot.host[at], in.rowTarget.host[at], in.rowDepth.host[at] = int32(at), 0, -1, int32(j)
		}
	}
}
