//go:build cuda

package cuda

import (
	"reprise/kernels"
	"reprise/kernels/cuda/driver"
)

// scanKernels are those of src/mamba2_scan.cu and src/delta_scan.cu: prefill by chunks of tokens on tensor cores.
type scanKernels struct {
	mamba2 struct {
		convolve                           driver.Function
		narrow32, wide32, narrow40, wide40 scanKernel
	}
	delta struct {
		convolve, prepare, norm driver.Function
		preparation             int // bytes of shared memory
		narrow, wide            scanKernel
	}
	scratch    kernels.Buffer
	processors int
}

// scanKernel is one that goes through the chunks of a row.
type scanKernel struct {
	function        driver.Function
	columns, shared int // value columns a block; bytes of shared memory
}

// Sizes of src/scan.cuh and src/delta_scan.cu.
const (
	scanScratch  = 256 << 20 // for the tokens of one launch; more take several
	scanChunk    = 64
	convTokens   = 32
	scanMatrices = 2 * scanChunk * scanChunk * 2 // T and M of a tile
	scanSums     = 2 * scanChunk * 4
	preparation  = 2*scanChunk*keyBytes + 2*scanChunk*(scanChunk+4)*4 + 2*scanSums + 2*scanChunk*4
)

// pitch is the bytes of a row of n numbers in shared memory; as in src/scan.cuh.
func pitch(n int) int { return (n*2/16 | 1) * 16 }

func (k *scanKernels) load(l *loader) {
	k.processors = l.dev.gpu.Processors
	l.open("mamba2_scan")
	m := &k.mamba2
	m.convolve = l.kernel("mamba2_scan_convolve", 0)
	m.narrow32, m.wide32 = l.mamba2Scan("mamba2_scan_32_1", 32), l.mamba2Scan("mamba2_scan_32_2", 64)
	m.narrow40, m.wide40 = l.mamba2Scan("mamba2_scan_40_1", 40), l.mamba2Scan("mamba2_scan_40_2", 80)
	l.open("delta_scan")
	d := &k.delta
	d.convolve, d.prepare, d.norm = l.kernel("delta_scan_convolve", 0), l.kernel("delta_scan_prepare", preparation), l.kernel("delta_scan_norm", 0)
	d.narrow, d.wide = l.deltaScan("delta_scan_1", 32), l.deltaScan("delta_scan_2", 64)
	k.scratch = l.scratch(scanScratch)
}

// mamba2Scan finds the kernel; the size is that of Shape in src/mamba2_scan.cu.
func (l *loader) mamba2Scan(name string, columns int) scanKernel {
	stage := scanChunk * (2*keyBytes + pitch(columns))
	shared := 2*stage + 2*stepKeys*pitch(columns) + 2*3*scanChunk*4
	return scanKernel{l.kernel(name, shared), columns, shared}
}

// deltaScan finds the kernel; the size is that of Shape in src/delta_scan.cu.
func (l *loader) deltaScan(name string, columns int) scanKernel {
	stage := scanChunk*(2*keyBytes+2*pitch(scanChunk)+pitch(columns)) + scanSums
	shared := 2*stage + 2*stepKeys*pitch(columns) + 2*scanChunk*pitch(columns)
	return scanKernel{l.kernel(name, shared), columns, shared}
}

// config is the launch for rows of heads of dim value columns; four warps have 32 or 40 of them.
func (k *scanKernel) config(heads, dim, rows int) driver.Config {
	threads := 128
	if k.columns >= 64 {
		threads = 256
	}
	c := grid(heads*dim/k.columns, rows, 1, threads)
	c.Shared = uint32(k.shared)
	return c
}

// chunks reports whether the scans go by chunks.
func (o *ops) chunks() bool { return o.dev.act == kernels.BF16 && !o.dev.walkScans }

// tokenSlices calls run for as many tokens of the batch at a time as scratch memory has room for, with perTile bytes for
// every chunk and perToken for every token. Many short rows go group by group, since every row begins a tile.
func tokenSlices(r kernels.Rows, perToken, perTile int, run func(r kernels.Rows, from, to int)) {
	rows := r.Count
	if perTile > 0 {
		rows = min(rows, scanScratch/4/perTile)
	}
	each := (scanScratch - (rows+1)*perTile) * scanChunk / (perToken*scanChunk + perTile) &^ (scanChunk - 1)
	for row := 0; row < r.Count; row += rows {
		part := r
		part.Count = min(rows, r.Count-row)
		part.Slot, part.N, part.Start = ints(r.Slot, row, part.Count), ints(r.N, row, part.Count), ints(r.Start, row, part.Count)
		for from := 0; from < r.Tokens; from += each {
			run(part, r.First+from, r.First+min(from+each, r.Tokens))
		}
	}
}

func ints(b kernels.Buffer, from, n int) kernels.Buffer { return b.Slice(int64(4*from), int64(4*n)) }

