package cpu

import "reprise/kernels"

// matmul is a task: groups of tokens are multiplied by a matrix each (one group for a linear, one an expert for a
// mixture). It is cut into blocks of matrix rows, panels of tokens and chunks of columns; how it is cut does not change
// a bit of the result, see dotTile.
type matmul struct {
	scratch []scratch

	weight  *weight
	experts []int32   // matrix of group g
	starts  []int32   // group g has the tokens starts[g] .. starts[g+1]-1
	x       []uintptr // rows of the tokens, length floats each, swizzled as the weight wants
	y       rows      // row of each token
	add     bool      // Y += instead of Y =

	tokens        int // of a tile
	length        int // cols rounded up to whole lanes
	chunk         int // columns of a pass
	block, blocks int // matrix rows a task, tasks a group and panel
	panel, panels int // tokens a task, tasks a group and block
}

const (
	// fewTokens are read as they come; more are packed.
	fewTokens = 3
	// manyTokens pass one by one by all rows of a block, in chunks of chunkColumns that fit the first-level cache. Fewer
	// are passed by the rows one by one, in chunks that keep chunkBytes of them in the second-level cache.
	manyTokens   = 48
	chunkColumns = 1024
	chunkBytes   = 128 << 10
	// A task reads readBytes of a matrix, or keeps keepBytes of it in the second-level cache for many tokens.
	readBytes = 64 << 10
	keepBytes = 128 << 10
	// panelTokens is the range of tokens of a task when there are enough.
	leastPanel = 96
	mostPanel  = 256
)

// paddedLength is n rounded up to whole lanes.
func paddedLength(n int) int { return (n + tileLanes - 1) &^ (tileLanes - 1) }

// rowStride spaces rows of n floats an odd number of cache lines apart: rows a power of two apart would compete for
// the same places in the cache.
func rowStride(n int) int { return (n+15)&^15 | 16 }

// prepare sets everything but the operands; most is the largest number of tokens of a group.
func (m *matmul) prepare(w *weight, workers, most int) {
	m.weight, m.tokens, m.length, m.chunk = w, bestTokens(), paddedLength(w.cols), chunkColumns
	if most < manyTokens {
		m.chunk = max(chunkColumns, min(chunkBytes/(4*most), maxTileLength)&^(chunkColumns-1))
	}
	if m.length < 2*m.chunk {
		m.chunk = min(m.length, maxTileLength)
	}
	groups, size := len(m.starts)-1, w.dtype.Size()
	if !w.direct() {
		size = 4
	}
	if most < manyTokens && w.direct() {
		m.block = readBytes / (m.length * size)
	} else {
		m.block = keepBytes / (m.chunk * size)
	}
	m.block = max(tileRows, min(m.block, w.rows*groups/(4*workers))&^(tileRows-1))
	m.blocks = (w.rows + m.block - 1) / m.block
	m.panels = (most + mostPanel - 1) / mostPanel
	if tasks := m.blocks * groups; tasks < 4*workers {
		m.panels = max(m.panels, min(4*workers/max(1, tasks), most/leastPanel))
	}
	m.panel = (most + m.panels - 1) / m.panels
}

// tasks is the number of tasks.
func (m *matmul) tasks() int { return (len(m.starts) - 1) * m.panels * m.blocks }

// direct reports whether rows of the weight can be multiplied where they are.
func (w *weight) direct() bool { return fits(w.dtype, w.cols) }

// pass is what one task does with a group's tokens [first, last) and matrix rows [from, to).
type pass struct {
	*matmul
	tile        *dotTile
	parts       []part
	from, to    int
	first, last int
	lanes       []float32 // between chunks: [tiles of rows][tiles of tokens]
	wide        []float32 // rows of a chunk that had to be widened
}

func (m *matmul) do(i, worker int) {
	block, rest := i%m.blocks, i/m.blocks
	panel, group := rest%m.panels, rest/m.panels
	first := int(m.starts[group]) + panel*m.panel
	last := min(first+m.panel, int(m.starts[group+1]))
	if first >= last {
		return
	}
	s := &m.scratch[worker]
	p := pass{matmul: m, tile: &s.tile, parts: m.weight.matrix(int(m.experts[group])), first: first, last: last}
	p.from, p.to = block*m.block, min((block+1)*m.block, m.weight.rows)
	p.cut(s)
	for column := 0; column < m.length; column += m.chunk {
		p.chunk(column)
	}
}

