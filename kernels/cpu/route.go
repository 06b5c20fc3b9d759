package cpu

import (
	"math"

	"reprise/kernels"
)

type routing struct {
	kernels.Route
	scratch []scratch
	logits  rows
	bias    []float32 // or nil
	ids     []int32
	weights []float32
}

// Route chooses experts.
func (o *ops) Route(p kernels.Route) {
	o.enter("Route")
	must(p.Validate())
	o.routing = routing{p, o.scratch, rowsOf(p.Logits), nil, i32(p.IDs), f32(p.Weights)}
	if !p.Bias.Nil() {
		o.routing.bias = f32(p.Bias)
	}
	o.eachRow(p.Logits.Rows, p.Logits.Cols*(p.TopK+8), o.routeRow)
}

func (t *routing) row(r, worker int) {
	n := t.logits.cols
	memory := t.scratch[worker].take(2*n + t.Groups)
	scores, selection, sums := memory[:n], memory[n:2*n], memory[2*n:]
	logits := t.logits.row(r)
	if t.Score == kernels.Softmax {
		softmax(scores, logits)
	} else {
		sigmoid(scores, logits)
	}
	copy(selection, scores)
	if t.bias != nil {
		axpy(1, t.bias[:n], selection)
	}
	if t.Groups > 1 {
		t.keepGroups(selection, sums)
	}
	ids, weights := t.ids[r*t.TopK:][:t.TopK], t.weights[r*t.TopK:][:t.TopK]
	for i := range ids {
		best := largest(selection)
		ids[i], weights[i] = int32(best), scores[best]
		selection[best] = taken
	}
	t.weigh(weights)
}

// weigh turns scores of the chosen into weights.
func (t *routing) weigh(weights []float32) {
	factor := t.Scale
	if t.Normalize {
		sum := float32(1e-20)
		for _, w := range weights {
			sum += w
		}
		for i := range weights {
			weights[i] /= sum
		}
	}
	for i := range weights {
		weights[i] *= factor
	}
}

// excluded experts may still be chosen when nothing else is left, taken ones never.
var (
	excluded = float32(-math.MaxFloat32)
	taken    = float32(math.Inf(-1))
)

// keepGroups excludes the experts of all but the TopGroups groups whose two best have the largest sums.
func (t *routing) keepGroups(selection, sums []float32) {
	size := len(selection) / t.Groups
	for g := range sums {
		sums[g] = twoBest(selection[g*size : (g+1)*size])
	}
	for range t.TopGroups {
		sums[largest(sums)] = taken
	}
	for g, s := range sums {
		if s != taken {
			group := selection[g*size : (g+1)*size]
			for e := range group {
				group[e] = excluded
			}
		}
	}
}

// twoBest is the sum of the two largest values, or the only one.
func twoBest(x []float32) float32 {
	if len(x) == 1 {
		return x[0]
	}
	first, second := x[0], taken
	for _, v := range x[1:] {
		if v > first {
			first, second = v, first
		} else if v > second {
			second = v
		}
	}
	return first + second
}

// largest is the first index of the largest value.
func largest(x []float32) int {
	best, most := 0, taken
	for i, v := range x {
		if v > most {
			best, most = i, v
		}
	}
	return best
}

// softmax writes e^(x - max x) divided by its sum.
func softmax(dst, x []float32) {
	most := x[largest(x)]
	for i, v := range x {
		dst[i] = v - most
	}
	exp(dst, dst)
	var sum float32
	for _, e := range dst {
		sum += e
	}
	for i := range dst {
		dst[i] /= sum
	}
}
