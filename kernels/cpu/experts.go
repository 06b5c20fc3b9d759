package cpu

import "reprise/kernels"

// mixture is the memory of Experts: assignments (token, choice) sorted by expert.
type mixture struct {
	tokens  []int32   // token*TopK + choice of each assignment in sorted order
	place   []int32   // where an assignment was sorted to
	counts  []int32   // by expert, then where the next one goes
	experts []int32   // those that were chosen
	starts  []int32   // of their assignments, and the end
	x       []uintptr // row of X of each assignment
	hidden  []float32 // [assignments, rows of Up]
	active  []float32 // [assignments, cols of Down], rows spaced for the tiles
	parts   []float32 // [assignments, cols of Out]

	weights []float32
	topK    int
	out     rows
}

// mixtureBytes bounds the intermediate results of one pass over the experts; more tokens take more passes.
const mixtureBytes = 256 << 20

// Experts runs the chosen experts and sums them by weight.
func (o *ops) Experts(p kernels.Experts) {
	o.enter("Experts")
	must(p.Validate())
	up, down := p.Up.(*weight), p.Down.(*weight)
	size := 4 * p.TopK * (up.rows + rowStride(down.cols) + down.rows)
	each := max(1, mixtureBytes/size)
	for t := 0; t < p.X.Rows; t += each {
		n := min(each, p.X.Rows-t)
		from, count := t*p.TopK, n*p.TopK
		ids, weights := i32(p.IDs)[from:from+count], f32(p.Weights)[from:from+count]
		o.mix(p.X.RowRange(t, n), p.Out.RowRange(t, n), up, down, p.Act, ids, weights)
	}
}

// mix is Experts for some of the tokens.
func (o *ops) mix(in, out kernels.Mat, up, down *weight, act kernels.Activation, ids []int32, weights []float32) {
	x, e, n := rowsOf(in), &o.mixture, len(ids)
	e.topK, e.out, e.weights = n/x.count, rowsOf(out), weights
	most := e.sort(ids, up.experts)
	hidden := rows{grow(e.hidden, n*up.rows), n, up.rows, up.rows}
	active := rows{grow(e.active, n*rowStride(down.cols)), n, down.cols, rowStride(down.cols)}
	parts := rows{grow(e.parts, n*down.rows), n, down.rows, down.rows}
	e.hidden, e.active, e.parts = hidden.data, active.data, parts.data
	o.multiplyExperts(up, e.gather(o.rowsFor(up, x)), hidden, most)
	o.activate(act, hidden, active)
	o.multiplyExperts(down, o.rowsFor(down, active), parts, most)
	o.eachRow(x.count, down.rows*e.topK, o.combineRow)
}

func (o *ops) multiplyExperts(w *weight, x []uintptr, y rows, most int) {
	m := &o.products.task
	m.starts, m.experts = o.mixture.starts, o.mixture.experts
	m.x, m.y, m.add = x, y, false
	m.prepare(w, o.pool.size(), most)
	o.pool.parallel(m.tasks(), m)
}

// sort orders the assignments by expert, keeping their order within one, and returns the largest number of one expert.
func (e *mixture) sort(ids []int32, experts int) (most int) {
	e.counts = grow(e.counts, experts)
	clear(e.counts)
	for _, id := range ids {
		e.counts[id]++
	}
	e.experts, e.starts = e.experts[:0], append(e.starts[:0], 0)
	next := int32(0)
	for id, n := range e.counts {
		e.counts[id] = next
		if n > 0 {
			next += n
			most = max(most, int(n))
			e.experts, e.starts = append(e.experts, int32(id)), append(e.starts, next)
		}
	}
	e.tokens, e.place = grow(e.tokens, len(ids)), grow(e.place, len(ids))
	for i, id := range ids {
		at := e.counts[id]
		e.counts[id]++
		e.tokens[at], e.place[i] = int32(i), at
	}
	return most
}

// gather is the row of X of each assignment, given those of the tokens.
func (e *mixture) gather(x []uintptr) []uintptr {
	e.x = grow(e.x, len(e.tokens))
	for i, t := range e.tokens {
		e.x[i] = x[int(t)/e.topK]
	}
	return e.x
}

// row adds a token's experts up in order of choice.
func (e *mixture) row(t, _ int) {
	out := e.out.row(t)
	clear(out)
	for i := range e.topK {
		from := int(e.place[t*e.topK+i]) * len(out)
		axpy(e.weights[t*e.topK+i], e.parts[from:from+len(out)], out)
	}
}
