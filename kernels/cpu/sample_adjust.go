package cpu

import (
	"math/bits"

	"reprise/kernels"
)

// draft is a token of the drafts before a row, which count as output.
type draft struct {
	id    int32
	count int32
	logit float32
}

// adjust applies bias, masks and penalties in that order. index is that of the token to be drawn.
func (s *sampling) adjust(w *sampler, i int, slot, index int32, logits []float32) {
	p := &s.params[slot]
	from := int(slot) * s.Tables.MaxBias
	for e := range int(p.BiasCount) {
		logits[s.biasID[from+e]] += s.bias[from+e]
	}
	words := s.Tables.MaskWords()
	if p.Flags&kernels.UseAllowed != 0 {
		mask(logits, s.allowed[int(slot)*words:][:words])
	}
	if index < p.MinLen {
		for _, id := range s.stopIDs(slot) {
			if id >= 0 {
				logits[id] = minusInfinity
			}
		}
	}
	if p.Flags&kernels.UsePenalties == 0 {
		return
	}
	s.collect(w, i, logits)
	s.penalise(p, s.counts[int(slot)*len(logits):][:len(logits)], s.seen[int(slot)*words:][:words], logits)
	s.penaliseDrafts(w, p, slot, logits)
}

// mask forbids the tokens whose bit is clear.
func mask(logits []float32, allowed []uint32) {
	for i, word := range allowed {
		for rest := ^word; rest != 0; rest &= rest - 1 {
			if id := i*32 + bits.TrailingZeros32(rest); id < len(logits) {
				logits[id] = minusInfinity
			}
		}
	}
}

// collect lists the distinct drafts before row i with their logits.
func (s *sampling) collect(w *sampler, i int, logits []float32) {
	w.drafts = w.drafts[:0]
	for d := range s.depth[i] {
		id := s.ids[s.token[i]-d]
		at := 0
		for at < len(w.drafts) && w.drafts[at].id != id {
			at++
		}
		if at == len(w.drafts) {
			w.drafts = append(w.drafts, draft{id: id, logit: logits[id]})
		}
		w.drafts[at].count++
	}
}

func (s *sampling) penalise(p *kernels.SlotParams, counts []int32, seen []uint32, logits []float32) {
	for i, word := range seen {
		end := min(len(logits), i*32+32)
		for id := i * 32; id < end; id++ {
			if counts[id] > 0 || word>>(id%32)&1 != 0 {
				logits[id] = penalty(p, logits[id], counts[id])
			}
		}
	}
}

// penaliseDrafts does the drafts again, from their logits before and with their full counts.
func (s *sampling) penaliseDrafts(w *sampler, p *kernels.SlotParams, slot int32, logits []float32) {
	for _, d := range w.drafts {
		logits[d.id] = penalty(p, d.logit, d.count+s.counts[int(slot)*len(logits)+int(d.id)])
	}
}

// penalty is the logit of a token that occurs in the prompt or count times in the output.
func penalty(p *kernels.SlotParams, logit float32, count int32) float32 {
	if logit > 0 {
		logit /= p.Repetition
	} else {
		logit *= p.Repetition
	}
	if count > 0 {
		logit -= p.Frequency*float32(count) + p.Presence
	}
	return logit
}
