package ref

import "reprise/kernels"

func (o ops[F]) Attend(p kernels.Attend) {
	o.begin("Attend", p.Validate())
	q, out, kv, dim := o.matrix(p.Q), o.matrix(p.Out), o.cache(p.KV), p.KV.HeadDim
	for _, s := range o.sequences(p.Rows, p.Cursors) {
		s.zeroPadding(out.zero)
		keys, vals := tokens[F](kv, s, 0), tokens[F](kv, s, 1)
		for j := range s.n {
			t, length := s.first+j, s.position()+j+1
			y, query := make([]F, p.QHeads*dim), q.get(t)
			for h := range p.QHeads {
				at := h / (p.QHeads / kv.Heads)
				copy(y[h*dim:], attend(query[h*dim:(h+1)*dim], keys[at][:length], vals[at][:length], F(p.Scale)))
			}
			if !p.Gate.Nil() {
				gate := heads(o.matrix(p.Gate).get(t), p.QHeads, p.GateStride, dim)
				for i := range y {
					y[i] *= sigmoid(gate[i])
				}
			}
			out.put(t, y)
		}
	}
}

// tokens loads the keys (part 0) or values (part 1) of a row's sequence, its new tokens included: [head][token].
func tokens[F real](kv cache, s sequence, part int) [][][]F {
	list := make([][][]F, kv.Heads)
	if s.n == 0 {
		return list
	}
	for h := range list {
		for i := range s.position() + s.n {
			list[h] = append(list[h], read[F](kv, s.slot, i, part, h))
		}
	}
	return list
}

// attend is softmax(scale q K^T) V.
func attend[F real](q []F, keys, vals [][]F, scale F) []F {
	weights := make([]F, len(keys))
	for i, k := range keys {
		weights[i] = scale * dot(q, k)
	}
	sum := make([]F, len(q))
	for i, w := range softmax(weights) {
		for d, v := range vals[i] {
			sum[d] += w * v
		}
	}
	return sum
}
