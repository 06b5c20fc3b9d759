package kerneltest

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"reprise/kernels"
)

// logitRow is one row of a tile. A target of -1 draws.
type logitRow struct {
	slot, target, position int
	drafts                 []int // ids of the tokens that lead to this one, the nearest last; they count as output
	logits                 []float32
}

func sampleCases(short bool) []testcase {
	var list []testcase
	add := func(name string, run func(b *bench)) { list = append(list, testcase{name, run}) }
	for _, vocab := range []int{1, 2, 31, 33, 1000, 4099} {
		if short && vocab > 1000 {
			continue
		}
		params := drawParams()
		for _, name := range slices.Sorted(maps.Keys(params)) {
			p := params[name]
			for _, ties := range []bool{false, true} {
				add(fmt.Sprintf("sample %s vocab %d ties %t", name, vocab, ties), func(b *bench) { drawCase(b, vocab, p, ties, 0) })
			}
		}
		for _, n := range slices.Compact([]int{1, min(5, vocab), vocab}) {
			add(fmt.Sprintf("sample top %d of %d", n, vocab), func(b *bench) { drawCase(b, vocab, kernels.SlotParams{TopP: 1, Repetition: 1}, true, n) })
		}
		add(fmt.Sprintf("sample scores vocab %d", vocab), func(b *bench) { scoreCase(b, vocab) })
	}
	add("sample masks", maskCase)
	add("sample nothing left", nothingLeftCase)
	add("sample penalties", penaltyCase)
	add("sample overflow", overflowCase)
	add("sample neighbours", neighbourCase)
	add("sample in turns", turnsCase)
	add("sample tails", tailCase)
	if !short { // minutes under a tool that follows every access
		add("sample distribution", distributionCase)
	}
	return list
}

// drawParams are the ways to cut a distribution, alone and together.
func drawParams() map[string]kernels.SlotParams {
	return map[string]kernels.SlotParams{
		"greedy":      {TopP: 1, Repetition: 1, TopK: 3, MinP: 0.5},
		"temperature": {Temperature: 1, TopP: 1, Repetition: 1},
		"hot":         {Temperature: 2, TopP: 1, Repetition: 1},
		"cold":        {Temperature: 0.01, TopP: 1, Repetition: 1},
		"top-k":       {Temperature: 1, TopP: 1, TopK: 3, Repetition: 1},
		"top-k 1":     {Temperature: 1, TopP: 1, TopK: 1, Repetition: 1},
		"top-k all":   {Temperature: 1, TopP: 1, TopK: math.MaxInt32, Repetition: 1},
		"top-k 64":    {Temperature: 1, TopP: 0.9, TopK: 64, Repetition: 1},
		"top-p":       {Temperature: 1, TopP: 0.83, Repetition: 1},
		"top-p small": {Temperature: 1, TopP: 1e-6, Repetition: 1},
		"min-p":       {Temperature: 1, TopP: 1, MinP: 0.07, Repetition: 1},
		"min-p 1":     {Temperature: 1, TopP: 1, MinP: 1, Repetition: 1},
		"all":         {Temperature: 0.7, TopP: 0.37, TopK: 20, MinP: 0.013, Repetition: 1},
	}
}

// logits is normal numbers, or few different ones with many ties.
func (b *bench) logits(vocab int, ties bool) []float32 {
	v := b.normal(vocab, 0, 3)
	for i := range v {
		if ties {
			v[i] = float32(b.IntN(4)) * 0.75
		}
	}
	return v
}

// drawCase draws rows of slots with the same parameters and different seeds; one row belongs to no slot.
func drawCase(b *bench, vocab int, p kernels.SlotParams, ties bool, topN int) {
	var specs []slotSpec
	var rows []logitRow
	for i := range 12 {
		p.Seed = b.Uint64()
		specs = append(specs, slotSpec{SlotParams: p})
		rows = append(rows, logitRow{slot: 1 + i, target: -1, position: b.IntN(1 << 20), logits: b.logits(vocab, ties)})
	}
	rows[4].slot = 0
	b.sample(newSlotSet(b, vocab, 0, specs), rows, topN)
}

