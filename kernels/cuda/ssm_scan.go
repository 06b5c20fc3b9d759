//go:build cuda

package cuda

import (
	"reprise/kernels"
	"reprise/kernels/cuda/driver"
)

// scanKernels are those of src/mamba2_scan.cu and src/delta_scan.cu: prefill by chunks of tokens on tensor cores. Pairs are
// for rows without cuts and with.
type scanKernels struct {
	mamba2 struct {
		convolve       [2]driver.Function
		norm           driver.Function
		scan64, scan80 [2]scanKernel
	}
	delta struct {
		convolve, prepare [2]driver.Function
		norm              driver.Function
		narrow, wide      [2]scanKernel
	}
	scratch    kernels.Buffer
	processors int
}

// scanKernel is one that goes through the chunks of a row.
type scanKernel struct {
	function                 driver.Function
	columns, threads, shared int // value columns a block; threads; bytes of shared memory
}

// Sizes of src/scan.cuh and src/delta_scan.cu.
const (
	scanScratch  = 384 << 20 // for the tokens of one launch; more take several
	scanChunk    = 64
	scanMatrices = 2 * scanChunk * scanChunk * 2 // T and M of a tile
	scanSums     = 2 * scanChunk * 4
	scanTimes    = 4 * scanChunk * 4
	alone        = 116 << 10 // more than half of a multiprocessor's shared memory
	preparation  = 2*scanChunk*(scanChunk+8)*4 + 128 + 4*scanChunk*4
)

// cutsOrNot are the ends of the names of pairs, pair is which of them rows take.
var cutsOrNot = [2]string{"", "_cuts"}

func pair(r kernels.Rows) int32 { return flag(r.Cuts.PerRow > 0) }

func (k *scanKernels) load(l *loader) {
	k.processors = l.dev.gpu.Processors
	l.open("mamba2_scan")
	m := &k.mamba2
	m.norm = l.kernel("mamba2_scan_norm", 0)
	for i, cuts := range cutsOrNot {
		m.convolve[i] = l.kernel("mamba2_scan_convolve"+cuts, 0)
		m.scan64[i], m.scan80[i] = l.mamba2Scan("mamba2_scan_64"+cuts, 64), l.mamba2Scan("mamba2_scan_80"+cuts, 80)
	}
	l.open("delta_scan")
	d := &k.delta
	d.norm = l.kernel("delta_scan_norm", 0)
	for i, cuts := range cutsOrNot {
		d.convolve[i], d.prepare[i] = l.kernel("delta_scan_convolve"+cuts, 0), l.kernel("delta_scan_prepare"+cuts, preparation)
		d.narrow[i], d.wide[i] = l.deltaScan("delta_scan_1"+cuts, 64), l.deltaScan("delta_scan_2"+cuts, 128)
	}
	k.scratch = l.scratch(scanScratch)
}

// mamba2Scan finds the kernel; the size is that of Shape in src/mamba2_scan.cu.
func (l *loader) mamba2Scan(name string, columns int) scanKernel {
	shared := 2*((2*stepKeys+columns)*scanChunk*2+scanTimes) + columns*stepKeys*2 + 2*8
	return scanKernel{l.kernel(name, max(shared, alone)), columns, 128, shared}
}

// deltaScan finds the kernel; the size is that of Shape in src/delta_scan.cu.
func (l *loader) deltaScan(name string, columns int) scanKernel {
	shared := 3*((2*stepKeys+columns)*scanChunk*2+scanMatrices+scanSums) + 6*8 + 3*4
	return scanKernel{l.kernel(name, shared), columns, columns * 2, shared}
}

// config is the launch for rows of heads of dim value columns. Of blocks that could have a multiprocessor each, none shares
// one while another is idle, wherever the kernel in front ended first.
func (k *scanKernel) config(heads, dim, rows, processors int) driver.Config {
	blocks := heads * dim / k.columns
	c := grid(blocks, rows, 1, k.threads)
	c.Shared = uint32(k.shared)
	if blocks*rows <= processors {
		c.Shared = max(c.Shared, alone)
	}
	return c
}

// chunks reports whether the scans go by chunks.
func (o *ops) chunks() bool { return o.dev.act == kernels.BF16 && !o.dev.walkScans }

