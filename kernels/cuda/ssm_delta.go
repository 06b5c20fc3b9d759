//go:build cuda

package cuda

import (
	"reprise/kernels"
	"reprise/kernels/cuda/driver"
)

// deltaKernels are those of src/delta.cu, delta_convolve.cu, delta_whole.cu and delta_low_*.cu.
type deltaKernels struct {
	walk     driver.Function
	convolve convKernels
	whole    [3][2][2]stepKernel // the convolution too; by tokens up to 1, 4 and 8, window 16 and 32, blocks
	low      [3][2][5]stepKernel // the same, by format instead of blocks
	one      [5]stepKernel       // of one token and windows up to 16 in one precision, with the convolution; by format
	reads    stepKernel          // of one token and windows up to 16 in nvfp4: rows that do not flush,
	flushes  stepKernel          // and the others
}

func (k *deltaKernels) load(l *loader) {
	l.open("delta_convolve")
	k.convolve.load(l, "delta")
	l.open("delta_whole")
	for _, v := range [...]struct{ class, tokens, window int }{{0, 1, 16}, {1, 4, 16}, {1, 4, 32}, {2, 8, 32}} {
		list := &k.whole[v.class][windowClass(v.window)]
		*list = [2]stepKernel{{heads: 1, warps: 8, stages: 1}, {heads: 2, warps: 4, stages: 2}}
		for m := range list {
			s := &list[m]
			s.fresh = 2 * keyBytes
			s.sizeDelta(v.window)
			s.function = l.kernel("delta_whole_"+s.name(v.tokens, v.window), s.most())
		}
	}
	k.whole[0][1], k.whole[2][0] = k.whole[1][1], k.whole[2][1]
	k.loadLow(l)
}

func (k *deltaKernels) loadLow(l *loader) {
	for f := kernels.StateF16; f <= kernels.StateNVFP4; f++ {
		l.open("delta_low_" + lowFiles[f])
		for _, v := range [...]struct{ class, tokens, window int }{{1, 4, 16}, {1, 4, 32}, {2, 8, 32}} {
			s := &k.low[v.class][windowClass(v.window)][f]
			*s = stepKernel{heads: 2, warps: 4, stages: lowStages(f), format: f, fresh: keyBytes, rings: ringsWide}
			s.loadDelta(l, v.tokens, v.window)
		}
		if f == kernels.StateNVFP4 {
			break
		}
		k.one[f] = stepKernel{heads: 2, warps: 2, stages: 2, format: f, fresh: keyBytes, rings: ringsNarrow}
		k.one[f].loadNamed(l, "whole")
	}
	k.reads = stepKernel{heads: 2, warps: 2, stages: 4, format: kernels.StateNVFP4, fresh: keyBytes, rings: ringsNarrow}
	k.reads.loadNamed(l, "reads")
	k.flushes = stepKernel{heads: 2, warps: 8, stages: 2, format: kernels.StateNVFP4, fresh: keyBytes}
	k.flushes.loadNamed(l, "flushes")
	k.low[0] = k.low[1]
	k.low[2][0] = k.low[2][1]
}

// loadNamed finds a kernel of one token and windows up to 16.
func (k *stepKernel) loadNamed(l *loader, name string) {
	k.sizeDelta(16)
	k.function = l.kernel("delta_"+name+"_"+k.name(1, 16), k.most())
}

// loadDelta finds the kernel of a format.
func (k *stepKernel) loadDelta(l *loader, tokens, window int) {
	k.sizeDelta(window)
	k.function = l.kernel("delta_step_"+k.name(tokens, window), k.most())
}

// sizeDelta repeats the sizes of Config in src/delta_step.cuh and of LowConfig in src/delta_low.cuh.
func (k *stepKernel) sizeDelta(window int) {
	rest := k.heads * (window + 16) * 4
	if k.format == kernels.StateF32 {
		rest = k.heads*16*4 + stepKeys*4
		k.fresh += k.heads * stepKeys * 2 // z
	}
	k.size(window, stepKeys, 512, rest)
	if k.format != kernels.StateF32 && k.rings != ringsNarrow {
		side := window / 8 // of the solvers
		k.second += k.heads * (side*(side+1)/2*256 + window*4)
	}
}

