//go:build cuda

package cuda

import (
	"fmt"

	"reprise/kernels"
	"reprise/kernels/cuda/driver"
)

// ssmKernels are those of the recurrent layers: src/mamba2*.cu and src/delta*.cu. Two families do a step
// and a scan: walk, for every shape and in float32, and tensor-core kernels for the released shapes in bfloat16. Folds are
// walks.
type ssmKernels struct {
	mamba2  mamba2Kernels
	delta   deltaKernels
	tail    driver.Function // the raw rows behind a scan
	cutTail driver.Function // the same in front of its cuts
	scratch kernels.Buffer  // what the convolution hands to the step kernel
	scans   scanKernels
	choices choices
}

// ssmScratch is enough for the rows of one launch of the step kernels; more rows take several.
const ssmScratch = 32 << 20

// Limits of the kernels.
const (
	walkDim    = 128 // largest HeadDim, State, KeyDim and ValueDim
	walkBlock  = 256 // threads
	stepTokens = 8   // most tokens a row of the step kernels, with
	stepWindow = 32  // the longest window and
	stepKeys   = 128 // this State or KeyDim
	stepTaps   = 4
	tileBytes  = 8 << 10
	keyBytes   = 272 // of a key in shared memory
)

func (k *ssmKernels) load(l *loader) error {
	l.open("mamba2")
	k.mamba2.walk, k.mamba2.norm, k.mamba2.normWide = l.active("mamba2_walk", 0), l.active("mamba2_norm", 0), l.active("mamba2_norm_wide", 0)
	k.tail, k.cutTail = l.active("conv_tail", 0), l.active("cut_tail", 0)
	l.open("delta")
	k.delta.walk = l.active("delta_walk", 0)
	if l.dev.act != kernels.BF16 {
		return nil
	}
	k.mamba2.load(l)
	k.delta.load(l)
	k.scratch, k.choices = l.scratch(ssmScratch), measured()
	k.scans.load(l)
	return nil
}

// stepKernel is one of the kernels that stream checkpoints.
type stepKernel struct {
	function             driver.Function
	heads, warps, stages int // a block; stages are tiles in flight a warp
	shared               int // bytes of shared memory beside the records
	second               int // and where the state has two precisions
	record               int // bytes a record
	fresh                int // bytes a new token besides
	window               int // largest L
	format               kernels.StateFormat
	rings                rings
}

// lowFiles are the ends of the names of the files with the kernels that read a format.
var lowFiles = [...]string{kernels.StateF16: "f16", kernels.StateBF16: "bf16", kernels.StateF8: "f8", kernels.StateNVFP4: "nvfp4"}

// lowStages are the tiles in flight a warp; together they are no more than a float32 tile.
func lowStages(f kernels.StateFormat) int {
	switch f {
	case kernels.StateF8:
		return 4
	case kernels.StateNVFP4:
		return 5
	}
	return 2
}

// Steps from float32 have no more blocks in front than for so many flushes, which slow each other down side by side, and none
// for more rows, whose last flushes are a small part of a launch.
const earlyFlushes, earlyRows = 4, 64

// early is the blocks in front that take what flushes: about as many rows as flush in a step. src/flush_rows.cuh.
func (k *stepKernel) early(s kernels.State, rows, t int) int {
	if k.format == kernels.StateF32 {
		if rows > earlyRows {
			return 0
		}
		return min(earlyFlushes, (rows*t+s.Window.L/2)/(s.Window.L+1))
	}
	return min(rows, ceil(rows*t, s.Window.L+1))
}

// name is what the names of the step kernels end in.
func (k *stepKernel) name(first, window int) string {
	s := fmt.Sprintf("%d_%d_%d_%d_%d", first, window, k.heads, k.warps, k.stages)
	if k.format != kernels.StateF32 {
		s += fmt.Sprintf("_%d", k.format)
	}
	return s
}