// scoreCase scores given tokens; parameters that would change the logits have no say in it.
func scoreCase(b *bench, vocab int) {
	p := kernels.SlotParams{Temperature: 0.1, TopK: 1, TopP: 1, Repetition: 1, BiasCount: 1, Flags: kernels.UseAllowed}
	slots := newSlotSet(b, vocab, 0, []slotSpec{{SlotParams: p, biasID: []int{vocab - 1}, bias: []float32{50}, allowed: []int{0}}})
	var rows []logitRow
	for i := range 9 {
		rows = append(rows, logitRow{slot: 1, target: b.IntN(vocab), position: i, logits: b.logits(vocab, i%2 == 0)})
	}
	b.sample(slots, rows, min(vocab, 2))
	b.sample(slots, rows, 0)
}

// maskCase has biases (-Inf too), allowed masks and stops masked below MinLen.
func maskCase(b *bench) {
	const vocab = 70
	var specs []slotSpec
	var rows []logitRow
	inf := float32(math.Inf(-1))
	for i := range 40 {
		s := slotSpec{SlotParams: kernels.SlotParams{Seed: uint64(i), Temperature: float32(i % 3), TopP: 1, Repetition: 1, MinLen: 100}, stops: []int{7, 69, 31}}
		if i%2 == 0 {
			s.biasID, s.bias, s.BiasCount = []int{5, 69, 7, 40}, []float32{30, inf, 29, -3}, int32(i%5)
		}
		if i%4 < 2 {
			s.Flags, s.allowed = kernels.UseAllowed, []int{5, 7, 31, 32, 63, 64, 69}
		}
		specs = append(specs, s)
		rows = append(rows, logitRow{slot: 1 + i, target: -1, position: 97 + i%4, logits: b.logits(vocab, false)})
	}
	b.sample(newSlotSet(b, vocab, 0, specs), rows, 3)
}

// nothingLeftCase has masks that allow no token: the token is 0, greedy or not.
func nothingLeftCase(b *bench) {
	var specs []slotSpec
	var rows []logitRow
	for i, temperature := range []float32{0, 1} {
		p := kernels.SlotParams{Temperature: temperature, TopP: 0.9, MinP: 0.1, Repetition: 1, Flags: kernels.UseAllowed}
		specs = append(specs, slotSpec{SlotParams: p})
		rows = append(rows, logitRow{slot: 1 + i, target: -1, position: i, logits: b.logits(50, false)})
	}
	for _, id := range b.sample(newSlotSet(b, 50, 0, specs), rows, 1) {
		if id != 0 {
			b.Errorf("drew %d", id)
		}
	}
}

// penaltyCase has tokens of the prompt, of the output and of drafts, some of them in several of these.
func penaltyCase(b *bench) {
	const vocab = 70
	var specs []slotSpec
	var rows []logitRow
	for i := range 60 {
		p := kernels.SlotParams{Seed: uint64(i), Temperature: float32(i % 2), TopP: 1, Repetition: 1, Flags: kernels.UsePenalties}
		if i%3 == 0 {
			p.Repetition = 1.7
		}
		if i%4 < 2 {
			p.Presence, p.Frequency = 1.5, 0.6
		}
		if i%7 == 6 {
			p.Presence, p.Frequency, p.Repetition = -1.5, -0.6, 0.5
		}
		if i%11 == 10 {
			p.Flags = 0 // parameters without the flag do nothing
		}
		s := slotSpec{SlotParams: p, counts: map[int]int{1: 2, 33: 1, 69: 9, 40: 1}, seen: []int{0, 1, 32, 69}}
		specs = append(specs, s)
		row := logitRow{slot: 1 + i, target: -1, position: 50, logits: b.logits(vocab, i%5 == 0)}
		for range i % 4 {
			row.drafts = append(row.drafts, []int{33, 34, 69}[b.IntN(3)])
		}
		rows = append(rows, row)
	}
	b.sample(newSlotSet(b, vocab, 0, specs), rows, 1)
}

