package cpu

import (
	"reprise/kernels"
)

// matmul is a task: groups of tokens are multiplied by a matrix each (one group for a linear, one an expert for a
// mixture). It is cut into blocks of matrix rows and panels of tokens; how it is cut does not change a bit of the
// result, see dotTile.
type matmul struct {
	scratch []scratch

	weight  *weight
	experts []int32   // matrix of group g
	starts  []int32   // group g has the tokens starts[g] .. starts[g+1]-1
	x       []uintptr // rows of the tokens, length floats each
	y       rows      // row of each token
	add     bool      // Y += instead of Y =

	length        int // cols rounded up to tileLanes
	block, blocks int // matrix rows a task, tasks a group and panel
	panel, panels int // tokens a task, tasks a group and block
}

const (
	// wideTokens is the number of tokens from which a block of rows is widened once instead of once a tile.
	wideTokens = 7
	// wideBytes of widened rows stay in the second-level cache while the tokens pass by.
	wideBytes = 192 << 10
	// readBytes is what a task reads of a matrix when there are few tokens.
	readBytes = 64 << 10
	// panelTokens is the least number of tokens worth widening the rows again.
	panelTokens = 96
)

// paddedLength is n rounded up to whole tiles.
func paddedLength(n int) int { return (n + tileLanes - 1) &^ (tileLanes - 1) }

// rowStride spaces rows of n floats an odd number of cache lines apart: rows a power of two apart would compete for
// the same places in the cache.
func rowStride(n int) int { return (n+15)&^15 | 16 }

// prepare sets everything but the operands; most is the largest number of tokens of a group.
func (m *matmul) prepare(w *weight, workers, most int) {
	m.weight, m.length = w, paddedLength(w.cols)
	groups := len(m.starts) - 1
	if most < wideTokens && m.direct() {
		m.block = readBytes / (w.cols * w.dtype.Size())
	} else {
		m.block = wideBytes / (4 * m.length)
	}
	m.block = max(tileRows, min(m.block, w.rows*groups/(4*workers))&^(tileRows-1))
	m.blocks = (w.rows + m.block - 1) / m.block
	m.panels = 1
	if tasks := m.blocks * groups; tasks < 4*workers {
		m.panels = max(1, min(4*workers/max(1, tasks), most/panelTokens))
	}
	m.panel = (most + m.panels - 1) / m.panels
}

// tasks is the number of tasks.
func (m *matmul) tasks() int { return (len(m.starts) - 1) * m.panels * m.blocks }

// direct reports whether rows of the weight can be multiplied where they are.
func (m *matmul) direct() bool { return direct(m.weight.dtype) && m.length == m.weight.cols }

func (m *matmul) do(i, worker int) {
	block, rest := i%m.blocks, i/m.blocks
	panel, group := rest%m.panels, rest/m.panels
	first := int(m.starts[group]) + panel*m.panel
	last := min(first+m.panel, int(m.starts[group+1]))
	if first >= last {
		return
	}
	from := block * m.block
	to := min(from+m.block, m.weight.rows)
	parts := m.weight.matrix(int(m.experts[group]))
	s := &m.scratch[worker]
	if last-first < wideTokens && m.direct() {
		m.narrow(&s.tile, parts, from, to, first, last)
		return
	}
	m.wide(s, parts, from, to, first, last)
}

// narrow multiplies rows where they are: each is read once.
func (m *matmul) narrow(t *dotTile, parts []part, from, to, first, last int) {
	size := m.weight.cols * m.weight.dtype.Size()
	t.n = m.length
	for r := from; r < to; r += tileRows {
		for i := range t.w {
			t.w[i] = rowAddress(parts, min(r+i, to-1), size)
		}
		t.ahead = 0
		if r+2*tileRows <= to {
			t.ahead = tileRows * size
		}
		for token := first; token < last; token += tileTokens {
			m.multiply(t, m.weight.dtype, r, to, token, last)
			t.ahead = 0
		}
	}
}

// wide widens rows [from, to) and passes the tokens by them.
func (m *matmul) wide(s *scratch, parts []part, from, to, first, last int) {
	stride := rowStride(m.length)
	floats := s.take((to - from) * stride)
	widenRows(floats, stride, m.length, parts, m.weight, from, to)
	t := &s.tile
	t.n, t.ahead = m.length, 0
	at := address(floats)
	for token := first; token < last; token += tileTokens {
		for r := from; r < to; r += tileRows {
			for i := range t.w {
				t.w[i] = at + uintptr(4*stride*(min(r+i, to-1)-from))
			}
			m.multiply(t, kernels.F32, r, to, token, last)
		}
	}
}

// multiply runs the tile of rows from r and tokens from token on and stores what exists of it.
func (m *matmul) multiply(t *dotTile, dtype kernels.DType, r, to, token, last int) {
	tokens := min(tileTokens, last-token)
	for i := range tokens {
		t.x[i] = m.x[token+i]
	}
	t.multiply(dtype, tokens)
	n := min(tileRows, to-r)
	for i := range tokens {
		at := (token+i)*m.y.stride + r
		y := m.y.data[at : at+n]
		sums := t.out[i*tileRows : i*tileRows+n]
		if !m.add {
			copy(y, sums)
			continue
		}
		for j, v := range sums {
			y[j] += v
		}
	}
}

// widenRows writes rows [from, to) as float32, padded with zeros to length.
func widenRows(dst []float32, stride, length int, parts []part, w *weight, from, to int) {
	size := w.cols * w.dtype.Size()
	for r := from; r < to; r++ {
		row := dst[(r-from)*stride:][:length]
		widen(row[:w.cols], elements[byte](rowAddress(parts, r, size), size), w.dtype)
		clear(row[w.cols:])
	}
}

// rowAddress is where row r of size bytes is stored.
func rowAddress(parts []part, r, size int) uintptr {
	for i := range parts {
		if p := &parts[i]; r < p.from+p.rows {
			return address(p.data) + uintptr((r-p.from)*size)
		}
	}
	panic("cpu: row beyond the weight")
}
