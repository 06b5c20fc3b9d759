package ref

import (
	"slices"

	"reprise/kernels"
)

// mamba2 is a layer resolved to memory; models.md 1.c has the mathematics.
type mamba2[F real] struct {
	layer[F]
	kernels.Mamba2
	z, xbc, dt, out               matrix[F]
	convW, convB, a, d, dtB, norm []F
}

// mamba2Token is what one token gives the recurrence.
type mamba2Token[F real] struct{ x, b, dt []F }

func (o ops[F]) mamba2(p kernels.Mamba2) mamba2[F] {
	d := p.Dims
	return mamba2[F]{
		layer: o.layer(p.State, kernels.Mamba2Checkpoint(d, p.State.Precision)), Mamba2: p,
		z: o.matrix(p.Z), xbc: o.matrix(p.XBC), dt: o.matrix(p.Dt), out: o.matrix(p.Out),
		convW: o.floats(p.ConvW, d.Conv()*d.Taps), convB: o.floats(p.ConvB, d.Conv()),
		a: o.floats(p.A, d.Heads), d: o.floats(p.D, d.Heads), dtB: o.floats(p.DtBias, d.Heads), norm: o.floats(p.NormW, d.Inner()),
	}
}

func (o ops[F]) Mamba2Step(p kernels.Mamba2) {
	o.begin("Mamba2Step", requireStep(p.Rows, p.Validate()))
	m := o.mamba2(p)
	for _, s := range o.sequences(p.Rows, p.Cursors) {
		s.zeroPadding(m.out.zero)
		if s.n > 0 {
			m.step(s)
		}
	}
}

func (o ops[F]) Mamba2Scan(p kernels.Mamba2) {
	o.begin("Mamba2Scan", requirePacked(p.Rows, p.Validate()))
	m := o.mamba2(p)
	for _, s := range o.sequences(p.Rows, p.Cursors) {
		if s.n > 0 {
			m.scan(s)
		}
	}
}

func (o ops[F]) Mamba2Fold(p kernels.Mamba2) {
	o.begin("Mamba2Fold", requirePacked(p.Rows, p.ValidateFold()))
	m := o.mamba2(p)
	for _, s := range o.sequences(p.Rows, p.Cursors) {
		if s.n > 0 && s.H > 0 {
			m.keepFolded(s, m.replayed(s, m.carried(s)))
		}
	}
}

// replayed is a checkpoint with the committed records folded in.
func (m mamba2[F]) replayed(s sequence, state []F) []F {
	for i := range int(s.H) {
		m.update(state, m.recorded(s.slot, int(s.Origin)+i))
	}
	return state
}

func (m mamba2[F]) recorded(slot, token int) mamba2Token[F] {
	l := m.Layout
	return mamba2Token[F]{m.ring(slot, l.X).get(token), m.ring(slot, l.B).get(token), m.ring(slot, l.Decay).get(token)}
}

func (m mamba2[F]) step(s sequence) {
	state := m.replayed(s, m.read(s))
	if s.flushes(m.Window) {
		m.store(s.Dst, state, s.position())
	}
	l := m.Layout
	x, b, dt := m.ring(s.slot, l.X), m.ring(s.slot, l.B), m.ring(s.slot, l.Decay)
	m.run(s, state, func(token int, r mamba2Token[F]) {
		x.at(token).store(r.x)
		b.at(token).store(r.b)
		dt.at(token).store(r.dt)
	})
}

func (m mamba2[F]) scan(s sequence) {
	state := m.start(s)
	m.run(s, state, func(int, mamba2Token[F]) {})
	m.keepScanned(s, state)
}

// run is the recurrence over the row's tokens.
func (m mamba2[F]) run(s sequence, state []F, record func(token int, r mamba2Token[F])) {
	h := history[F]{m.ring(s.slot, m.Layout.Conv), s, m.xbc}
	for j := range s.n {
		token := s.position() + j
		conv := h.convolve(token, m.Dims.Taps, m.convW, m.convB)
		r, c := m.token(conv, m.dt.get(s.first+j))
		record(token, r)
		m.update(state, r)
		m.out.put(s.first+j, m.output(state, r, c, m.z.get(s.first+j)))
		m.keepCuts(h, j+1, m.Dims.Taps, state)
	}
	h.keep()
}

// token splits a convolved row into the record, rounded as it is stored, and C, rounded like B.
func (m mamba2[F]) token(conv, dt []F) (mamba2Token[F], []F) {
	inner, bc := m.Dims.Inner(), m.Dims.Groups*m.Dims.State
	for h := range dt {
		dt[h] = max(softplus(dt[h]+m.dtB[h]), F(m.DtMin))
		if m.DtMax > 0 {
			dt[h] = min(dt[h], F(m.DtMax))
		}
	}
	l := m.Layout
	r := mamba2Token[F]{round(l.X.DType, conv[:inner]), round(l.B.DType, conv[inner:inner+bc]), round(l.Decay.DType, dt)}
	return r, round(l.B.DType, conv[inner+bc:])
}

// group is group g's part of B or C.
func (m mamba2[F]) group(x []F, head int) []F {
	g := head / (m.Dims.Heads / m.Dims.Groups)
	return x[g*m.Dims.State : (g+1)*m.Dims.State]
}

// update is S = exp(dt A) S + dt x B^T, head by head.
func (m mamba2[F]) update(state []F, r mamba2Token[F]) {
	n := m.Dims.State
	for head, dt := range r.dt {
		decay, b := exp(dt*m.a[head]), m.group(r.b, head)
		for i := head * m.Dims.HeadDim; i < (head+1)*m.Dims.HeadDim; i++ {
			in := dt * r.x[i]
			for j := range n {
				state[i*n+j] = decay*state[i*n+j] + in*b[j]
			}
		}
	}
}

// output is the norm, by group, of (S C + D x) silu(z).
func (m mamba2[F]) output(state []F, r mamba2Token[F], c, z []F) []F {
	n := m.Dims.State
	y := make([]F, len(r.x))
	for i, x := range r.x {
		head := i / m.Dims.HeadDim
		y[i] = (dot(state[i*n:(i+1)*n], m.group(c, head)) + m.d[head]*x) * silu(z[i])
	}
	size := len(y) / m.Dims.Groups
	var out []F
	for g := range m.Dims.Groups {
		out = slices.Concat(out, normalise(y[g*size:(g+1)*size], m.norm[g*size:(g+1)*size], F(m.Eps)))
	}
	return out
}
