package ref

import (
	"math"
	"slices"

	"reprise/kernels"
)

func (o ops[F]) Route(p kernels.Route) {
	o.begin("Route", p.Validate())
	logits, ids, weights := o.matrix(p.Logits), o.ints(p.IDs), values{kernels.F32, o.bytes(p.Weights)}
	bias := o.floats(p.Bias, p.Logits.Cols)
	for t := range p.Logits.Rows {
		scores := score(p.Score, logits.get(t))
		chosen := choose(p, scores, bias)
		for i, w := range weigh(p, scores, chosen) {
			ids.set(t*p.TopK+i, chosen[i])
			weights.set(t*p.TopK+i, float64(w))
		}
	}
}

func score[F real](kind kernels.Score, logits []F) []F {
	if kind == kernels.Softmax {
		return softmax(logits)
	}
	for i, l := range logits {
		logits[i] = sigmoid(l)
	}
	return logits
}

func softmax[F real](x []F) []F {
	most := slices.Max(x)
	var sum F
	for i, v := range x {
		x[i] = exp(v - most)
		sum += x[i]
	}
	for i := range x {
		x[i] /= sum
	}
	return x
}

// choose returns the TopK experts in order of decreasing selection score.
func choose[F real](p kernels.Route, scores, bias []F) []int {
	selection := slices.Clone(scores)
	if bias != nil {
		selection = plus(selection, bias)
	}
	if p.Groups > 1 {
		mask(selection, p.Groups, p.TopGroups)
	}
	return best(selection, p.TopK)
}

// mask leaves only the experts of the groups whose two best have the largest sums.
func mask[F real](selection []F, groups, keep int) {
	size := len(selection) / groups
	sums := make([]F, groups)
	for g := range groups {
		for _, e := range best(selection[g*size:(g+1)*size], min(2, size)) {
			sums[g] += selection[g*size+e]
		}
	}
	kept := best(sums, keep)
	for e := range selection {
		if !slices.Contains(kept, e/size) {
			selection[e] = F(math.Inf(-1))
		}
	}
}

// best returns the indices of the k largest values, largest first, ties in order of index.
func best[F real](x []F, k int) []int {
	order := make([]int, len(x))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		switch {
		case x[a] > x[b]:
			return -1
		case x[a] < x[b]:
			return 1
		}
		return 0
	})
	return order[:k]
}

func weigh[F real](p kernels.Route, scores []F, chosen []int) []F {
	w, sum := make([]F, len(chosen)), F(1e-20)
	for i, e := range chosen {
		w[i] = scores[e]
		sum += w[i]
	}
	for i := range w {
		if p.Normalize {
			w[i] /= sum
		}
		w[i] *= F(p.Scale)
	}
	return w
}