// overflowCase has a repetition penalty, as any client may ask for, that makes a logit +Inf: that token is drawn, and no
// other row notices. Ordinary rows lie around it.
func overflowCase(b *bench) {
	const vocab, seen = 4000, 3001
	var specs []slotSpec
	var rows []logitRow
	params := drawParams()
	for _, name := range slices.Sorted(maps.Keys(params)) {
		p := params[name]
		p.Repetition, p.Flags = math.SmallestNonzeroFloat32, kernels.UsePenalties
		for _, s := range []slotSpec{{SlotParams: p, seen: []int{seen}}, {SlotParams: p}} {
			specs = append(specs, s)
			logits := b.logits(vocab, false)
			logits[seen] = 1
			rows = append(rows, logitRow{slot: len(specs), target: -1, position: len(rows), logits: logits})
		}
	}
	for i, id := range b.sample(newSlotSet(b, vocab, 0, specs), rows, 0) {
		if i%2 == 0 && id != seen {
			b.Errorf("row %d drew %d, not the token whose logit overflows", i, id)
		}
	}
}

// neighbourCase has the same row in several places of a tile: the same token comes out.
func neighbourCase(b *bench) {
	const vocab = 333
	slots := newSlotSet(b, vocab, 0, []slotSpec{{SlotParams: kernels.SlotParams{Seed: 5, Temperature: 1.3, TopP: 0.9, Repetition: 1}}})
	same := logitRow{slot: 1, target: -1, position: 17, logits: b.logits(vocab, false)}
	var rows []logitRow
	for range 8 {
		rows = append(rows, same, logitRow{slot: 1, target: -1, position: b.IntN(1000), logits: b.logits(vocab, true)})
	}
	out := b.sample(slots, rows, 0)
	for i := 2; i < len(out); i += 2 {
		if out[i] != out[0] {
			b.Errorf("row %d drew %d, row 0 with the same numbers %d", i, out[i], out[0])
		}
	}
}

// turnsCase has more rows than a device may work on at once, and draws where it may take them apart from greedy ones.
func turnsCase(b *bench) {
	const vocab, n, every = 70, 64, 3
	params := drawParams()
	names := slices.Sorted(maps.Keys(params))
	var specs []slotSpec
	var rows []logitRow
	for i := range n {
		p := params["greedy"]
		if i%every == 0 {
			p = params[names[i/every%len(names)]]
		}
		p.Seed = b.Uint64()
		specs = append(specs, slotSpec{SlotParams: p})
		rows = append(rows, logitRow{slot: 1 + i, target: -1, position: i, logits: b.logits(vocab, i%2 == 0)})
	}
	b.sample(newSlotSet(b, vocab, 0, specs), rows, 0)
}

// tailCase has so many light tokens that what top-p takes away is much of the weight; a device that leaves them out of
// the total cuts too early.
func tailCase(b *bench) {
	const vocab = 700
	slots := newSlotSet(b, vocab, 0, []slotSpec{{SlotParams: kernels.SlotParams{Seed: 7, Temperature: 1, TopP: 0.6, Repetition: 1}}})
	logits := b.normal(vocab, 0, 0.5)
	var rows []logitRow
	for i := range 400 {
		rows = append(rows, logitRow{slot: 1, target: -1, position: i, logits: logits})
	}
	b.sample(slots, rows, 0)
}

