package ssm_test

import (
	"math"
	"slices"

	"reprise/kernels"
)

// The conventional recurrences in float64, token by token with their own convolution history and no notion of blocks,
// rings or cursors: what every path through the pool must agree with.

// plain is a sequence under the conventional recurrence.
type plain interface {
	next(token int) []float64 // output of the next token
	clone() plain
	state() []float64
}

// params are random parameters of a layer and what each of 64 token ids projects to.
type params struct {
	convW, convB, a, d, dtBias, norm []float32
	inputs                           [][][]float32 // by projection, by token id
}

func silu(x float64) float64     { return x / (1 + math.Exp(-x)) }
func softplus(x float64) float64 { return math.Log1p(math.Exp(x)) }

// history is the convolution.
type history struct {
	rows [][]float32 // the last taps-1 raw rows
}

func (h *history) convolve(p *params, taps int, raw []float32) []float64 {
	for len(h.rows) < taps-1 {
		h.rows = append(h.rows, make([]float32, len(raw)))
	}
	rows := append(slices.Clone(h.rows), raw)
	h.rows = rows[1:]
	out := make([]float64, len(raw))
	for c := range out {
		if p.convB != nil {
			out[c] = float64(p.convB[c])
		}
		for k, row := range rows {
			out[c] += float64(p.convW[c*taps+k]) * float64(row[c])
		}
		out[c] = silu(out[c])
	}
	return out
}

type plainMamba2 struct {
	d kernels.Mamba2Dims
	p *params
	h history
	s []float64
}

func (m *plainMamba2) clone() plain {
	return &plainMamba2{m.d, m.p, history{slices.Clone(m.h.rows)}, slices.Clone(m.s)}
}
func (m *plainMamba2) state() []float64 { return m.s }

func (m *plainMamba2) next(token int) []float64 {
	d, in := m.d, m.p.inputs
	z, conv, dts := in[0][token], m.h.convolve(m.p, d.Taps, in[1][token]), in[2][token]
	out := make([]float64, d.Inner())
	for i := range out {
		head := i / d.HeadDim
		group := head / (d.Heads / d.Groups)
		b := conv[d.Inner()+group*d.State:][:d.State]
		c := conv[d.Inner()+(d.Groups+group)*d.State:][:d.State]
		dt := softplus(float64(dts[head]) + float64(m.p.dtBias[head]))
		for j := range b {
			s := &m.s[i*d.State+j]
			*s = *s*math.Exp(dt*float64(m.p.a[head])) + dt*conv[i]*b[j]
			out[i] += *s * c[j]
		}
		out[i] = (out[i] + float64(m.p.d[head])*conv[i]) * silu(float64(z[i]))
	}
	for width, from := d.Inner()/d.Groups, 0; from < len(out); from += width {
		normalise(out[from:from+width], m.p.norm[from:])
	}
	return out
}

const testEps = 1e-5

func normalise(x []float64, w []float32) {
	var sum float64
	for _, v := range x {
		sum += v * v
	}
	for i := range x {
		x[i] *= float64(w[i]) / math.Sqrt(sum/float64(len(x))+testEps)
	}
}

type plainDelta struct {
	d kernels.DeltaDims
	p *params
	h history
	s []float64
}

func (m *plainDelta) clone() plain {
	return &plainDelta{m.d, m.p, history{slices.Clone(m.h.rows)}, slices.Clone(m.s)}
}
func (m *plainDelta) state() []float64 { return m.s }

func (m *plainDelta) next(token int) []float64 {
	d, in := m.d, m.p.inputs
	conv := m.h.convolve(m.p, d.Taps, in[0][token])
	out := make([]float64, d.Values())
	for head := range d.ValueHeads {
		key := head / (d.ValueHeads / d.KeyHeads)
		q := unit(conv[key*d.KeyDim:][:d.KeyDim], 1/math.Sqrt(float64(d.KeyDim)))
		k := unit(conv[d.Keys()+key*d.KeyDim:][:d.KeyDim], 1)
		beta := 1 / (1 + math.Exp(-float64(in[2][token][head])))
		decay := math.Exp(float64(m.p.a[head]) * softplus(float64(in[3][token][head])+float64(m.p.dtBias[head])))
		o := out[head*d.ValueDim:][:d.ValueDim]
		for i := range o {
			s := m.s[(head*d.ValueDim+i)*d.KeyDim:][:d.KeyDim]
			held := 0.0
			for j := range s {
				s[j] *= decay
				held += s[j] * k[j]
			}
			u := beta * (conv[2*d.Keys()+head*d.ValueDim+i] - held)
			for j := range s {
				s[j] += u * k[j]
				o[i] += s[j] * q[j]
			}
		}
		normalise(o, m.p.norm)
	}
	for i := range out {
		out[i] *= silu(float64(in[1][token][i]))
	}
	return out
}

func unit(x []float64, length float64) []float64 {
	var sum float64
	for _, v := range x {
		sum += v * v
	}
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = v * length / math.Sqrt(sum+1e-6)
	}
	return out
}