// rings are the sizes that a warp's ring has in front of checkpoints below float32 (ring_bytes of src/replay_low.cuh): room
// for tiles of the format that is read, or of a wider copy beside it where there is one, or always.
type rings int

const (
	ringsAsNeeded rings = iota
	ringsNarrow
	ringsWide
)

// lowTile is the bytes of a tile of a format below float32, and those of a value row's scales.
func lowTile(f kernels.StateFormat) (tile, scales int) {
	switch f {
	case kernels.StateF8:
		return tileBytes / 4, 4
	case kernels.StateNVFP4:
		return tileBytes / 8, 8
	}
	return tileBytes / 2, 0
}

// size repeats the sizes of the Configs in src: of heads of dim value rows; scratch of a warp and rest in bytes.
func (k *stepKernel) size(window, dim, scratch, rest int) {
	k.window, k.record = window, k.heads*dim*2+16+keyBytes
	ring := k.stages * tileBytes
	if k.format != kernels.StateF32 {
		ring = k.lowRing()
	}
	k.shared = (k.warps*(ring+8*k.stages+scratch) + rest + 15) &^ 15
	if k.format != kernels.StateF32 {
		_, scales := lowTile(k.format)
		k.shared = (k.shared + k.heads*(dim*scales+4) + 15) &^ 15
		k.fresh += keyBytes
	}
}

// lowRing is the bytes of a warp's ring in front of a checkpoint below float32; second gets what two precisions add to them.
func (k *stepKernel) lowRing() int {
	tile, _ := lowTile(k.format)
	ring := k.stages * tile
	switch k.rings {
	case ringsWide:
		return tileBytes
	case ringsAsNeeded:
		k.second = k.warps * (tileBytes - ring)
	}
	return ring
}

// most is the bytes of shared memory that the kernel may ask for.
func (k *stepKernel) most() int {
	return k.shared + k.second + (k.window+stepTokens)*k.record + stepTokens*k.fresh
}

// config is the launch for rows of t tokens.
func (k *stepKernel) config(p kernels.Precision, blocks, groups, rows, t int) driver.Config {
	c := grid(blocks, groups, rows, k.warps*32)
	c.Shared = uint32(k.shared + (k.window+t)*k.record + t*k.fresh)
	if p.Two() {
		c.Shared += uint32(k.second)
	}
	return c
}

// A way is how a step is done: by how many kernels, and in which blocks of a list.
type way struct{ kernels, blocks int }

// The kernels of a way: convolution, state and, of Mamba-2, norm; or everything in one.
const (
	apart = iota
	whole
)

// A table is the ways that are the fastest for rows up to a number, in order; the last one is for all others.
type table []struct {
	rows int
	way
}

func (t table) pick(rows int) way {
	for _, e := range t {
		if rows <= e.rows {
			return e.way
		}
	}
	return t[len(t)-1].way
}

// fitting is the kernel of a list in the wanted blocks, or in smaller ones that divide a group's heads.
func fitting(list *[2]stepKernel, blocks, headsPerGroup int) *stepKernel {
	for headsPerGroup%list[blocks].heads != 0 {
		blocks--
	}
	return &list[blocks]
}

// choices are how steps are done.
type choices struct {
	spread        int      // up to so many tokens each has threads of its own in a convolution apart
	mamba2, delta [3]table // by tokens up to 1, 4 and 8
}

// measured are the choices for an H200: by BenchmarkLayers up to 64 rows, by BenchmarkSteps above.
func measured() choices {
	return choices{
		spread: 32,
		mamba2: [3]table{
			{{1, way{apart, 0}}, {4, way{whole, 0}}, {8, way{whole, 1}}, {0, way{apart, 1}}},
			{{4, way{apart, 0}}, {0, way{apart, 1}}},
			{{2, way{apart, 0}}, {0, way{apart, 1}}},
		},
		delta: [3]table{
			{{1, way{whole, 1}}, {4, way{whole, 0}}, {0, way{whole, 1}}},
			{{1, way{whole, 1}}, {8, way{whole, 0}}, {0, way{whole, 1}}},
			{{2, way{whole, 0}}, {0, way{whole, 1}}},
		},
	}
}

