package ref

import (
	"slices"

	"reprise/kernels"
)

// delta is a Gated DeltaNet layer resolved to memory; models.md 2.c has the mathematics. The state is kept
// transposed: [ValueHeads, ValueDim, KeyDim].
type delta[F real] struct {
	layer[F]
	kernels.Delta
	qkv, z, b, a, out        matrix[F]
	convW, decayA, dtB, norm []F
}

// deltaToken is what one token gives the recurrence: the correction, the normalised keys and the log decays; and what the
// correction is derived from: the value and the write strengths.
type deltaToken[F real] struct{ u, k, g, v, beta []F }

func (o ops[F]) delta(p kernels.Delta) delta[F] {
	d := p.Dims
	return delta[F]{
		layer: o.layer(p.State, kernels.DeltaCheckpoint(d, p.State.Precision)), Delta: p,
		qkv: o.matrix(p.QKV), z: o.matrix(p.Z), b: o.matrix(p.B), a: o.matrix(p.A), out: o.matrix(p.Out),
		convW: o.floats(p.ConvW, d.Conv()*d.Taps), decayA: o.floats(p.DecayA, d.ValueHeads),
		dtB: o.floats(p.DtBias, d.ValueHeads), norm: o.floats(p.NormW, d.ValueDim),
	}
}

func (o ops[F]) DeltaStep(p kernels.Delta) {
	o.begin("DeltaStep", requireStep(p.Rows, p.Validate()))
	m := o.delta(p)
	for _, s := range o.sequences(p.Rows, p.Cursors) {
		s.zeroPadding(m.out.zero)
		if s.n > 0 {
			m.step(s)
		}
	}
}

func (o ops[F]) DeltaScan(p kernels.Delta) {
	o.begin("DeltaScan", requirePacked(p.Rows, p.Validate()))
	m := o.delta(p)
	for _, s := range o.sequences(p.Rows, p.Cursors) {
		if s.n > 0 {
			m.scan(s)
		}
	}
}

func (o ops[F]) DeltaFold(p kernels.Delta) {
	o.begin("DeltaFold", requirePacked(p.Rows, p.ValidateFold()))
	m := o.delta(p)
	for _, s := range o.sequences(p.Rows, p.Cursors) {
		if s.n > 0 && s.H > 0 {
			m.keepFolded(s, m.carriedOn(s))
		}
	}
}

// carriedOn is the recurrence over the committed records: with two precisions their corrections are derived anew, for
// the recorded ones have seen the copy.
func (m delta[F]) carriedOn(s sequence) []F {
	if !m.Precision.Two() {
		return m.replayed(s, m.carried(s))
	}
	state := m.carried(s)
	for i := range int(s.H) {
		r := m.recorded(s.slot, int(s.Origin)+i)
		m.decay(state, r.g)
		m.add(state, m.correction(state, r), r.k)
	}
	return state
}

// replayed is a checkpoint with the committed records folded in.
func (m delta[F]) replayed(s sequence, state []F) []F {
	for i := range int(s.H) {
		r := m.recorded(s.slot, int(s.Origin)+i)
		m.decay(state, r.g)
		m.add(state, r.u, r.k)
	}
	return state
}

func (m delta[F]) recorded(slot, token int) deltaToken[F] {
	get := func(f kernels.Field) []F { return m.ring(slot, f).get(token) }
	l := m.Layout
	r := deltaToken[F]{u: get(l.X), k: get(l.B), g: get(l.Decay)}
	if m.Precision.Two() {
		r.v, r.beta = get(l.V), get(l.Beta)
	}
	return r
}

func (m delta[F]) record(slot, token int, r deltaToken[F]) {
	put := func(f kernels.Field, x []F) { m.ring(slot, f).at(token).store(x) }
	l := m.Layout
	put(l.X, r.u)
	put(l.B, r.k)
	put(l.Decay, r.g)
	if m.Precision.Two() {
		put(l.V, r.v)
		put(l.Beta, r.beta)
	}
}

func (m delta[F]) step(s sequence) {
	state := m.replayed(s, m.read(s))
	if s.flushes(m.Window) {
		m.store(s.Dst, m.carriedOn(s), s.position())
	}
	m.run(s, state, func(token int, r deltaToken[F]) { m.record(s.slot, token, r) })
}

