//go:build cuda

package cuda

import (
	"fmt"

	"reprise/kernels"
	"reprise/kernels/cuda/driver"
)

// mamba2Kernels are those of src/mamba2.cu, mamba2_step.cu, mamba2_whole.cu and mamba2_low_*.cu.
type mamba2Kernels struct {
	walk, norm, normWide driver.Function
	convolve             convKernels
	step                 [2][2][2]stepKernel // by HeadDim 64 and 80, window 16 and 32, blocks
	low                  [2][2][5]stepKernel // the same, by format
	dense                [5]stepKernel       // of one token, windows up to 16 and one precision, by format: more blocks a processor
	whole                [2][2]stepKernel    // of one token and windows up to 16 in one kernel; by HeadDim, blocks
}

func (k *mamba2Kernels) load(l *loader) {
	l.open("mamba2_step")
	k.convolve.load(l, "mamba2")
	for i, dim := range [...]int{64, 80} {
		for j, window := range [...]int{16, 32} {
			k.step[i][j] = [2]stepKernel{{heads: 1, warps: dim / 16, stages: 1}, {heads: 4, warps: 4, stages: 2}}
			for m := range k.step[i][j] {
				k.step[i][j][m].loadMamba2(l, dim, window)
			}
		}
	}
	k.loadLow(l)
	k.loadWhole(l)
}

// clusterHeads is the most heads of a group whose blocks fit a cluster; sumBytes the sums of squares of eight tokens of all of
// them.
const (
	clusterHeads = 16
	sumBytes     = clusterHeads * stepTokens * 4
)

func (k *mamba2Kernels) loadWhole(l *loader) {
	l.open("mamba2_whole")
	for i, dim := range [...]int{64, 80} {
		k.whole[i] = [2]stepKernel{{heads: 2, warps: 4, stages: 2}, {heads: 4, warps: 4, stages: 2}}
		for m := range k.whole[i] {
			s := &k.whole[i][m]
			s.fresh = keyBytes + s.heads*dim*2 // C and z
			s.sizeMamba2(dim, 16)
			s.shared += sumBytes
			s.function = l.kernel(fmt.Sprintf("mamba2_whole_%d_%s", dim, s.name(1, 16)), s.most())
		}
	}
}

func (k *mamba2Kernels) loadLow(l *loader) {
	for f := kernels.StateF16; f <= kernels.StateNVFP4; f++ {
		l.open("mamba2_low_" + lowFiles[f])
		for i, dim := range [...]int{64, 80} {
			for j, window := range [...]int{16, 32} {
				s := &k.low[i][j][f]
				*s = stepKernel{heads: 4, warps: 4, stages: lowStages(f), format: f}
				s.loadMamba2(l, dim, window)
			}
		}
		if f < kernels.StateF8 {
			continue
		}
		s := &k.dense[f]
		*s = stepKernel{heads: 4, warps: 4, stages: 2, format: f}
		if f == kernels.StateNVFP4 {
			s.stages = lowStages(f)
		}
		s.sizeMamba2(80, 16)
		s.function = l.kernel("mamba2_dense_"+s.name(80, 16), s.most())
	}
}

// sizeMamba2 repeats the sizes of Config in src/mamba2_step.cuh and of LowConfig in src/mamba2_low.cuh.
func (k *stepKernel) sizeMamba2(dim, window int) {
	k.size(window, dim, 256, k.heads*(window+10)*4)
}

// loadMamba2 finds the kernel.
func (k *stepKernel) loadMamba2(l *loader, dim, window int) {
	k.sizeMamba2(dim, window)
	k.function = l.kernel("mamba2_step_"+k.name(dim, window), k.most())
}

// mamba2Params is struct Mamba2 of src/mamba2.cuh.
type mamba2Params struct {
	rows                                     rows
	cursors                                  cursors
	state                                    replay
	z, xbc, dt, out                          mat
	convW, convB, a, d, dtBias, normW, query uint64
	heads, dim, keys, groups, taps, mode     int32
	dtMin, dtMax, eps                        float32
	row0, row1, perBlock, calm               int32
}

func mamba2Of(p kernels.Mamba2, mode int32) mamba2Params {
	d := p.Dims
	return mamba2Params{
		rows: rowsOf(p.Rows), cursors: cursorsOf(p.Cursors), state: replayOf(p.State, p.Rows, kernels.Mamba2Checkpoint(d, p.State.Precision)), z: matOf(p.Z), xbc: matOf(p.XBC), dt: matOf(p.Dt), out: matOf(p.Out),
		convW: addr(p.ConvW), convB: addr(p.ConvB), a: addr(p.A), d: addr(p.D), dtBias: addr(p.DtBias), normW: addr(p.NormW),
		heads: int32(d.Heads), dim: int32(d.HeadDim), keys: int32(d.State), groups: int32(d.Groups), taps: int32(d.Taps), mode: mode,
		dtMin: p.DtMin, dtMax: p.DtMax, eps: p.Eps,
	}
}

// Mamba2Step is the mixer between the projections for step rows.
func (o *ops) Mamba2Step(p kernels.Mamba2) {
	o.enter("Mamba2Step")
	must(p.Validate())
	if p.Rows.Empty() {
		return
	}
	o.mamba2Inputs(p, modeStep)
	d := p.Dims
	fast := o.dev.act == kernels.BF16 && d.State == stepKeys && (d.HeadDim == 64 || d.HeadDim == 80)
	fast = fast && (p.State.Precision.Read() == kernels.StateF32 || d.Heads/d.Groups%4 == 0)
	if fast && streams(p.Rows, p.State, d.Taps, p.ConvW, p.XBC, p.Out) {
		o.mamba2Stream(p)
	} else {
		o.mamba2Walk(p, modeStep)
		o.mamba2Norm(p)
	}
	o.waited(p.State.Rings.Addr)
}

