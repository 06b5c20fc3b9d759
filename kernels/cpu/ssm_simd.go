package cpu

import (
	"math"
	"unsafe"
)

// tile is a strided matrix of floats: element (i, j) is at i*rows + j*cols.
type tile struct {
	data       []float32
	rows, cols int
}

// grid is a tile of rows that lie stride apart.
func grid(data []float32, stride int) tile { return tile{data, stride, 1} }

// transposed exchanges rows and columns.
func (t tile) transposed() tile { return tile{t.data, t.cols, t.rows} }

// line is row i of a grid that is as wide as its rows lie apart.
func line(t tile, i int) []float32 { return t.data[i*t.rows:][:t.rows] }

func (t tile) at(i, j int) *float32 { return &t.data[i*t.rows+j*t.cols] }

// product is dst [m, n] = beta*src + a b, with a [m, k] and b [k, n]; without data in src, a b. Columns of b, src and
// dst are adjacent; src may be dst. Every element is summed in the order of k, so cutting k changes no bit.
func product(dst tile, beta float32, src, a, b tile, m, n, k int) {
	if m == 0 || n == 0 {
		return
	}
	_ = dst.data[(m-1)*dst.rows+n-1]
	if k > 0 {
		_, _ = a.data[(m-1)*a.rows+(k-1)*a.cols], b.data[(k-1)*b.rows+n-1]
	}
	whole := 0
	if simd >= avx2 && k > 0 {
		whole = n &^ 15
		productWhole(dst, beta, src, a, b, m, whole, k)
	}
	for j := whole; j < n; j++ {
		for i := range m {
			*dst.at(i, j) = element(beta, src, a, b, i, j, k)
		}
	}
}

// smallFactor is how many floats of b stay in the first cache while dst and src stream past.
const smallFactor = 4096

// productWhole is n columns, a multiple of 16.
func productWhole(dst tile, beta float32, src, a, b tile, m, n, k int) {
	height, width := 0, 0
	if simd == avx512 {
		height, width = m&^7, n&^31
		productTiles(dst, beta, src, a, b, tileRange{0, height, 8}, tileRange{0, width, 32}, k)
		productTiles(dst, beta, src, a, b, tileRange{0, height, 4}, tileRange{width, n, 16}, k)
	}
	productTiles(dst, beta, src, a, b, tileRange{height, m, 4}, tileRange{0, n, 16}, k)
}

// tileRange is rows or columns from .. to-1 in steps of a tile.
type tileRange struct{ from, to, step int }

// productTiles goes row by row for a small b, so that a state is read and written in order, else one tile's columns
// after another.
func productTiles(dst tile, beta float32, src, a, b tile, rows, columns tileRange, k int) {
	if k*columns.to <= smallFactor {
		for i := rows.from; i < rows.to; i += rows.step {
			for j := columns.from; j < columns.to; j += columns.step {
				productTile(dst, beta, src, a, b, i, j, min(rows.step, rows.to-i), k)
			}
		}
		return
	}
	for j := columns.from; j < columns.to; j += columns.step {
		for i := rows.from; i < rows.to; i += rows.step {
			productTile(dst, beta, src, a, b, i, j, min(rows.step, rows.to-i), k)
		}
	}
}

// productTile is up to four rows and sixteen columns, or eight rows and thirty-two columns.
func productTile(dst tile, beta float32, src, a, b tile, i, j, rows, k int) {
	var from *float32
	if src.data != nil {
		_, from = src.at(i+rows-1, j+max(16, 4*rows)-1), src.at(i, j)
	}
	switch rows {
	case 8:
		tile8x32(dst.at(i, j), from, a.at(i, 0), b.at(0, j), dst.rows, src.rows, a.rows, a.cols, b.rows, k, beta)
		return
	case 4:
		tile4x16(dst.at(i, j), from, a.at(i, 0), b.at(0, j), dst.rows, src.rows, a.rows, a.cols, b.rows, k, beta)
		return
	}
	for ; rows > 0; rows-- {
		if src.data != nil {
			from = src.at(i, j)
		}
		tile1x16(dst.at(i, j), from, a.at(i, 0), b.at(0, j), a.cols, b.rows, k, beta)
		i++
	}
}

func element(beta float32, src, a, b tile, i, j, k int) float32 {
	var sum float32
	if src.data != nil {
		sum = beta * *src.at(i, j)
	}
	for x := range k {
		sum += *a.at(i, x) * *b.at(x, j)
	}
	return sum
}

// dots is out[i] = row i of a . v, for m rows of len(v); a result does not depend on m.
func dots(out []float32, a tile, v []float32, m int) {
	if m == 0 {
		return
	}
	n := len(v)
	_, _ = out[m-1], a.data[(m-1)*a.rows+n-1]
	whole := 0
	if simd >= avx2 {
		whole = n &^ 7
	}
	if whole == 0 {
		clear(out[:m])
	} else {
		dotsWhole(out, a, v, m, whole)
	}
	if whole == n {
		return
	}
	for i := range m {
		row := a.data[i*a.rows:]
		for j := whole; j < n; j++ {
			out[i] += row[j] * v[j]
		}
	}
}

