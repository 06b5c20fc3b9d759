package ref

import (
	"math"

	"reprise/kernels"
)

// rotation turns the first dims of a head by a token's position.
type rotation[F real] struct{ cos, sin []F }

func (o ops[F]) WriteKV(p kernels.WriteKV) {
	o.begin("WriteKV", p.Validate())
	q, k, v, out := o.matrix(p.Q), o.matrix(p.K), o.matrix(p.V), o.matrix(p.QOut)
	kv, pos, dim := o.cache(p.KV), o.ints(p.Pos), p.KV.HeadDim
	qNorm, kNorm, freq := o.floats(p.QNorm, dim), o.floats(p.KNorm, dim), o.floats(p.InvFreq, p.Rotary/2)
	for _, s := range o.sequences(p.Rows, p.Cursors) {
		s.zeroPadding(out.zero)
		for j := range s.n {
			t, place := s.first+j, s.position()+j
			r := angles(freq, pos.at(t))
			out.put(t, turn(heads(q.get(t), p.QHeads, p.QStride, dim), dim, qNorm, F(p.Eps), r))
			key := turn(k.get(t), dim, kNorm, F(p.Eps), r)
			value := v.get(t)
			for h := range p.KV.Heads {
				write(kv, s.slot, place, 0, h, key[h*dim:(h+1)*dim], p.KScale)
				write(kv, s.slot, place, 1, h, value[h*dim:(h+1)*dim], p.VScale)
			}
		}
	}
}

// heads packs heads that lie stride apart.
func heads[F real](x []F, count, stride, dim int) []F {
	var out []F
	for h := range count {
		out = append(out, x[h*stride:h*stride+dim]...)
	}
	return out
}

func angles[F real](freq []F, position int) rotation[F] {
	r := rotation[F]{make([]F, len(freq)), make([]F, len(freq))}
	for i, f := range freq {
		angle := float64(F(position) * f)
		r.cos[i], r.sin[i] = F(math.Cos(angle)), F(math.Sin(angle))
	}
	return r
}

// turn normalises and rotates every head of x in place; norm may be nil.
func turn[F real](x []F, dim int, norm []F, eps F, r rotation[F]) []F {
	for from := 0; from < len(x); from += dim {
		head := x[from : from+dim]
		if norm != nil {
			copy(head, normalise(head, norm, eps))
		}
		half := len(r.cos)
		for i := range half {
			a, b := head[i], head[i+half]
			head[i], head[i+half] = a*r.cos[i]-b*r.sin[i], b*r.cos[i]+a*r.sin[i]
		}
	}
	return x
}