// tokenClass is 0, 1, 2 for rows of up to 1, 4, 8 tokens; windowClass 0, 1 for windows up to 16, 32.
func tokenClass(t int) int {
	switch {
	case t <= 1:
		return 0
	case t <= 4:
		return 1
	}
	return 2
}

func windowClass(l int) int {
	if l <= 16 {
		return 0
	}
	return 1
}

// replay is struct Replay of src/ssm.cuh.
type replay struct {
	blocks, rings           uint64
	blockStride, ringStride int64
	x, b, decay, conv       int64
	v, beta                 int64
	records, convRows       int32
	limit, layer            int32
	two, stochastic         int32
	hp, lp                  stateArray
	scratch                 uint64
	scratchStride           int64
	scratchOf, stage        uint64
}

// stateArray is struct StateArray of src/checkpoint.cuh.
type stateArray struct {
	values, scales, headScales                   int64
	format, rows, cols, rowBytes, rowScales, pad int32
}

func stateArrayOf(a kernels.StateArray) stateArray {
	return stateArray{a.Values, a.Scales, a.HeadScales, int32(a.Format), int32(a.Rows), int32(a.Cols), int32(a.RowBytes()), int32(a.RowScales()), 0}
}

func replayOf(s kernels.State, r kernels.Rows, c kernels.CheckpointLayout) replay {
	l, p := s.Layout, s.Precision
	return replay{
		blocks: addr(s.Blocks), rings: addr(s.Rings), blockStride: s.BlockStride, ringStride: s.RingStride,
		x: l.X.Offset, b: l.B.Offset, decay: l.Decay.Offset, conv: l.Conv.Offset, v: l.V.Offset, beta: l.Beta.Offset,
		records: int32(l.X.Rows), convRows: int32(l.Conv.Rows), limit: int32(s.Window.L), layer: int32(s.Layer),
		two: flag(p.Two()), stochastic: flag(p.Rounding == kernels.Stochastic), hp: stateArrayOf(c.HP), lp: stateArrayOf(c.LP),
		scratch: addr(s.Scratch), scratchStride: s.ScratchStride, scratchOf: addr(r.Scratch), stage: addr(r.Stage),
	}
}

// front is what ops knows of the kernel that was enqueued last.
type front struct {
	calm  bool    // whatever is older is done when the next kernel starts, but flushes of this layer; it writes activations alone, or besides
	rings uintptr // the rings and blocks of this layer
}

// waited notes a calm kernel, which waited before it let the next one start: what Begin wrote of the rows is there from here
// on, whatever the kernels behind it do.
func (o *ops) waited(rings uintptr) { o.front, o.settled = front{calm: true, rings: rings}, true }

// foreign notes kernels of a library, which may let the next one start before they have waited themselves. Of what step
// kernels read early, only the rows are written in the same program.
func (o *ops) foreign() { o.front = front{calm: o.settled} }

// calmFor is 1 if a step kernel may read the cursors and the layer's rings and blocks before it waits.
func (o *ops) calmFor(s kernels.State) int32 {
	return flag(o.front.calm && o.front.rings != s.Rings.Addr)
}

// Modes of a walk, as in src/ssm.cuh.
const (
	modeStep int32 = iota
	modeScan
	modeFold
)

// replayable requires rings of the device's activations and rows of the kind that the mode takes.
func (o *ops) replayable(r kernels.Rows, s kernels.State, mode int32) {
	if s.Layout.B.DType != o.dev.act {
		panic(fmt.Sprintf("cuda: rings hold %s, the device's activations are %s", s.Layout.B.DType, o.dev.act))
	}
	if mode == modeStep && r.T == 0 {
		panic("cuda: Rows: packed rows, want step rows")
	}
	if mode != modeStep && r.T > 0 {
		panic("cuda: Rows: step rows, want packed rows")
	}
}

