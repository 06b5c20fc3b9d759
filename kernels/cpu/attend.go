package cpu

import (
	"math"

	"reprise/kernels"
)

// Attention of one query runs over blocks of keys with an online softmax; each segment of blocks starts anew and the
// segments are merged in order. Blocks and segments lie at fixed token indices, so what a query gets depends on itself
// and its keys alone: not on the other queries, on how a prompt was cut into chunks, or on which worker does which
// segment.
const (
	blockTokens = 64
	tileQueries = 32 // query vectors that share a pass over the keys, unless one token has more
)

// segmentSizes are the tokens of segments: segmentsEach of the first size, then of the second, and the last from there
// on. Short ones share out a short context, and a long one has few enough to keep their results.
var segmentSizes = [...]int{8 * blockTokens, 32 * blockTokens, 128 * blockTokens}

const segmentsEach = 16

// segmentRange is the tokens of segment n.
func segmentRange(n int) (from, to int) {
	for i, size := range segmentSizes {
		if n < segmentsEach || i+1 == len(segmentSizes) {
			from += n * size
			return from, from + size
		}
		from += segmentsEach * size
		n -= segmentsEach
	}
	panic("cpu: no segment sizes")
}

// attention is the memory of Attend.
type attention struct {
	kernels.Attend
	launch
	cache   cache
	cursors cursors
	scratch []scratch
	q, out  rows
	gate    rows

	group    int  // query heads of a KV head
	dim      int  // HeadDim rounded up to tileLanes
	direct   bool // keys are multiplied as stored
	partial  int  // floats of a partial result
	tiles    []queryTile
	segments []segment // only when they are shared out
	partials []float32 // of the segments
	split    bool
}

// queryTile is the queries of some tokens of a row for one KV head, a pass over the keys. Its vectors are numbered
// token by token, head by head.
type queryTile struct {
	slot     int32
	head     int // KV head
	token    int // first token in the batch
	tokens   int
	position int // of the first token in its sequence
	partial  int // first partial of its segments in partials
}

// segment is one segment of a tile.
type segment struct{ tile, index int32 }

// Attend is causal attention over the pages.
func (o *ops) Attend(p kernels.Attend) {
	o.enter("Attend")
	must(p.Validate())
	if p.Rows.Empty() {
		return
	}
	a := &o.attention
	a.set(p)
	a.cut()
	if o.pool.size() > 1 && len(a.tiles) < 4*o.pool.size() {
		a.cutSegments()
	}
	if !a.split {
		o.pool.parallel(len(a.tiles), &o.attendTile)
		return
	}
	o.pool.parallel(len(a.segments), &o.attendSegment)
	o.pool.parallel(len(a.tiles), &o.attendMerge)
}

func (a *attention) set(p kernels.Attend) {
	a.Attend, a.launch, a.cache, a.cursors = p, launchOf(p.Rows), cacheOf(p.KV), cursorsOf(p.Cursors)
	a.q, a.out, a.gate = rowsOf(p.Q), rowsOf(p.Out), rowsOf(p.Gate)
	a.group = p.QHeads / p.KV.Heads
	a.dim = paddedLength(p.KV.HeadDim)
	a.partial = a.dim + 2
	a.direct = fits(p.KV.DType, p.KV.HeadDim)
	a.tiles, a.segments, a.split = a.tiles[:0], a.segments[:0], false
}

// cut lists the tiles and clears the tokens that do not count.
func (a *attention) cut() {
	each := max(1, tileQueries/a.group)
	for r := range a.launch.Count {
		s := a.span(r)
		for j := range s.padding {
			clear(a.out.row(s.first + s.n + j))
		}
		if s.n == 0 {
			continue
		}
		position := int(a.cursors.position(s.slot))
		for head := range a.cache.Heads {
			for j := 0; j < s.n; j += each {
				a.tiles = append(a.tiles, queryTile{s.slot, head, s.first + j, min(each, s.n-j), position + j, 0})
			}
		}
	}
}