// deltaParams is struct Delta of src/delta.cuh.
type deltaParams struct {
	rows                                               rows
	cursors                                            cursors
	state                                              replay
	qkv, z, b, a, out                                  mat
	convW, decayA, dtBias, normW                       uint64
	query, value, beta                                 uint64
	keyHeads, valueHeads, keyDim, valueDim, taps, mode int32
	eps                                                float32
	row0, row1, perBlock, calm                         int32
}

func deltaOf(p kernels.Delta, mode int32) deltaParams {
	d := p.Dims
	return deltaParams{
		rows: rowsOf(p.Rows), cursors: cursorsOf(p.Cursors), state: replayOf(p.State, p.Rows, kernels.DeltaCheckpoint(d, p.State.Precision)), qkv: matOf(p.QKV), z: matOf(p.Z), b: matOf(p.B), a: matOf(p.A), out: matOf(p.Out),
		convW: addr(p.ConvW), decayA: addr(p.DecayA), dtBias: addr(p.DtBias), normW: addr(p.NormW),
		keyHeads: int32(d.KeyHeads), valueHeads: int32(d.ValueHeads), keyDim: int32(d.KeyDim), valueDim: int32(d.ValueDim), taps: int32(d.Taps), mode: mode,
		eps: p.Eps,
	}
}

// DeltaStep is the mixer between the projections for step rows.
func (o *ops) DeltaStep(p kernels.Delta) {
	o.enter("DeltaStep")
	must(p.Validate())
	if p.Rows.Empty() {
		return
	}
	o.deltaInputs(p, modeStep)
	d := p.Dims
	fast := o.dev.act == kernels.BF16 && d.KeyDim == stepKeys && d.ValueDim == stepKeys && p.NormW.Addr%16 == 0
	full := p.State.Precision.Read() == kernels.StateF32
	fast = fast && (full || d.ValueHeads/d.KeyHeads%2 == 0) && streams(p.Rows, p.State, d.Taps, p.ConvW, p.QKV, p.Z, p.Out)
	switch {
	case !fast:
		o.deltaWalk(p, modeStep)
	case full:
		o.deltaWhole(p)
	case !o.deltaOne(p):
		o.deltaStream(p)
	}
}

// DeltaScan is the mixer for prefill rows.
func (o *ops) DeltaScan(p kernels.Delta) {
	o.enter("DeltaScan")
	must(p.Validate())
	if p.Rows.Empty() {
		return
	}
	o.deltaInputs(p, modeScan)
	d := p.Dims
	released := d.KeyDim == stepKeys && d.ValueDim == stepKeys && p.NormW.Addr%16 == 0
	if o.chunks() && released && single(p.State) && aligned(p.State, d.Taps, p.ConvW, p.QKV, p.Z, p.Out) {
		o.deltaChunks(p)
	} else {
		o.deltaWalk(p, modeScan)
	}
	o.convTail(p.Rows, p.Cursors, p.State, p.QKV, p.Dims.Conv(), p.Dims.Taps)
}

// DeltaFold folds the committed records of prefill rows.
func (o *ops) DeltaFold(p kernels.Delta) {
	o.enter("DeltaFold")
	must(p.ValidateFold())
	if p.Rows.Empty() {
		return
	}
	o.replayable(p.Rows, p.State, modeFold)
	o.deltaWalk(p, modeFold)
}

func (o *ops) deltaInputs(p kernels.Delta, mode int32) {
	o.replayable(p.Rows, p.State, mode)
	o.is(p.QKV, "QKV")
	o.is(p.Z, "Z")
	o.is(p.B, "B")
	o.is(p.A, "A")
	o.is(p.Out, "Out")
}