// tokenSlices calls run for equal parts of the batch's tokens that scratch memory has room for, with perTile bytes for
// every chunk; for those of MaxCuts+3 tiles at least. Many short rows go group by group, since every piece of a row begins a
// tile.
func (k *scanKernels) tokenSlices(r kernels.Rows, perTile int, run func(r kernels.Rows, from, to int)) {
	room := int(k.scratch.Size) / perTile
	rows := min(r.Count, max(1, room/4/rowPieces(r)))
	each := (room - rows*rowPieces(r) - 1) * scanChunk
	parts := 1 // a power of two: rows of equal length mostly stay whole
	for parts*each < r.Tokens {
		parts *= 2
	}
	each = ceil(ceil(r.Tokens, parts), scanChunk) * scanChunk
	for row := 0; row < r.Count; row += rows {
		part := r
		part.Count = min(rows, r.Count-row)
		part.Slot, part.N, part.Start = ints(r.Slot, row, part.Count), ints(r.N, row, part.Count), ints(r.Start, row, part.Count)
		part.Cuts = cutsOf(r.Cuts, row, part.Count)
		for from := 0; from < r.Tokens; from += each {
			run(part, r.First+from, r.First+min(from+each, r.Tokens))
		}
	}
}

func ints(b kernels.Buffer, from, n int) kernels.Buffer { return b.Slice(int64(4*from), int64(4*n)) }

// cutsOf is the cuts of n rows from one on.
func cutsOf(c kernels.Cuts, row, n int) kernels.Cuts {
	if c.PerRow > 0 {
		c.Place, c.Block = ints(c.Place, row*c.PerRow, n*c.PerRow), ints(c.Block, row*c.PerRow, n*c.PerRow)
	}
	return c
}

// rowPieces is how many a row can be cut into.
func rowPieces(r kernels.Rows) int { return 1 + r.Cuts.PerRow }

// tiles bounds the numbers of tiles of the rows (src/scan.cuh).
func tiles(rows kernels.Rows, from, to int) int {
	return ceil(to-from, scanChunk) + rows.Count*rowPieces(rows)
}

// rowCuts is struct Cuts of src/cuts.cuh.
type rowCuts struct {
	places, blocks, tails uint64
	tailStride            int64
	perRow, _             int32
}

func scanCuts(r kernels.Rows, s kernels.State) rowCuts {
	c := r.Cuts
	if c.PerRow == 0 {
		return rowCuts{}
	}
	return rowCuts{places: addr(c.Place), blocks: addr(c.Block), tails: addr(s.Tails), tailStride: s.TailStride, perRow: int32(c.PerRow)}
}

// Parameters of scans: struct WithCuts of src/cuts.cuh.
type (
	mamba2Scan struct {
		mamba2Params
		cuts rowCuts
	}
	deltaScan struct {
		deltaParams
		cuts rowCuts
	}
	cutTail struct {
		tailParams
		cuts rowCuts
	}
)

func mamba2ScanOf(p kernels.Mamba2, mode int32) mamba2Scan {
	return mamba2Scan{mamba2Of(p, mode), scanCuts(p.Rows, p.State)}
}

func deltaScanOf(p kernels.Delta, mode int32) deltaScan {
	return deltaScan{deltaOf(p, mode), scanCuts(p.Rows, p.State)}
}

// convolution is the launch over halves of the tiles of a slice's tokens: 128 threads of eight channels.
func convolution(channels int, r kernels.Rows, from, to int) driver.Config {
	return grid(ceil(channels, 1024), 2*tiles(r, from, to), 1, 128)
}

// mamba2Chunks is the recurrence over prefill rows, chunk by chunk.
func (o *ops) mamba2Chunks(p kernels.Mamba2) {
	o.mamba2Slices(p, func(k mamba2Scan, r kernels.Rows, from, to int) {
		o.mamba2Convolve(p.Dims, k, r, from, to)
		o.mamba2Recur(p.Dims, k, r)
	})
}

// mamba2Slices calls run for the parts of a batch that scratch memory has room for.
func (o *ops) mamba2Slices(p kernels.Mamba2, run func(k mamba2Scan, r kernels.Rows, from, to int)) {
	o.ssm.scans.tokenSlices(p.Rows, p.Dims.Conv()*scanChunk*2+p.Dims.Heads*scanTimes, func(r kernels.Rows, from, to int) {
		p.Rows = r
		k := mamba2ScanOf(p, modeScan)
		k.query, k.row0, k.row1 = addr(o.ssm.scans.scratch), int32(from), int32(to)
		run(k, r, from, to)
	})
}

