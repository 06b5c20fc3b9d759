//go:build cuda

package cuda

import (
	"reprise/kernels"
	"reprise/kernels/cuda/driver"
)

// mamba2Kernels are those of src/mamba2.cu and src/mamba2_step.cu.
type mamba2Kernels struct {
	walk, norm, normWide driver.Function
	convolve             convKernels
	step                 [2][2][3]stepKernel // by HeadDim 64 and 80, window 16 and 32, rows
	low                  [2][2][5]stepKernel // the same, by format
}

func (k *mamba2Kernels) load(l *loader) {
	l.open("mamba2_step")
	k.convolve.load(l, "mamba2")
	for i, dim := range [...]int{64, 80} {
		for j, window := range [...]int{16, 32} {
			k.step[i][j] = [3]stepKernel{{heads: 1, warps: dim / 16, stages: 1}, {heads: 4, warps: 4, stages: 2}, {heads: 4, warps: 4, stages: 1}}
			for m := range k.step[i][j] {
				k.step[i][j][m].loadMamba2(l, dim, window)
			}
		}
	}
	k.loadLow(l)
}

func (k *mamba2Kernels) loadLow(l *loader) {
	l.open("mamba2_low")
	for i, dim := range [...]int{64, 80} {
		for j, window := range [...]int{16, 32} {
			for f := kernels.StateF16; f <= kernels.StateNVFP4; f++ {
				s := &k.low[i][j][f]
				*s = stepKernel{heads: 4, warps: 4, stages: lowStages(f), format: f}
				s.loadMamba2(l, dim, window)
			}
		}
	}
}

// loadMamba2 finds the kernel; the sizes are those of Config in src/mamba2_step.cuh.
func (k *stepKernel) loadMamba2(l *loader, dim, window int) {
	k.size(window, dim, 256, k.heads*(window+10)*4)
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
	}
	o.mamba2Norm(p)
	o.front = front{calm: true, rings: p.State.Rings.Addr}
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
	if o.chunks() && released && whole(p.State) && aligned(p.State, d.Taps, p.ConvW, p.XBC, p.Out) {
		o.mamba2Chunks(p)
	} else {
		o.mamba2Walk(p, modeScan)
	}
	o.convTail(p.Rows, p.Cursors, p.State, p.XBC, p.Dims.Conv(), p.Dims.Taps)
	o.mamba2Norm(p)
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
	launch(o, o.ssm.mamba2.walk, grid(p.Dims.Heads, p.Rows.Count, 1, walkBlock), mamba2Of(p, mode))
}

// mamba2Stream computes a step's outputs from checkpoints and records.
func (o *ops) mamba2Stream(p kernels.Mamba2) {
	d, m := p.Dims, &o.ssm.mamba2
	k, perGroup := mamba2Of(p, modeStep), d.Heads/d.Groups
	k.query = addr(o.ssm.scratch)
	dim := 0
	if d.HeadDim == 80 {
		dim = 1
	}
	s := o.ssm.choices.pick(&m.step[dim][windowClass(p.State.Window.L)], p.Rows.Count, perGroup)
	if f := p.State.Precision.Read(); f != kernels.StateF32 {
		s = &m.low[dim][windowClass(p.State.Window.L)][f]
	}
	rowSlices(p.Rows.Count, p.Rows.T*d.Groups*d.State*2, func(from, to int) {
		k.row0, k.row1 = int32(from), int32(to)
		f, c, each := m.convolve.pick(&o.ssm.choices, d.Conv()/8+d.Heads, to-from, p.Rows.T)
		k.perBlock, k.calm = each, o.calmFor(p.State)
		launch(o, f, c, k)
		launch(o, s.function, s.config(perGroup/s.heads, d.Groups, to-from, p.Rows.T), k)
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
