package cpu

import (
	"math"

	"reprise/kernels"
)

// sampling is the memory of Sample.
type sampling struct {
	kernels.Sample
	slots
	workers []sampler // by worker
	logits  rows

	token, slot, target, depth, ids, pos []int32
	counts, biasID                       []int32
	seen, allowed                        []uint32
	bias                                 []float32
	out, rank, topID                     []int32
	logProb, topProb                     []float32
}

// sampler is one worker's memory.
type sampler struct {
	raw    []float32   // the row's logits as they came
	most   []float32   // largest logit of each block of selectBlock
	kept   []candidate // in order of id
	work   []candidate // reordered by selections
	drafts []draft
}

// Sample turns logits into tokens and log probabilities.
func (o *ops) Sample(p kernels.Sample) {
	o.enter("Sample")
	must(p.Validate())
	s, t := &o.sampling, p.Tables
	if s.workers == nil {
		s.workers = make([]sampler, o.pool.size())
	}
	*s = sampling{
		Sample: p, slots: slotsOf(p.Slots), workers: s.workers, logits: rowsOf(p.Logits),
		token: i32(p.Token), slot: i32(p.Slot), target: i32(p.Target), depth: i32(p.Depth), ids: i32(p.IDs), pos: i32(p.Pos),
		counts: i32(t.Counts), biasID: i32(t.BiasID), seen: u32(t.Seen), allowed: u32(t.Allowed), bias: f32(t.Bias),
		out: i32(p.Out), rank: i32(p.Rank), topID: i32(p.TopID), logProb: f32(p.LogProb), topProb: f32(p.TopProb),
	}
	o.eachRow(p.Logits.Rows, p.Logits.Cols, o.sampleRow)
}

func (s *sampling) row(i, worker int) {
	slot := s.slot[i]
	if slot == 0 {
		s.out[i] = -1
		return
	}
	w, logits := &s.workers[worker], s.logits.row(i)
	if s.TopN > 0 {
		w.raw = append(w.raw[:0], logits...)
	}
	id := s.target[i]
	if id < 0 {
		index := s.pos[s.token[i]] + 1
		s.adjust(w, i, slot, index, logits)
		p := &s.params[slot]
		id = w.draw(logits, p, kernels.Uniform(p.Seed, index))
	}
	s.out[i] = id
	if s.TopN > 0 {
		s.report(w, i, id)
	}
}

// report writes the log probabilities of the raw logits.
func (s *sampling) report(w *sampler, i int, id int32) {
	w.blocks(w.raw)
	most := w.raw[largest(w.raw)]
	logSum := float64(most) + math.Log(sumExp(w.raw, most, 1))
	chosen, rank := w.raw[id], int32(1)
	for _, l := range w.raw {
		if l > chosen {
			rank++
		}
	}
	s.logProb[i], s.rank[i] = float32(float64(chosen)-logSum), rank
	w.gather(w.raw, w.atLeast(s.TopN))
	w.cutToCount(s.TopN)
	w.work = append(w.work[:0], w.kept...)
	order(w.work)
	for n := range s.TopN {
		top := candidate{id: -1} // NaN logits have no order
		if n < len(w.work) {
			top = w.work[n]
		}
		s.topID[i*s.TopN+n] = top.id
		s.topProb[i*s.TopN+n] = float32(float64(top.logit) - logSum)
	}
}

// sumExp is the sum of e^((x-most)/temperature).
func sumExp(x []float32, most, temperature float32) float64 {
	var chunk [512]float32
	sum := 0.0
	for len(x) > 0 {
		n := min(len(x), len(chunk))
		sum += float64(total(weights(chunk[:n], x[:n], most, temperature)))
		x = x[n:]
	}
	return sum
}

// weights writes e^((x-most)/temperature) to dst and returns it.
func weights(dst, x []float32, most, temperature float32) []float32 {
	for i, v := range x {
		dst[i] = (v - most) / temperature
	}
	exp(dst, dst)
	return dst
}

// draw chooses a token from adjusted logits; u is in [0, 1).
func (w *sampler) draw(logits []float32, p *kernels.SlotParams, u float32) int32 {
	best := largest(logits)
	most := logits[best]
	if p.Temperature == 0 || math.IsInf(float64(most), 0) {
		return int32(best)
	}
	topK, topP := int(p.TopK), float64(p.TopP)
	if topK <= 0 || topK > len(logits) {
		topK = len(logits)
	}
	if topK == len(logits) && p.TopP >= 1 && p.MinP <= 0 {
		return pickAll(weights(logits, logits, most, p.Temperature), u)
	}
	w.blocks(logits)
	least, all := w.bound(logits, p, topK, most)
	w.gather(logits, least)
	w.weigh(most, p.Temperature)
	w.cutBelow(p.MinP)
	w.cutToCount(topK)
	if topP < 1 {
		w.weigh(most, p.Temperature)
		w.cutToShare(topP, all)
	}
	w.weigh(most, p.Temperature)
	return pick(w.kept, u)
}

// bound is a logit that every token left by min-p, top-k and top-p reaches; the fewer others do the better. Where tokens
// below it count for top-p, all is the weight of the whole vocabulary, else 0.
func (w *sampler) bound(logits []float32, p *kernels.SlotParams, topK int, most float32) (least float32, all float64) {
	if topK < len(logits) {
		return w.atLeast(topK), 0
	}
	share := float64(p.MinP)
	if share <= 0 {
		// Tokens lighter than this have together no more than the share that top-p takes away.
		all = sumExp(logits, most, p.Temperature)
		share = (1 - float64(p.TopP)) * all / float64(len(logits))
	}
	low := float64(p.Temperature) * math.Log(min(share, 1))
	return float32(float64(most) + low - 1e-5*(math.Abs(float64(most))+math.Abs(low))), all
}

// pickAll is the first token at which the running sum of the weights passes the share u of the total.
func pickAll(weight []float32, u float32) int32 {
	all := 0.0
	for _, v := range weight {
		all += float64(v)
	}
	sum, last := 0.0, 0
	for id, v := range weight {
		if v > 0 {
			if sum += float64(v); sum > float64(u)*all {
				return int32(id)
			}
			last = id
		}
	}
	return int32(last)
}

// pick is pickAll for candidates in order of id.
func pick(kept []candidate, u float32) int32 {
	all := 0.0
	for _, c := range kept {
		all += float64(c.weight)
	}
	sum, last := 0.0, int32(0)
	for _, c := range kept {
		if c.weight > 0 {
			if sum += float64(c.weight); sum > float64(u)*all {
				return c.id
			}
			last = c.id
		}
	}
	return last
}