// single reports whether a layer's state is one float32 checkpoint.
func single(s kernels.State) bool { return s.Precision.HP == kernels.StateF32 && !s.Precision.Two() }

// walkable requires heads that fit a block's registers.
func walkable(dims ...int) {
	for _, d := range dims {
		if d > walkDim {
			panic(fmt.Sprintf("cuda: heads of %v, at most %d: %v", dims, walkDim, kernels.ErrUnsupported))
		}
	}
}

// streams reports whether the step kernels can do rows of the layer.
func streams(r kernels.Rows, s kernels.State, taps int, convW kernels.Buffer, list ...kernels.Mat) bool {
	return r.T <= stepTokens && s.Window.L <= stepWindow && aligned(s, taps, convW, list...)
}

// aligned reports whether tensor-core kernels can do a layer: four taps, and copies of 16 bytes everywhere.
func aligned(s kernels.State, taps int, convW kernels.Buffer, list ...kernels.Mat) bool {
	for _, m := range list {
		if m.Buf.Addr%16 != 0 || m.Stride*m.DType.Size()%16 != 0 {
			return false
		}
	}
	return taps == stepTaps && (s.Blocks.Addr|s.Rings.Addr|convW.Addr)%16 == 0 && s.BlockStride%16 == 0 && s.RingStride%16 == 0
}

// convKernels are the convolutions of a step: a thread has the only token of four channels, or of eight one of several tokens
// or convSpan.
type convKernels struct{ only, one, span driver.Function }

const convSpan = 4

func (k *convKernels) load(l *loader, family string) {
	k.only = l.kernel(family+"_convolve_one", 0)
	k.one, k.span = l.kernel(family+"_convolve_1", 0), l.kernel(fmt.Sprintf("%s_convolve_%d", family, convSpan), 0)
}

// pick is the launch for rows of t tokens, of so many channels and narrow columns, and the rows that a block takes.
func (k *convKernels) pick(ch *choices, channels, narrow, rows, t int) (driver.Function, driver.Config, int32) {
	const block, processors = 128, 132
	f, span, each, resident := k.span, convSpan, 8, 3*processors
	switch {
	case t == 1:
		f, span, each, resident = k.only, 1, 4, 8*processors
	case rows*t <= ch.spread:
		f, span, resident = k.one, 1, 4*processors
	}
	across, deep := ceil(ceil(channels/each, 32)*32+narrow, block), ceil(t, span)
	perBlock := min(ceil(rows*across*deep, resident), 16)
	return f, grid(across, ceil(rows, perBlock), deep, block), int32(perBlock)
}

// rowSlices calls run for as many rows at a time as scratch memory has room for.
func rowSlices(rows, bytes int, run func(from, to int)) {
	each := min(rows, ssmScratch/bytes)
	for from := 0; from < rows; from += each {
		run(from, min(from+each, rows))
	}
}

// tailParams is struct Tail of src/ssm.cuh.
type tailParams struct {
	rows       rows
	cursors    cursors
	state      replay
	fresh      mat
	cols, taps int32
}

// convTail writes the raw rows that the next token's convolution needs: of cuts first, for they lie partly in the ring.
func (o *ops) convTail(r kernels.Rows, c kernels.Cursors, s kernels.State, fresh kernels.Mat, cols, taps int) {
	p := tailParams{rowsOf(r), cursorsOf(c), replayOf(s, r, kernels.CheckpointLayout{}), matOf(fresh), int32(cols), int32(taps)}
	launch(o, o.ssm.cutTail, grid(ceil(cols, 256), r.Count, r.Cuts.PerRow, 256), cutTail{p, scanCuts(r, s)})
	launch(o, o.ssm.tail, grid(ceil(cols, 256), r.Count, 1, 256), p)
}
