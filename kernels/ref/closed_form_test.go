package ref

import (
	"math"
	"testing"

	"reprise/kernels"
)

// The recurrences are compared with the closed forms of models.md ("chunk form"), which share no step with them.

const tokenCount = 11

// convolved is silu of the causal convolution of x [tokens, channels] from an empty history.
func convolved(x, w, bias []float64, channels, taps int) [][]float64 {
	out := make([][]float64, len(x)/channels)
	for t := range out {
		out[t] = make([]float64, channels)
		for c := range channels {
			sum := 0.0
			if bias != nil {
				sum = bias[c]
			}
			for k := range taps {
				if at := t - (taps - 1) + k; at >= 0 {
					sum += w[c*taps+k] * x[at*channels+c]
				}
			}
			out[t][c] = sum / (1 + math.Exp(-sum))
		}
	}
	return out
}

func inner(x, y []float64) (s float64) {
	for i := range x {
		s += x[i] * y[i]
	}
	return s
}

func rms(x []float64, eps float64) float64 { return math.Sqrt(inner(x, x)/float64(len(x)) + eps) }

func TestMamba2ClosedForm(t *testing.T) {
	h := newHost(t)
	d := kernels.Mamba2Dims{Heads: 4, HeadDim: 3, State: 5, Groups: 2, Taps: 4}
	z, xbc, dt := h.random(tokenCount*d.Inner(), 1), h.random(tokenCount*d.Conv(), 1), h.random(tokenCount*d.Heads, 2)
	w, bias, block := h.random(d.Conv()*d.Taps, 0.5), h.random(d.Conv(), 0.5), h.random(d.Inner()*d.State, 1)
	a, skip, dtBias, norm := []float64{-0.5, -1, -0.125, -2}, h.random(d.Heads, 1), []float64{0.5, -1, 25, 0}, h.random(d.Inner(), 1)
	rows, cursors := h.sequence(tokenCount)
	window := kernels.Window{L: 4, T: 2}
	p := kernels.Mamba2{
		Rows: rows, Cursors: cursors, State: h.state(d.Inner()*d.State, block, kernels.Mamba2Ring(d, window, kernels.F32), window), Dims: d,
		Z: h.mat(d.Inner(), z...), XBC: h.mat(d.Conv(), xbc...), Dt: h.mat(d.Heads, dt...), ConvW: h.floats(w...), ConvB: h.floats(bias...),
		A: h.floats(a...), D: h.floats(skip...), DtBias: h.floats(dtBias...), NormW: h.floats(norm...), Eps: 1e-5, Out: h.mat(d.Inner(), make([]float64, tokenCount*d.Inner())...),
	}
	h.run(func(o kernels.Ops) { o.Mamba2Scan(p) })

	conv := convolved(xbc, w, bias, d.Conv(), d.Taps)
	part := func(t, from, n int) []float64 { return conv[t][from : from+n] }
	b := func(t, head int) []float64 { return part(t, d.Inner()+head/2*d.State, d.State) }
	c := func(t, head int) []float64 { return part(t, d.Inner()+(d.Groups+head/2)*d.State, d.State) }
	step := func(t, head int) float64 { return math.Log1p(math.Exp(dt[t*d.Heads+head] + dtBias[head])) }
	alpha := func(from, to, head int) (s float64) { // sum of dt A behind from up to to
		for t := from + 1; t <= to; t++ {
			s += step(t, head) * a[head]
		}
		return s
	}
	// weight is the state that channel i has after token t, times v.
	weight := func(t, i int, v []float64) float64 {
		head := i / d.HeadDim
		s := math.Exp(alpha(-1, t, head)) * inner(block[i*d.State:(i+1)*d.State], v)
		for j := range t + 1 {
			s += math.Exp(alpha(j, t, head)) * inner(b(j, head), v) * step(j, head) * conv[j][i]
		}
		return s
	}
	var want []float64
	for t := range tokenCount {
		y := make([]float64, d.Inner())
		for i := range y {
			gate := z[t*d.Inner()+i]
			y[i] = (weight(t, i, c(t, i/d.HeadDim)) + skip[i/d.HeadDim]*conv[t][i]) * gate / (1 + math.Exp(-gate))
		}
		for i := range y {
			group := i / (d.Inner() / d.Groups) * (d.Inner() / d.Groups)
			want = append(want, y[i]/rms(y[group:group+d.Inner()/d.Groups], 1e-5)*norm[i])
		}
	}
	h.near("out", h.read(p.Out.Buf), want)
	var final []float64
	for i := range d.Inner() {
		for n := range d.State {
			unit := make([]float64, d.State)
			unit[n] = 1
			final = append(final, weight(tokenCount-1, i, unit))
		}
	}
	h.near("state", h.read(p.State.Blocks)[len(block):], final)
}

