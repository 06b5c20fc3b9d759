package cpu

import "reprise/kernels"

// walk is a worker's memory while a tile's queries go over keys.
type walk struct {
	a       *attention
	tile    *queryTile
	dot     *dotTile
	lines   *lines
	queries []float32 // [vectors, dim]
	scores  []float32 // [vectors, blockTokens]
	wide    []float32 // [2, blockTokens, dim] keys and values that cannot be read as stored
	rest    []float32
}

// lines are the keys and values of a block of tokens.
type lines struct {
	key, value             [blockTokens]uintptr
	keyFactor, valueFactor [blockTokens]float32 // of F8E4M3
}

// walk prepares a worker for a tile; rest floats are left for the caller.
func (a *attention) walk(t *queryTile, worker, rest int) walk {
	s := &a.scratch[worker]
	vectors, wide := a.vectors(t), 2*blockTokens*a.dim
	memory := s.take(vectors*(a.dim+blockTokens) + wide + rest)
	w := walk{a: a, tile: t, dot: &s.tile, lines: &s.lines}
	w.queries, memory = memory[:vectors*a.dim], memory[vectors*a.dim:]
	w.scores, memory = memory[:vectors*blockTokens], memory[vectors*blockTokens:]
	w.wide, w.rest = memory[:wide], memory[wide:]
	headDim := a.cache.HeadDim
	for v := range vectors {
		query := w.queries[v*a.dim:][:a.dim]
		head := a.q.row(t.token + v/a.group)[(t.head*a.group+v%a.group)*headDim:][:headDim]
		if a.direct && a.cache.DType == kernels.BF16 {
			swizzle(query, head)
			continue
		}
		clear(query[copy(query, head):])
	}
	return w
}

// attend computes the partial results of one segment.
func (w *walk) attend(n int, out []float32) {
	a := w.a
	for v := range a.vectors(w.tile) {
		sum, weight, most := a.partialOf(out, v)
		clear(sum)
		*weight, *most = 0, minusInfinity
	}
	from, to := segmentRange(n)
	to = min(to, w.tile.end())
	for ; from < to; from += blockTokens {
		count := min(blockTokens, to-from)
		w.load(from, count)
		w.score(count)
		for v := range a.vectors(w.tile) {
			if seen := w.seen(v, from, count); seen > 0 {
				sum, weight, most := a.partialOf(out, v)
				w.weigh(w.scores[v*blockTokens:][:seen], sum, weight, most)
			}
		}
		w.addValues(from, count, out)
	}
}

// seen is how many of the keys [from, from+count) a query sees.
func (w *walk) seen(vector, from, count int) int {
	return max(0, min(count, w.tile.position+vector/w.a.group+1-from))
}

// load finds the keys and values of tokens [from, from+count) and widens what the routines cannot read as stored.
func (w *walk) load(from, count int) {
	c, l := &w.a.cache, w.lines
	keyIndex, valueIndex := c.index(keys, w.tile.head, 0), c.index(values, w.tile.head, 0)
	for i := range count {
		page, at := c.place(w.tile.slot, from+i)
		l.key[i], l.value[i] = c.element(page, keyIndex+at), c.element(page, valueIndex+at)
		if c.DType == kernels.F8E4M3 {
			l.keyFactor[i], l.valueFactor[i] = *c.factor(page, keyIndex+at), *c.factor(page, valueIndex+at)
		}
	}
	if !w.a.direct {
		w.widen(l.key[:count], w.wide)
	}
	if !w.a.direct || c.DType != kernels.F32 {
		w.widen(l.value[:count], w.wide[blockTokens*w.a.dim:])
	}
}

// widen replaces stored lines by float32 ones, padded with zeros.
func (w *walk) widen(at []uintptr, dst []float32) {
	c, dim := &w.a.cache, w.a.dim
	for i, from := range at {
		line := dst[i*dim:][:dim]
		widen(line[:c.HeadDim], elements[byte](from, c.line), c.DType)
		clear(line[c.HeadDim:])
		at[i] = address(line)
	}
}

// score fills scores with the scaled products of all queries and the block's keys.
func (w *walk) score(count int) {
	a, t := w.a, w.dot
	dtype := kernels.F32
	if a.direct {
		dtype = a.cache.DType
	}
	t.n, t.ahead, t.begun, t.more = a.dim, 0, 0, 0
	vectors, tokens := a.vectors(w.tile), bestTokens()
	for k := 0; k < count; k += tileRows {
		for i := range t.w {
			t.w[i] = w.lines.key[min(k+i, count-1)]
		}
		for v := 0; v < vectors; v += tokens {
			n := min(tokens, vectors-v)
			for i := range n {
				t.x[i] = address(w.queries[(v+i)*a.dim:])
			}
			t.multiply(dtype, n)
			for i := range n {
				copy(w.scores[(v+i)*blockTokens+k:][:tileRows], t.out[i*tileRows:])
			}
		}
	}
}

// weigh turns a block's scores into weights and adds them to a query's partial result; addValues does the rest.
func (w *walk) weigh(scores, sum []float32, weight, most *float32) {
	a := w.a
	scale(a.Scale, scores)
	if a.cache.DType == kernels.F8E4M3 {
		for i := range scores {
			scores[i] *= w.lines.keyFactor[i]
		}
	}
	larger := max(*most, scores[largest(scores)])
	for i := range scores {
		scores[i] -= larger
	}
	exp(scores, scores)
	if *weight != 0 {
		factor := [1]float32{*most - larger}
		exp(factor[:], factor[:])
		scale(factor[0], sum)
		*weight *= factor[0]
	}
	*weight += total(scores)
	*most = larger
	if a.cache.DType == kernels.F8E4M3 {
		for i := range scores {
			scores[i] *= w.lines.valueFactor[i]
		}
	}
}

// addValues adds the weighted values of a block to the partial results, three queries at a time as far as they see the
// same keys.
func (w *walk) addValues(from, count int, out []float32) {
	vectors := w.a.vectors(w.tile)
	v := 0
	for ; v+3 <= vectors; v += 3 {
		var sum, weights [3][]float32
		common := w.seen(v, from, count)
		for i := range sum {
			sum[i], _, _ = w.a.partialOf(out, v+i)
			weights[i] = w.scores[(v+i)*blockTokens:][:w.seen(v+i, from, count)]
		}
		addRows3(sum, w.lines.value[:common], weights)
		for i := range sum {
			addRows(sum[i], w.lines.value[common:len(weights[i])], weights[i][common:])
		}
	}
	for ; v < vectors; v++ {
		sum, _, _ := w.a.partialOf(out, v)
		seen := w.seen(v, from, count)
		addRows(sum, w.lines.value[:seen], w.scores[v*blockTokens:][:seen])
	}
}

// total is the sum of x in four lanes.
func total(x []float32) float32 {
	var s0, s1, s2, s3 float32
	for ; len(x) >= 4; x = x[4:] {
		s0 += x[0]
		s1 += x[1]
		s2 += x[2]
		s3 += x[3]
	}
	for _, v := range x {
		s0 += v
	}
	return s0 + s1 + (s2 + s3)
}

// addRowsGo adds factor[j] times the row at address row[j] to sum, for all j in order. The length of sum is a multiple
// of tileLanes.
func addRowsGo(sum []float32, row []uintptr, factor []float32) {
	for j, at := range row {
		axpyGo(factor[j], elements[float32](at, len(sum)), sum)
	}
}