func (o *ops) mamba2Convolve(d kernels.Mamba2Dims, k mamba2Scan, r kernels.Rows, from, to int) {
	c := convolution(d.Conv(), r, from, to)
	c.Grid[0] += uint32(ceil(d.Heads, 16)) // time steps
	launch(o, o.ssm.scans.mamba2.convolve[pair(r)], c, k)
}

func (o *ops) mamba2Recur(d kernels.Mamba2Dims, k mamba2Scan, r kernels.Rows) {
	m := &o.ssm.scans.mamba2
	s := &m.scan64[pair(r)]
	if d.HeadDim == 80 {
		s = &m.scan80[pair(r)]
	}
	launch(o, s.function, s.config(d.Heads, d.HeadDim, r.Count, o.ssm.scans.processors), k)
}

// mamba2ScanNorm normalises what the recurrence left in Out for many tokens: a warp has four of a group at a time.
func (o *ops) mamba2ScanNorm(p kernels.Mamba2) {
	size := p.Dims.Inner() / p.Dims.Groups
	if o.dev.act != kernels.BF16 || size > 1024 || wide(size, p.Z, p.Out) == 0 || p.NormW.Addr%16 != 0 {
		o.mamba2Norm(p)
		return
	}
	launch(o, o.ssm.scans.mamba2.norm, grid(ceil(p.Rows.Tokens, 16), p.Dims.Groups, 1, 128), mamba2Of(p, modeScan))
}

// deltaChunks is the mixer over prefill rows, chunk by chunk.
func (o *ops) deltaChunks(p kernels.Delta) {
	o.deltaSlices(p, func(k deltaScan, r kernels.Rows, from, to int) {
		o.deltaConvolve(p.Dims, k, r, from, to)
		o.deltaPrepare(p.Dims, k, r, from, to)
		o.deltaRecur(p.Dims, k, r)
	})
	o.deltaNorm(p)
}

// deltaSlices calls run for the parts of a batch that scratch memory has room for.
func (o *ops) deltaSlices(p kernels.Delta, run func(k deltaScan, r kernels.Rows, from, to int)) {
	d := p.Dims
	o.ssm.scans.tokenSlices(p.Rows, d.Conv()*scanChunk*2+d.ValueHeads*(scanMatrices+scanSums), func(r kernels.Rows, from, to int) {
		p.Rows = r
		k := deltaScanOf(p, modeScan)
		k.query, k.row0, k.row1 = addr(o.ssm.scans.scratch), int32(from), int32(to)
		k.value = k.query + uint64(tiles(r, from, to)*d.Conv()*scanChunk*2)
		k.beta = k.value + uint64(tiles(r, from, to)*d.ValueHeads*scanMatrices)
		run(k, r, from, to)
	})
}

func (o *ops) deltaConvolve(d kernels.DeltaDims, k deltaScan, r kernels.Rows, from, to int) {
	launch(o, o.ssm.scans.delta.convolve[pair(r)], convolution(d.Conv(), r, from, to), k)
}

// deltaPrepare computes what chunks need that does not depend on the state.
func (o *ops) deltaPrepare(d kernels.DeltaDims, k deltaScan, r kernels.Rows, from, to int) {
	c := grid(d.KeyHeads*ceil(d.ValueHeads/d.KeyHeads, 2), tiles(r, from, to), 1, 128)
	c.Shared = preparation
	launch(o, o.ssm.scans.delta.prepare[pair(r)], c, k)
}

func (o *ops) deltaRecur(d kernels.DeltaDims, k deltaScan, r kernels.Rows) {
	m := &o.ssm.scans.delta
	s := &m.wide[pair(r)] // its blocks share loads
	if 2*d.ValueHeads*r.Count <= o.ssm.scans.processors {
		s = &m.narrow[pair(r)]
	}
	launch(o, s.function, s.config(d.ValueHeads, d.ValueDim, r.Count, o.ssm.scans.processors), k)
}

// deltaNorm normalises what the recurrence left in Out.
func (o *ops) deltaNorm(p kernels.Delta) {
	launch(o, o.ssm.scans.delta.norm, grid(p.Rows.Tokens, ceil(p.Dims.Values(), 1024), 1, 128), deltaOf(p, modeScan))
}