func TestDeltaClosedForm(t *testing.T) {
	h := newHost(t)
	d := kernels.DeltaDims{KeyHeads: 2, ValueHeads: 4, KeyDim: 5, ValueDim: 3, Taps: 4}
	qkv, z := h.random(tokenCount*d.Conv(), 1), h.random(tokenCount*d.Values(), 1)
	b, a := h.random(tokenCount*d.ValueHeads, 1), h.random(tokenCount*d.ValueHeads, 1)
	w, block := h.random(d.Conv()*d.Taps, 0.5), h.random(d.Values()*d.KeyDim, 1)
	decay, dtBias, norm := []float64{-0.5, -1, -0.125, -0.25}, []float64{0.5, -1, 25, 0}, h.random(d.ValueDim, 1)
	rows, cursors := h.sequence(tokenCount)
	window := kernels.Window{L: 4, T: 2}
	p := kernels.Delta{
		Rows: rows, Cursors: cursors, State: h.state(d.Values()*d.KeyDim, block, kernels.DeltaRing(d, window, kernels.F32, kernels.Precision{}), window), Dims: d,
		QKV: h.mat(d.Conv(), qkv...), Z: h.mat(d.Values(), z...), B: h.mat(d.ValueHeads, b...), A: h.mat(d.ValueHeads, a...), ConvW: h.floats(w...),
		DecayA: h.floats(decay...), DtBias: h.floats(dtBias...), NormW: h.floats(norm...), Eps: 1e-6, Out: h.mat(d.Values(), make([]float64, tokenCount*d.Values())...),
	}
	h.run(func(o kernels.Ops) { o.DeltaScan(p) })

	conv := convolved(qkv, w, nil, d.Conv(), d.Taps)
	unit := func(t, from, head int) []float64 {
		x := conv[t][from+head/2*d.KeyDim : from+(head/2+1)*d.KeyDim]
		out := make([]float64, d.KeyDim)
		for i := range x {
			out[i] = x[i] / math.Sqrt(inner(x, x)+1e-6)
		}
		return out
	}
	var want, final []float64
	outputs := make([][]float64, tokenCount)
	for head := range d.ValueHeads {
		state := block[head*d.ValueDim*d.KeyDim : (head+1)*d.ValueDim*d.KeyDim]
		c := chunk{d: d, decay: make([]float64, tokenCount), beta: make([]float64, tokenCount)}
		gamma := 0.0
		for t := range tokenCount {
			gamma += decay[head] * math.Log1p(math.Exp(a[t*d.ValueHeads+head]+dtBias[head]))
			c.decay[t], c.beta[t] = gamma, 1/(1+math.Exp(-b[t*d.ValueHeads+head]))
			c.q, c.k = append(c.q, unit(t, 0, head)), append(c.k, unit(t, d.Keys(), head))
			c.v = append(c.v, conv[t][2*d.Keys()+head*d.ValueDim:2*d.Keys()+(head+1)*d.ValueDim])
		}
		out, last := c.solve(state)
		final = append(final, last...)
		for t := range out {
			scale := rms(out[t], 1e-6)
			for i, y := range out[t] {
				gate := z[t*d.Values()+head*d.ValueDim+i]
				outputs[t] = append(outputs[t], y/scale*norm[i]*gate/(1+math.Exp(-gate)))
			}
		}
	}
	for _, o := range outputs {
		want = append(want, o...)
	}
	h.near("out", h.read(p.Out.Buf), want)
	h.near("state", h.read(p.State.Blocks)[len(block):], final)
}

// chunk is one head's tokens: the cumulative log decays, betas and unit vectors.
type chunk struct {
	d           kernels.DeltaDims
	decay, beta []float64
	q, k, v     [][]float64
}

// solve is the chunk form: (I + A) V' = beta (V - e^gamma K S), A_ij = beta_i (k_i k_j) e^(gamma_i - gamma_j).
func (c chunk) solve(state []float64) (out [][]float64, last []float64) {
	line := func(i int) []float64 { return state[i*c.d.KeyDim : (i+1)*c.d.KeyDim] }
	fixed := make([][]float64, len(c.k))
	for i := range c.k {
		fixed[i] = make([]float64, c.d.ValueDim)
		for e := range fixed[i] {
			fixed[i][e] = c.beta[i] * (c.v[i][e] - math.Exp(c.decay[i])*inner(line(e), c.k[i]))
			for j := range i {
				fixed[i][e] -= c.beta[i] * inner(c.k[i], c.k[j]) * math.Exp(c.decay[i]-c.decay[j]) * fixed[j][e]
			}
		}
	}
	for i := range c.q {
		y := make([]float64, c.d.ValueDim)
		for e := range y {
			y[e] = math.Exp(c.decay[i]) * inner(line(e), c.q[i])
			for j := range i + 1 {
				y[e] += inner(c.q[i], c.k[j]) * math.Exp(c.decay[i]-c.decay[j]) * fixed[j][e]
			}
			y[e] /= math.Sqrt(float64(c.d.KeyDim))
		}
		out = append(out, y)
	}
	end := c.decay[len(c.decay)-1]
	for e := range c.d.ValueDim {
		for n := range c.d.KeyDim {
			s := math.Exp(end) * line(e)[n]
			for j := range c.k {
				s += math.Exp(end-c.decay[j]) * c.k[j][n] * fixed[j][e]
			}
			last = append(last, s)
		}
	}
	return out, last
}