func dotsWhole(out []float32, a tile, v []float32, m, n int) {
	i := 0
	for ; i+8 <= m; i += 8 {
		dot8(&out[i], a.at(i, 0), &v[0], a.rows, n)
	}
	for ; i < m; i++ {
		dot1(&out[i], a.at(i, 0), &v[0], n)
	}
}

// prefetch asks for n floats that lie ahead floats after p, which may be anywhere.
func prefetch(p *float32, ahead, n int) {
	if simd >= avx2 && n >= 16 {
		prefetch64(p, 4*ahead, n/16)
	}
}

// wholeFloats is how many of n elements the assembly takes: whole eights at every level, so that the levels give the
// same bits.
func wholeFloats(n int) int {
	if simd == generic {
		return 0
	}
	return n &^ 7
}

// siluMul is out = siluOf(z) * y; out may be z or y.
func siluMul(out, z, y []float32) {
	n := wholeFloats(len(out))
	switch {
	case n == 0:
	case simd == avx512:
		siluMul16(&out[0], &z[:n][0], &y[:n][0], n)
	default:
		siluMul8(&out[0], &z[:n][0], &y[:n][0], n)
	}
	for i := n; i < len(out); i++ {
		out[i] = siluOf(z[i]) * y[i]
	}
}

// scaleMul is out = a * x * w; without w, a * x.
func scaleMul(out, x, w []float32, a float32) {
	n := wholeFloats(len(out))
	if n > 0 {
		if _ = x[n-1]; w != nil {
			_ = w[n-1]
		}
		if simd == avx512 {
			scaleMul16(&out[0], &x[0], unsafe.SliceData(w), n, a)
		} else {
			scaleMul8(&out[0], &x[0], unsafe.SliceData(w), n, a)
		}
	}
	for i := n; i < len(out); i++ {
		out[i] = a * x[i]
		if w != nil {
			out[i] *= w[i]
		}
	}
}

// convSilu is one token of a causal depthwise convolution: out = siluOf(bias + sum over taps of w*x), for w
// [len(out), len(x)] and rows x from the oldest to the token's own. bias may be nil.
func convSilu(out, w, bias []float32, x [][]float32) {
	n := 0
	if taps := len(x); simd >= avx2 && taps == 4 {
		n = convSilu4(out, w, bias, x)
	}
	for c := n; c < len(out); c++ {
		var sum float32
		if bias != nil {
			sum = bias[c]
		}
		for k, row := range x {
			sum += w[c*len(x)+k] * row[c]
		}
		out[c] = siluOf(sum)
	}
}

// convSilu4 is convSilu of four taps for a leading part of out, whose length it returns.
func convSilu4(out, w, bias []float32, x [][]float32) int {
	whole, done := len(out)&^7, 0
	_ = w[:4*whole]
	if wide := whole &^ 15; simd == avx512 && wide > 0 {
		convSilu16(&out[0], &w[0], unsafe.SliceData(bias), &x[0][:wide][0], &x[1][:wide][0], &x[2][:wide][0], &x[3][:wide][0], wide)
		done = wide
	}
	if done == whole {
		return whole
	}
	if bias != nil {
		bias = bias[done:whole]
	}
	convSilu8(&out[done], &w[4*done], unsafe.SliceData(bias), &x[0][done:whole][0], &x[1][done:whole][0],
		&x[2][done:whole][0], &x[3][done:whole][0], whole-done)
	return whole
}

func siluOf(x float32) float32 { return x * float32(logistic(float64(x))) }

func logistic(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

// softplus is log(1 + exp(x)), which is x beyond 20.
func softplus(x float64) float64 {
	if x > 20 {
		return x
	}
	return math.Log1p(math.Exp(x))
}

// transpose is dst [n, m] = src [m, n] with rows and columns exchanged.
func transpose(dst, src tile, m, n int) {
	wholeRows, wholeColumns := 0, 0
	if simd >= avx2 {
		wholeRows, wholeColumns = m&^7, n&^7
	}
	for i := 0; i < wholeRows; i += 8 {
		for j := 0; j < wholeColumns; j += 8 {
			_, _ = dst.at(j+7, i+7), src.at(i+7, j+7)
			transpose8(dst.at(j, i), src.at(i, j), dst.rows, src.rows)
		}
	}
	for i := range m {
		from := wholeColumns
		if i >= wholeRows {
			from = 0
		}
		for j := from; j < n; j++ {
			*dst.at(j, i) = *src.at(i, j)
		}
	}
}