// deltaWalk runs the recurrence token by token, with the gated norm.
func (o *ops) deltaWalk(p kernels.Delta, mode int32) {
	walkable(p.Dims.KeyDim, p.Dims.ValueDim)
	launch(o, o.ssm.delta.walk, grid(p.Dims.ValueHeads, p.Rows.Count, 1, walkBlock), deltaScanOf(p, mode))
}

// deltaWhole does a step from float32 in one kernel.
func (o *ops) deltaWhole(p kernels.Delta) {
	k, d, n, tokens := deltaOf(p, modeStep), p.Dims, p.Rows.Count, tokenClass(p.Rows.T)
	perKey := d.ValueHeads / d.KeyHeads
	s := fitting(&o.ssm.delta.whole[tokens][windowClass(p.State.Window.L)], o.ssm.choices.delta[tokens].pick(n).blocks, perKey)
	k.row1, k.calm = int32(n), o.calmFor(p.State)
	launch(o, s.function, s.config(p.State.Precision, perKey/s.heads, d.KeyHeads, n+s.early(p.State, n, p.Rows.T), p.Rows.T), k)
	o.waited(p.State.Rings.Addr)
}

// deltaStream does a step from below float32: a convolution, then the outputs with the gated norm.
func (o *ops) deltaStream(p kernels.Delta) {
	d, m := p.Dims, &o.ssm.delta
	k, perKey := deltaOf(p, modeStep), d.ValueHeads/d.KeyHeads
	tokens, window := tokenClass(p.Rows.T), windowClass(p.State.Window.L)
	s := &m.low[tokens][window][p.State.Precision.Read()]
	query, value := d.Keys()*2, d.Values()*2
	rowSlices(p.Rows.Count, p.Rows.T*(query+value+4*d.ValueHeads), func(from, to int) {
		all := uint64((to - from) * p.Rows.T)
		k.row0, k.row1 = int32(from), int32(to)
		k.query = addr(o.ssm.scratch)
		k.value = k.query + all*uint64(query)
		k.beta = k.value + all*uint64(value)
		f, c, each := m.convolve.pick(&o.ssm.choices, d.Conv(), d.ValueHeads, to-from, p.Rows.T)
		k.perBlock, k.calm = each, o.calmFor(p.State)
		launch(o, f, c, k)
		if s.format == kernels.StateNVFP4 && tokens == 0 && window == 0 {
			across := perKey / m.flushes.heads
			launch(o, m.flushes.function, m.flushes.config(p.State.Precision, across, d.KeyHeads, o.flushing(&m.flushes, p.State, to-from, across*d.KeyHeads), 1), k)
			launch(o, m.reads.function, m.reads.config(p.State.Precision, perKey/m.reads.heads, d.KeyHeads, to-from, 1), k)
			return
		}
		launch(o, s.function, s.config(p.State.Precision, perKey/s.heads, d.KeyHeads, to-from+s.early(p.State, to-from, p.Rows.T), p.Rows.T), k)
	})
	o.waited(p.State.Rings.Addr)
}

// flushing is how many rows that flush have blocks at once: those of rows that stand evenly in their windows, and more where
// that leaves multiprocessors idle, since sequences that began together flush together. across: blocks of a row.
func (o *ops) flushing(k *stepKernel, s kernels.State, rows, across int) int {
	return min(rows, max(k.early(s, rows, 1), ceil(2*o.dev.gpu.Processors, across)))
}

// deltaOne does a step of one token below float32 in one kernel; false if none does it.
func (o *ops) deltaOne(p kernels.Delta) bool {
	s := &o.ssm.delta.one[p.State.Precision.Read()]
	if s.heads == 0 || p.Rows.T > 1 || windowClass(p.State.Window.L) > 0 || p.State.Precision.Two() {
		return false
	}
	k, d, n := deltaOf(p, modeStep), p.Dims, p.Rows.Count
	k.row1, k.calm = int32(n), o.calmFor(p.State)
	launch(o, s.function, s.config(p.State.Precision, d.ValueHeads/d.KeyHeads/s.heads, d.KeyHeads, n+s.early(p.State, n, 1), 1), k)
	o.waited(p.State.Rings.Addr)
	return true
}