// Mamba2Scan is the mixer for prefill rows.
func (o *ops) Mamba2Scan(p kernels.Mamba2) {
	o.enter("Mamba2Scan")
	must(p.Validate())
	if p.Rows.Empty() {
		return
	}
	o.mamba2Inputs(p, modeScan)
	d := p.Dims
	released := d.State == stepKeys && (d.HeadDim == 64 || d.HeadDim == 80 || d.HeadDim == 128)
	if o.chunks() && released && single(p.State) && aligned(p.State, d.Taps, p.ConvW, p.XBC, p.Out) {
		o.mamba2Chunks(p)
	} else {
		o.mamba2Walk(p, modeScan)
	}
	o.convTail(p.Rows, p.Cursors, p.State, p.XBC, p.Dims.Conv(), p.Dims.Taps)
	o.mamba2ScanNorm(p)
}

// Mamba2Fold folds the committed records of prefill rows.
func (o *ops) Mamba2Fold(p kernels.Mamba2) {
	o.enter("Mamba2Fold")
	must(p.ValidateFold())
	if p.Rows.Empty() {
		return
	}
	o.replayable(p.Rows, p.State, modeFold)
	o.mamba2Walk(p, modeFold)
}

func (o *ops) mamba2Inputs(p kernels.Mamba2, mode int32) {
	o.replayable(p.Rows, p.State, mode)
	o.is(p.Z, "Z")
	o.is(p.XBC, "XBC")
	o.is(p.Dt, "Dt")
	o.is(p.Out, "Out")
}

// mamba2Walk runs the recurrence token by token.
func (o *ops) mamba2Walk(p kernels.Mamba2, mode int32) {
	walkable(p.Dims.HeadDim, p.Dims.State)
	launch(o, o.ssm.mamba2.walk, grid(p.Dims.Heads, p.Rows.Count, 1, walkBlock), mamba2ScanOf(p, mode))
}

// mamba2Way is how a step is done: in one kernel only of one token, and where a cluster of blocks can have a group's heads, for
// the norm.
func (o *ops) mamba2Way(p kernels.Mamba2) way {
	d := p.Dims
	w, perGroup := o.ssm.choices.mamba2[tokenClass(p.Rows.T)].pick(p.Rows.Count), d.Heads/d.Groups
	clusters := perGroup <= clusterHeads && perGroup%2 == 0 && wide(d.Inner()/d.Groups, p.Z, p.Out) == 1 && p.NormW.Addr%16 == 0
	if !clusters || p.Rows.T > 1 || p.State.Window.L > 16 || p.State.Precision.Read() != kernels.StateF32 {
		w.kernels = apart
	}
	return w
}

// mamba2Stream computes a step from checkpoints and records.
func (o *ops) mamba2Stream(p kernels.Mamba2) {
	d, m, w, window, dim := p.Dims, &o.ssm.mamba2, o.mamba2Way(p), windowClass(p.State.Window.L), 0
	if d.HeadDim == 80 {
		dim = 1
	}
	perGroup := d.Heads / d.Groups
	list := &m.step[dim][window]
	if w.kernels == whole {
		list = &m.whole[dim]
	}
	s := fitting(list, w.blocks, perGroup)
	if f := p.State.Precision.Read(); f != kernels.StateF32 {
		s = &m.low[dim][window][f]
		if dim == 1 && window == 0 && p.Rows.T == 1 && !p.State.Precision.Two() && m.dense[f].heads > 0 {
			s = &m.dense[f]
		}
	}
	o.mamba2Launch(p, s, w)
	if w.kernels == apart {
		o.mamba2Norm(p)
	}
}

// mamba2Launch runs the kernels of a step, but not a norm that is a kernel of its own.
func (o *ops) mamba2Launch(p kernels.Mamba2, s *stepKernel, w way) {
	d, k := p.Dims, mamba2Of(p, modeStep)
	blocks := d.Heads / d.Groups / s.heads
	k.query = addr(o.ssm.scratch)
	rowSlices(p.Rows.Count, p.Rows.T*d.Groups*d.State*2, func(from, to int) {
		k.row0, k.row1, k.calm = int32(from), int32(to), o.calmFor(p.State)
		if w.kernels == whole {
			c := s.config(p.State.Precision, blocks, d.Groups, to-from, p.Rows.T)
			c.Cluster = uint32(blocks)
			launch(o, s.function, c, k)
			return
		}
		f, c, each := o.ssm.mamba2.convolve.pick(&o.ssm.choices, d.Conv(), d.Heads, to-from, p.Rows.T)
		k.perBlock = each
		launch(o, f, c, k)
		launch(o, s.function, s.config(p.State.Precision, blocks, d.Groups, to-from+s.early(p.State, to-from, p.Rows.T), p.Rows.T), k)
	})
}

// mamba2Norm normalises what the recurrence left in Out.
func (o *ops) mamba2Norm(p kernels.Mamba2) {
	size, f := p.Dims.Inner()/p.Dims.Groups, o.ssm.mamba2.norm
	if wide(size, p.Z, p.Out) == 1 && size <= 1024 && p.NormW.Addr%16 == 0 {
		f = o.ssm.mamba2.normWide
	}
	launch(o, f, grid(p.Rows.Tokens, p.Dims.Groups, 1, 128), mamba2Of(p, modeStep))
}