// cut takes the memory.
func (p *pass) cut(s *scratch) {
	lanes, wide := 0, 0
	if p.matmul.chunk < p.length {
		lanes = tiles(p.to-p.from, tileRows) * tiles(p.last-p.first, p.tokens) * p.tokens * laneFloats
	}
	if !p.weight.direct() {
		wide = (p.to - p.from) * rowStride(p.matmul.chunk)
	}
	memory := s.take(lanes + wide)
	p.lanes, p.wide = memory[:lanes], memory[lanes:]
}

// tiles is the number of tiles of the given side that cover n.
func tiles(n, side int) int { return (n + side - 1) / side }

// chunk adds the products over columns [column, column+chunk).
func (p *pass) chunk(column int) {
	t := p.tile
	t.n = min(p.matmul.chunk, p.length-column)
	t.begun, t.more = min(column, 1), min(p.length-column-t.n, 1)
	if !p.weight.direct() {
		p.widen(column, t.n)
	}
	if p.last-p.first < manyTokens {
		for r := p.from; r < p.to; r += tileRows {
			p.rows(r, column)
			for token := p.first; token < p.last; token += p.tokens {
				p.multiply(r, token, column)
				t.ahead = 0
			}
		}
		return
	}
	for token := p.first; token < p.last; token += p.tokens {
		for r := p.from; r < p.to; r += tileRows {
			p.rows(r, column)
			t.ahead = 0
			p.multiply(r, token, column)
		}
	}
}

// rows points the tile at matrix rows from r on; the tile's last row stands in for those beyond the block.
func (p *pass) rows(r, column int) {
	t, size := p.tile, p.weight.dtype.Size()
	t.ahead = 0
	if !p.weight.direct() {
		for i := range t.w {
			t.w[i] = address(p.wide) + uintptr(4*rowStride(p.matmul.chunk)*(min(r+i, p.to-1)-p.from))
		}
		return
	}
	for i := range t.w {
		t.w[i] = rowAddress(p.parts, min(r+i, p.to-1), p.weight.cols*size) + uintptr(column*size)
	}
	if r+2*tileRows <= p.to {
		t.ahead = tileRows * p.weight.cols * size
	}
}

// multiply runs the tile for tokens from token on and stores what exists of it.
func (p *pass) multiply(r, token, column int) {
	t, tokens := p.tile, min(p.tokens, p.last-token)
	for i := range tokens {
		t.x[i] = p.x[token+i] + uintptr(4*column)
	}
	if len(p.lanes) > 0 {
		at := (r-p.from)/tileRows*tiles(p.last-p.first, p.tokens) + (token-p.first)/p.tokens
		t.lanes = address(p.lanes[at*p.tokens*laneFloats:])
	}
	dtype := kernels.F32
	if p.weight.direct() {
		dtype = p.weight.dtype
	}
	t.multiply(dtype, tokens)
	if t.more == 0 {
		p.store(r, token, tokens)
	}
}

// store writes the tile's products to Y.
func (p *pass) store(r, token, tokens int) {
	n := min(tileRows, p.to-r)
	for i := range tokens {
		at := (token+i)*p.y.stride + r
		y := p.y.data[at : at+n]
		sums := (*[tileRows]float32)(p.tile.out[i*tileRows:])
		switch {
		case p.add:
			for j := range y {
				y[j] += sums[j]
			}
		case n == tileRows:
			*(*[tileRows]float32)(y) = *sums
		default:
			copy(y, sums[:])
		}
	}
}

// widen writes columns [column, column+n) of the rows as float32, zeros beyond the matrix.
func (p *pass) widen(column, n int) {
	w, stride := p.weight, rowStride(p.matmul.chunk)
	size := w.dtype.Size()
	count := min(n, w.cols-column)
	for r := p.from; r < p.to; r++ {
		row := p.wide[(r-p.from)*stride:][:n]
		at := rowAddress(p.parts, r, w.cols*size) + uintptr(column*size)
		widen(row[:count], elements[byte](at, count*size), w.dtype)
		clear(row[count:])
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