// tiles bounds the numbers of tiles of n tokens of the rows (src/scan.cuh).
func tiles(rows kernels.Rows, from, to, n int) int { return ceil(to-from, n) + rows.Count }

// pick is the kernel whose blocks share loads, if they are enough for all processors.
func (k *scanKernels) pick(narrow, wide *scanKernel, columns int) *scanKernel {
	if columns/wide.columns >= k.processors {
		return wide
	}
	return narrow
}

// convolution is the launch over tiles of a slice's tokens: 128 threads of eight channels.
func convolution(channels int, r kernels.Rows, from, to int) driver.Config {
	return grid(ceil(channels, 1024), tiles(r, from, to, convTokens), 1, 128)
}

// mamba2Chunks is the recurrence over prefill rows, chunk by chunk.
func (o *ops) mamba2Chunks(p kernels.Mamba2) {
	o.mamba2Slices(p, func(k mamba2Params, r kernels.Rows, from, to int) {
		o.mamba2Convolve(p.Dims, k, r, from, to)
		o.mamba2Recur(p.Dims, k, r)
	})
}

// mamba2Slices calls run for the parts of a batch that scratch memory has room for.
func (o *ops) mamba2Slices(p kernels.Mamba2, run func(k mamba2Params, r kernels.Rows, from, to int)) {
	tokenSlices(p.Rows, p.Dims.Conv()*2, 0, func(r kernels.Rows, from, to int) {
		p.Rows = r
		k := mamba2Of(p, modeScan)
		k.query, k.row0, k.row1 = addr(o.ssm.scans.scratch), int32(from), int32(to)
		run(k, r, from, to)
	})
}

func (o *ops) mamba2Convolve(d kernels.Mamba2Dims, k mamba2Params, r kernels.Rows, from, to int) {
	launch(o, o.ssm.scans.mamba2.convolve, convolution(d.Conv(), r, from, to), k)
}

func (o *ops) mamba2Recur(d kernels.Mamba2Dims, k mamba2Params, r kernels.Rows) {
	m := &o.ssm.scans.mamba2
	narrow, wide := &m.narrow32, &m.wide32
	if d.HeadDim == 80 {
		narrow, wide = &m.narrow40, &m.wide40
	}
	s := o.ssm.scans.pick(narrow, wide, d.Inner()*r.Count)
	launch(o, s.function, s.config(d.Heads, d.HeadDim, r.Count), k)
}

// deltaChunks is the mixer over prefill rows, chunk by chunk.
func (o *ops) deltaChunks(p kernels.Delta) {
	o.deltaSlices(p, func(k deltaParams, r kernels.Rows, from, to int) {
		o.deltaConvolve(p.Dims, k, r, from, to)
		o.deltaPrepare(p.Dims, k, r, from, to)
		o.deltaRecur(p.Dims, k, r)
	})
	o.deltaNorm(p)
}

// deltaSlices calls run for the parts of a batch that scratch memory has room for.
func (o *ops) deltaSlices(p kernels.Delta, run func(k deltaParams, r kernels.Rows, from, to int)) {
	d := p.Dims
	tokenSlices(p.Rows, d.Conv()*2, d.ValueHeads*(scanMatrices+scanSums), func(r kernels.Rows, from, to int) {
		p.Rows = r
		k := deltaOf(p, modeScan)
		k.query, k.row0, k.row1 = addr(o.ssm.scans.scratch), int32(from), int32(to)
		k.value = k.query + uint64((to-from)*d.Conv()*2)
		k.beta = k.value + uint64(tiles(r, from, to, scanChunk)*d.ValueHeads*scanMatrices)
		run(k, r, from, to)
	})
}

func (o *ops) deltaConvolve(d kernels.DeltaDims, k deltaParams, r kernels.Rows, from, to int) {
	launch(o, o.ssm.scans.delta.convolve, convolution(d.Conv(), r, from, to), k)
}

// deltaPrepare computes what chunks need that does not depend on the state.
func (o *ops) deltaPrepare(d kernels.DeltaDims, k deltaParams, r kernels.Rows, from, to int) {
	c := grid(d.KeyHeads, tiles(r, from, to, scanChunk), 1, 128)
	c.Shared = preparation
	launch(o, o.ssm.scans.delta.prepare, c, k)
}

func (o *ops) deltaRecur(d kernels.DeltaDims, k deltaParams, r kernels.Rows) {
	s := o.ssm.scans.pick(&o.ssm.scans.delta.narrow, &o.ssm.scans.delta.wide, d.Values()*r.Count)
	launch(o, s.function, s.config(d.ValueHeads, d.ValueDim, r.Count), k)
}

// deltaNorm normalises what the recurrence left in Out.
func (o *ops) deltaNorm(p kernels.Delta) {
	launch(o, o.ssm.scans.delta.norm, grid(p.Rows.Tokens, ceil(p.Dims.Values(), 1024), 1, 128), deltaOf(p, modeScan))
}