func (m delta[F]) scan(s sequence) {
	state := m.start(s)
	m.run(s, state, func(int, deltaToken[F]) {})
	m.keepScanned(s, state)
}

// run is the recurrence over the row's tokens.
func (m delta[F]) run(s sequence, state []F, record func(token int, r deltaToken[F])) {
	h := history[F]{m.ring(s.slot, m.Layout.Conv), s, m.qkv}
	for j := range s.n {
		token, t := s.position()+j, s.first+j
		conv := h.convolve(token, m.Dims.Taps, m.convW, nil)
		q, r := m.update(state, conv, m.b.get(t), m.a.get(t))
		record(token, r)
		m.out.put(t, m.output(state, q, m.z.get(t)))
		m.keepCuts(h, j+1, m.Dims.Taps, state)
	}
	h.keep()
}

// update advances the state by one token and returns its query and record.
func (m delta[F]) update(state, conv, b, a []F) ([]F, deltaToken[F]) {
	keys, l := m.Dims.Keys(), m.Layout
	q, v := m.unit(conv[:keys]), conv[2*keys:]
	for i := range q {
		q[i] *= rsqrt(F(m.Dims.KeyDim))
	}
	r := deltaToken[F]{k: round(l.B.DType, m.unit(conv[keys:2*keys])), v: v, beta: sigmoids(b)}
	if m.Precision.Two() {
		r.v, r.beta = round(l.V.DType, v), round(l.Beta.DType, r.beta)
	}
	for h := range a {
		a[h] = m.decayA[h] * softplus(a[h]+m.dtB[h])
	}
	r.g = round(l.Decay.DType, a)
	m.decay(state, r.g)
	r.u = round(l.X.DType, m.correction(state, r))
	m.add(state, r.u, r.k)
	return q, r
}

// unit normalises every head of q or k to length one.
func (m delta[F]) unit(x []F) []F {
	out := slices.Clone(x)
	for ; len(x) > 0; x = x[m.Dims.KeyDim:] {
		head := x[:m.Dims.KeyDim]
		scale := rsqrt(dot(head, head) + 1e-6)
		for i := range head {
			out[len(out)-len(x)+i] *= scale
		}
	}
	return out
}

// head is the part of q or k that value channel i uses.
func (m delta[F]) head(x []F, i int) []F {
	d := m.Dims
	key := i / d.ValueDim / (d.ValueHeads / d.KeyHeads)
	return x[key*d.KeyDim : (key+1)*d.KeyDim]
}

func (m delta[F]) line(state []F, i int) []F { return state[i*m.Dims.KeyDim : (i+1)*m.Dims.KeyDim] }

func (m delta[F]) decay(state, g []F) {
	size := m.Dims.KeyDim * m.Dims.ValueDim
	for h := range g {
		factor := exp(g[h])
		for i := h * size; i < (h+1)*size; i++ {
			state[i] *= factor
		}
	}
}

// correction is beta (v - S k) with the decayed state.
func (m delta[F]) correction(state []F, r deltaToken[F]) []F {
	u := make([]F, len(r.v))
	for i, v := range r.v {
		u[i] = r.beta[i/m.Dims.ValueDim] * (v - dot(m.line(state, i), m.head(r.k, i)))
	}
	return u
}

func sigmoids[F real](x []F) []F {
	y := make([]F, len(x))
	for i, v := range x {
		y[i] = sigmoid(v)
	}
	return y
}

func (m delta[F]) add(state, u, k []F) {
	for i := range u {
		line, key := m.line(state, i), m.head(k, i)
		for j := range line {
			line[j] += u[i] * key[j]
		}
	}
}

// output is norm(S q) silu(z), normalised by value head.
func (m delta[F]) output(state, q, z []F) []F {
	out := make([]F, len(z))
	for i := range out {
		out[i] = dot(m.line(state, i), m.head(q, i))
	}
	for from := 0; from < len(out); from += m.Dims.ValueDim {
		copy(out[from:], normalise(out[from:from+m.Dims.ValueDim], m.norm, F(m.Eps)))
	}
	for i := range out {
		out[i] *= silu(z[i])
	}
	return out
}