// distributionCase draws often from one distribution and compares frequencies (chi-squared).
func distributionCase(b *bench) {
	const vocab, draws = 12, 4000
	slots := newSlotSet(b, vocab, 0, []slotSpec{{SlotParams: kernels.SlotParams{Seed: 99, Temperature: 1, TopP: 1, Repetition: 1}}})
	logits := b.normal(vocab, 0, 1)
	var rows []logitRow
	for i := range draws {
		rows = append(rows, logitRow{slot: 1, target: -1, position: i, logits: logits})
	}
	counts := make([]float64, vocab)
	for _, id := range b.sample(slots, rows, 0) {
		counts[id]++
	}
	var sum, chi float64
	for _, l := range logits {
		sum += math.Exp(float64(l))
	}
	for i, l := range logits {
		want := draws * math.Exp(float64(l)) / sum
		chi += (counts[i] - want) * (counts[i] - want) / want
	}
	if chi > 31.3 { // 99.9 % quantile for 11 degrees of freedom
		b.Errorf("chi-squared %.1f: counts %v", chi, counts)
	}
}

// sample runs one tile and compares everything; it returns the device's tokens.
func (b *bench) sample(slots *slotSet, rows []logitRow, topN int) []int {
	b.Helper()
	n, vocab := len(rows), slots.vocab
	var token, slot, target, depth, ids, pos []int
	var v []float32
	for _, r := range rows {
		ids, pos = append(ids, garbage), append(pos, garbage) // a neighbour's
		for _, d := range r.drafts {
			ids, pos = append(ids, d), append(pos, garbage)
		}
		if len(r.drafts) == 0 {
			ids, pos = append(ids, 3), append(pos, 0)
		}
		pos[len(pos)-1] = r.position
		token, slot, target, depth = append(token, len(ids)-1), append(slot, r.slot), append(target, r.target), append(depth, len(r.drafts))
		v = append(v, r.logits...)
	}
	logits := b.array("logits", encode(kernels.F32, v))
	logits.allow(0, 4*len(v))
	in := []*array{b.ints("token", token...), b.ints("slot", slot...), b.ints("target", target...), b.ints("depth", depth...), b.ints("ids", ids...), b.ints("pos", pos...)}
	out, rank, topID := b.outInts("out", n), b.outInts("rank", n), b.outInts("top ids", n*topN)
	logProb, topProb := b.outFloats("log probabilities", n), b.outFloats("top log probabilities", n*topN)
	b.run(func(o kernels.Ops, s side) {
		o.Sample(kernels.Sample{
			Logits: kernels.NewMat(logits.buf[s], kernels.F32, n, vocab), Token: in[0].buf[s], Slot: in[1].buf[s], Target: in[2].buf[s], Depth: in[3].buf[s],
			IDs: in[4].buf[s], Pos: in[5].buf[s], Slots: slots.slots(s), Tables: slots.tables(s), TopN: topN,
			Out: out.buf[s], LogProb: logProb.buf[s], Rank: rank.buf[s], TopID: topID.buf[s], TopProb: topProb.buf[s],
		})
	})
	b.same(out)
	if topN > 0 {
		b.sameReports(rows, topN, rank, topID, logProb, topProb)
	}
	return out.intsOf(device)
}

func (b *bench) outFloats(name string, n int) *array {
	b.Helper()
	a := b.floats(name, nans(n))
	a.allow(0, 4*n)
	return a
}

// sameReports compares ranks and log probabilities of the rows that have a slot.
func (b *bench) sameReports(rows []logitRow, topN int, rank, topID, logProb, topProb *array) {
	b.Helper()
	var one, top []piece
	for i, r := range rows {
		if r.slot == 0 {
			continue
		}
		one = append(one, piece{logProb, span{4 * i, 4 * (i + 1)}, kernels.F32})
		top = append(top, piece{topProb, span{4 * i * topN, 4 * (i + 1) * topN}, kernels.F32})
		if got, want := rank.intsOf(device)[i], rank.intsOf(oracle)[i]; got != want {
			b.Errorf("row %d: rank %d, want %d", i, got, want)
		}
		got, want := topID.intsOf(device)[i*topN:(i+1)*topN], topID.intsOf(oracle)[i*topN:(i+1)*topN]
		for j := range got {
			if got[j] != want[j] {
				b.Errorf("row %d: top ids %v, want %v", i, brief(got), brief(want))
				break
			}
		}
	}
	b.close("log probabilities", fewRoundings, one)
	b.close("top log probabilities", fewRoundings, top)
}
