package ref

import (
	"math"
	"slices"

	"reprise/kernels"
)

// sampling is a tile's memory.
type sampling[F real] struct {
	kernels.Sample
	slots
	logits                               matrix[F]
	token, slot, target, depth, ids, pos ints
	counts, seen, allowed, biasID        ints
	bias                                 ints // float32 bits
	out, rank, topID                     ints
	logProb, topProb                     values
}

func (o ops[F]) Sample(p kernels.Sample) {
	o.begin("Sample", p.Validate())
	t := p.Tables
	s := sampling[F]{
		Sample: p, slots: o.slots(p.Slots), logits: o.matrix(p.Logits),
		token: o.ints(p.Token), slot: o.ints(p.Slot), target: o.ints(p.Target), depth: o.ints(p.Depth), ids: o.ints(p.IDs), pos: o.ints(p.Pos),
		counts: o.ints(t.Counts), seen: o.ints(t.Seen), allowed: o.ints(t.Allowed), biasID: o.ints(t.BiasID), bias: o.ints(t.Bias),
		out: o.ints(p.Out), rank: o.ints(p.Rank), topID: o.ints(p.TopID),
		logProb: values{kernels.F32, o.bytes(p.LogProb)}, topProb: values{kernels.F32, o.bytes(p.TopProb)},
	}
	for i := range p.Logits.Rows {
		s.row(i)
	}
}

func (s sampling[F]) row(i int) {
	slot := s.slot.at(i)
	if slot == 0 {
		s.out.set(i, -1)
		return
	}
	raw := s.logits.get(i)
	id := s.target.at(i)
	if id < 0 {
		id = s.draw(i, slot, slices.Clone(raw))
	}
	s.out.set(i, id)
	if s.TopN > 0 {
		s.report(i, id, raw)
	}
}

// report writes the log probabilities of the raw logits.
func (s sampling[F]) report(i, id int, raw []F) {
	logSum := logSumExp(raw)
	s.logProb.set(i, float64(raw[id]-logSum))
	rank := 1
	for _, l := range raw {
		if l > raw[id] {
			rank++
		}
	}
	s.rank.set(i, rank)
	for n, top := range best(raw, s.TopN) {
		s.topID.set(i*s.TopN+n, top)
		s.topProb.set(i*s.TopN+n, float64(raw[top]-logSum))
	}
}

func logSumExp[F real](x []F) F {
	most := slices.Max(x)
	var sum F
	for _, v := range x {
		sum += exp(v - most)
	}
	return most + F(math.Log(float64(sum)))
}

func (s sampling[F]) draw(i, slot int, logits []F) int {
	param, index := s.param(slot), s.pos.at(s.token.at(i))+1
	s.adjust(i, slot, param, index, logits)
	if most := best(logits, 1)[0]; param.Temperature == 0 || math.IsInf(float64(logits[most]), 0) {
		return most
	}
	for j := range logits {
		logits[j] /= F(param.Temperature)
	}
	p := candidates(softmax(logits), param)
	return pick(p, F(kernels.Uniform(param.Seed, int32(index))))
}

// adjust applies bias, masks and penalties in that order.
func (s sampling[F]) adjust(i, slot int, param kernels.SlotParams, index int, logits []F) {
	for e := range int(param.BiasCount) {
		at := slot*s.Tables.MaxBias + e
		logits[s.biasID.at(at)] += F(s.bias.word(at))
	}
	if param.Flags&kernels.UseAllowed != 0 {
		for id := range logits {
			if !s.allowed.bit(slot*s.Tables.MaskWords()*32 + id) {
				logits[id] = F(math.Inf(-1))
			}
		}
	}
	if index < int(param.MinLen) {
		for _, id := range s.stopIDs(slot) {
			logits[id] = F(math.Inf(-1))
		}
	}
	if param.Flags&kernels.UsePenalties != 0 {
		s.penalise(i, slot, param, logits)
	}
}

func (s sampling[F]) penalise(i, slot int, param kernels.SlotParams, logits []F) {
	drafts := map[int]int{}
	for d := range s.depth.at(i) {
		drafts[s.ids.at(s.token.at(i)-d)]++
	}
	for id := range logits {
		count := s.counts.at(slot*s.Tables.Vocab+id) + drafts[id]
		if count > 0 || s.seen.bit(slot*s.Tables.MaskWords()*32+id) {
			if logits[id] > 0 {
				logits[id] /= F(param.Repetition)
			} else {
				logits[id] *= F(param.Repetition)
			}
		}
		if count > 0 {
			logits[id] -= F(param.Frequency)*F(count) + F(param.Presence)
		}
	}
}

// candidates clears the probability of every token that min-p, top-k or top-p takes away, each working on what the one
// before left; top-p keeps the shortest run of the most probable ones that holds the share TopP of what is left.
func candidates[F real](p []F, param kernels.SlotParams) []F {
	order := best(p, len(p))
	keep := len(order)
	for keep > 1 && p[order[keep-1]] < F(param.MinP)*p[order[0]] {
		keep--
	}
	if param.TopK > 0 {
		keep = min(keep, int(param.TopK))
	}
	if param.TopP < 1 {
		keep = nucleus(p, order[:keep], F(param.TopP))
	}
	for _, id := range order[keep:] {
		p[id] = 0
	}
	return p
}

func nucleus[F real](p []F, order []int, share F) int {
	var total, sum F
	for _, id := range order {
		total += p[id]
	}
	for i, id := range order {
		if sum += p[id]; sum >= share*total {
			return i + 1
		}
	}
	return len(order)
}

// pick is the first token, in order of id, at which the running sum passes the share u of the total.
func pick[F real](p []F, u F) int {
	var total, sum F
	for _, v := range p {
		total += v
	}
	last := 0
	for id, v := range p {
		if sum += v; v > 0 && sum > u*total {
			return id
		}
		if v > 0 {
			last = id
		}
	}
	return last
}
