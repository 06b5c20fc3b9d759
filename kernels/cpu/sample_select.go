package cpu

import (
	"cmp"
	"slices"
)

// candidate is a token that may be drawn.
type candidate struct {
	logit  float32
	id     int32
	weight float32 // what a cut adds up
}

// before is the order of preference: larger logits first, ties by id.
func (a candidate) before(b candidate) bool {
	return a.logit > b.logit || a.logit == b.logit && a.id < b.id
}

func order(list []candidate) {
	slices.SortFunc(list, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(b.logit, a.logit), cmp.Compare(a.id, b.id))
	})
}

// selectBlock is the tokens whose largest logit stands for them.
const selectBlock = 64

// blocks notes the largest logit of each block.
func (w *sampler) blocks(logits []float32) {
	w.most = w.most[:0]
	for from := 0; from < len(logits); from += selectBlock {
		block := logits[from:min(from+selectBlock, len(logits))]
		w.most = append(w.most, block[largest(block)])
	}
}

// atLeast is a logit that at least n tokens reach: the n-th largest of the blocks' largest.
func (w *sampler) atLeast(n int) float32 {
	if n > len(w.most) {
		return minusInfinity
	}
	w.work = w.work[:0]
	for i, l := range w.most {
		w.work = append(w.work, candidate{l, int32(i), 1})
	}
	return cut(w.work, float64(n)).logit
}

// gather keeps the tokens that reach bound.
func (w *sampler) gather(logits []float32, bound float32) {
	w.kept = w.kept[:0]
	for i, most := range w.most {
		if most < bound {
			continue
		}
		for id := i * selectBlock; id < min((i+1)*selectBlock, len(logits)); id++ {
			if l := logits[id]; l >= bound {
				w.kept = append(w.kept, candidate{logit: l, id: int32(id)})
			}
		}
	}
}

// weigh sets the weights to e^((logit-most)/temperature).
func (w *sampler) weigh(most, temperature float32) {
	var chunk [64]float32
	for from := 0; from < len(w.kept); from += len(chunk) {
		part := w.kept[from:min(from+len(chunk), len(w.kept))]
		for i, c := range part {
			chunk[i] = c.logit
		}
		weights(chunk[:len(part)], chunk[:len(part)], most, temperature)
		for i := range part {
			part[i].weight = chunk[i]
		}
	}
}

// cutBelow drops the tokens lighter than share of the heaviest, whose weight is 1.
func (w *sampler) cutBelow(share float32) {
	if share > 0 {
		share = min(share, 1)
		w.kept = slices.DeleteFunc(w.kept, func(c candidate) bool { return c.weight < share })
	}
}

// cutToCount keeps the n best and sets the weights to 1.
func (w *sampler) cutToCount(n int) {
	if n >= len(w.kept) {
		return
	}
	for i := range w.kept {
		w.kept[i].weight = 1
	}
	w.cutTo(float64(n))
}

// cutToShare keeps the shortest run of best tokens that has a share of the weight: of all, or of what is kept if that is
// 0.
func (w *sampler) cutToShare(share, all float64) {
	if all == 0 {
		for _, c := range w.kept {
			all += float64(c.weight)
		}
	}
	w.cutTo(share * all)
}

// cutTo keeps the best tokens up to the one at which the sum of the weights reaches target.
func (w *sampler) cutTo(target float64) {
	if len(w.kept) == 0 {
		return
	}
	w.work = append(w.work[:0], w.kept...)
	last := cut(w.work, target)
	n := 0
	for _, c := range w.kept {
		if !last.before(c) {
			w.kept[n] = c
			n++
		}
	}
	w.kept = w.kept[:n]
}

// cut is the candidate at which the sum of the weights, added up in order of preference, reaches target, or the last
// one. It reorders the list, which is not empty, by quickselect.
func cut(list []candidate, target float64) candidate {
	state := uint32(len(list))
	for {
		state = state*1664525 + 1013904223
		at, sum := split(list, int(uint64(state)*uint64(len(list))>>32))
		pivot := list[at]
		switch {
		case at > 0 && sum >= target:
			list = list[:at]
		case at+1 == len(list) || sum+float64(pivot.weight) >= target:
			return pivot
		default:
			target -= sum + float64(pivot.weight)
			list = list[at+1:]
		}
	}
}

// split moves what comes before the chosen pivot to the front and the pivot behind it, and returns where that is and the
// sum of the weights before it.
func split(list []candidate, choice int) (at int, sum float64) {
	end := len(list) - 1
	list[choice], list[end] = list[end], list[choice]
	pivot := list[end]
	for i, c := range list[:end] {
		if c.before(pivot) {
			list[i], list[at] = list[at], c
			sum += float64(c.weight)
			at++
		}
	}
	list[end], list[at] = list[at], list[end]
	return at, sum
}