// cutSegments shares the segments out if there is more than one of them a tile.
func (a *attention) cutSegments() {
	floats := 0
	for i := range a.tiles {
		t := &a.tiles[i]
		t.partial = floats
		for n := range t.segments() {
			a.segments = append(a.segments, segment{int32(i), int32(n)})
			floats += a.vectors(t) * a.partial
		}
	}
	a.split = len(a.segments) > len(a.tiles)
	if a.split {
		a.partials = grow(a.partials, floats)
	}
}

// end is the number of keys that the last token of t sees.
func (t *queryTile) end() int { return t.position + t.tokens }

// segments is the number of segments that t.end keys take.
func (t *queryTile) segments() int {
	n := 0
	for left, size := t.end(), 0; left > 0; left -= size {
		from, to := segmentRange(n)
		size = to - from
		n++
	}
	return n
}

func (a *attention) vectors(t *queryTile) int { return t.tokens * a.group }

// The tasks of attention.
type (
	attendTile    struct{ *attention }
	attendSegment struct{ *attention }
	attendMerge   struct{ *attention }
)

// do computes a whole tile.
func (a *attendTile) do(i, worker int) {
	t := &a.tiles[i]
	size := a.vectors(t) * a.partial
	w := a.walk(t, worker, 2*size)
	total, next := w.rest[:size], w.rest[size:]
	w.attend(0, total)
	for n := 1; n < t.segments(); n++ {
		w.attend(n, next)
		a.merge(t, total, next)
	}
	a.finish(t, total, w.queries)
}

// do computes one segment of a tile.
func (a *attendSegment) do(i, worker int) {
	t := &a.tiles[a.segments[i].tile]
	w := a.walk(t, worker, 0)
	w.attend(int(a.segments[i].index), a.stored(t, int(a.segments[i].index)))
}

// do merges the segments of a tile.
func (a *attendMerge) do(i, worker int) {
	t := &a.tiles[i]
	total := a.stored(t, 0)
	for n := 1; n < t.segments(); n++ {
		a.merge(t, total, a.stored(t, n))
	}
	a.finish(t, total, a.scratch[worker].take(a.cache.HeadDim))
}

// stored is the partial results of segment n of a tile.
func (a *attention) stored(t *queryTile, n int) []float32 {
	size := a.vectors(t) * a.partial
	return a.partials[t.partial+n*size:][:size]
}

// A partial result is the weighted sum of values [dim], the sum of the weights and the largest score. A query that sees
// nothing of a segment has sum 0 and score -Inf there.
func (a *attention) partialOf(all []float32, vector int) (sum []float32, weight, most *float32) {
	p := all[vector*a.partial:][:a.partial]
	return p[:a.dim], &p[a.dim], &p[a.dim+1]
}

// merge adds the results of a later segment to those of the earlier ones.
func (a *attention) merge(t *queryTile, total, next []float32) {
	for v := range a.vectors(t) {
		sum, weight, most := a.partialOf(total, v)
		nextSum, nextWeight, nextMost := a.partialOf(next, v)
		if *nextWeight == 0 {
			continue
		}
		larger := max(*most, *nextMost)
		factors := [2]float32{*most - larger, *nextMost - larger}
		exp(factors[:], factors[:])
		scale(factors[0], sum)
		axpy(factors[1], nextSum, sum)
		*weight = *weight*factors[0] + *nextWeight*factors[1]
		*most = larger
	}
}

// finish divides by the sum of the weights, applies the gate and writes the output. buffer holds a head.
func (a *attention) finish(t *queryTile, total, buffer []float32) {
	headDim := a.cache.HeadDim
	for v := range a.vectors(t) {
		sum, weight, _ := a.partialOf(total, v)
		token, head := t.token+v/a.group, t.head*a.group+v%a.group
		out := a.out.row(token)[head*headDim:][:headDim]
		factor := 1 / *weight
		for i := range out {
			out[i] = sum[i] * factor
		}
		if a.gate.data != nil {
			gate := buffer[:headDim]
			sigmoid(gate, a.gate.row(token)[head*a.GateStride:][:headDim])
			for i, g := range gate {
				out[i] *= g
			}
		}
	}
}

var minusInfinity = float32(math.Inf(-1))
