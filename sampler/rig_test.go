package sampler

import (
	"math"
	"slices"
	"testing"

	"reprise/kernels"
	"reprise/kernels/cpu"
)

// draws is how many tokens each distribution is judged by.
const draws = 40_000

// constant is a head whose logits are the same for every row.
type constant struct{ row []float32 }

func (h constant) Logits(o kernels.Ops, hidden, out kernels.Mat) {
	tile := make([]float32, 0, out.Rows*out.Cols)
	for range out.Rows {
		tile = append(tile, h.row...)
	}
	o.Upload(out.Buf, bytesOf(tile))
}

// rig samples from one slot on the CPU device.
type rig struct {
	t      *testing.T
	dev    kernels.Device
	tables *Tables
	hidden kernels.Mat
	rows   Rows
}

// context is how many tokens of each row's past the device sees: the drafts that count as output.
const context = 3

// newRig prepares draws rows at the positions first, first+1, ..; row i has the last tokens past, of which depth are
// drafts.
func newRig(t *testing.T, vocab, first int, past [context]int32, depth int) *rig {
	t.Helper()
	dev, err := cpu.Open(cpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	})
	r := &rig{t: t, dev: dev}
	r.tables, err = New(dev, Config{Slots: 2, Vocab: vocab, MaxRows: draws, MaxTop: 1, TileRows: 4096}, 1, kernels.F32)
	if err != nil {
		t.Fatal(err)
	}
	var token, slot, target, depths, ids, pos []int32
	for i := range int32(draws) {
		token, slot, target, depths = append(token, context*i+context-1), append(slot, 1), append(target, -1), append(depths, int32(depth))
		for j := range int32(context) {
			ids, pos = append(ids, past[j]), append(pos, int32(first)+i-context+1+j)
		}
	}
	r.hidden = kernels.NewMat(r.upload(make([]int32, context*draws)), kernels.F32, context*draws, 1)
	r.rows = Rows{
		Count: draws, Token: r.upload(token), Slot: r.upload(slot), Target: r.upload(target), Depth: r.upload(depths),
		IDs: r.upload(ids), Pos: r.upload(pos),
	}
	return r
}

func (r *rig) upload(v []int32) kernels.Buffer {
	b, err := r.dev.Alloc(int64(len(v)) * 4)
	if err != nil {
		r.t.Fatal(err)
	}
	r.dev.Submit(kernels.ProgramFunc(func(o kernels.Ops) { o.Upload(b, bytesOf(v)) }))
	r.wait()
	return b
}

func (r *rig) wait() {
	r.t.Helper()
	if err := r.dev.Wait(r.dev.Mark()); err != nil {
		r.t.Fatal(err)
	}
}

// sample draws a token for every row.
func (r *rig) sample(logits []float32, s Slot) []int32 {
	r.t.Helper()
	out := make([]int32, draws)
	r.dev.Submit(kernels.ProgramFunc(func(o kernels.Ops) {
		r.tables.Set(o, 1, s)
		r.tables.Run(o, constant{logits}, r.hidden, r.rows)
		o.Download(bytesOf(out), r.tables.Out.Token)
	}))
	r.wait()
	return out
}

// chiSquare compares counts with probabilities: the statistic and its degrees of freedom. A token that cannot be drawn
// and was is infinitely far.
func chiSquare(counts []int, p []float64) (statistic float64, freedom int) {
	total := 0
	for _, n := range counts {
		total += n
	}
	rest, restN := 0.0, 0 // tokens too rare for a cell of their own
	for i, n := range counts {
		want := p[i] * float64(total)
		switch {
		case p[i] == 0 && n > 0:
			return math.Inf(1), 1
		case want < 8:
			rest, restN = rest+want, restN+n
		default:
			statistic += (float64(n) - want) * (float64(n) - want) / want
			freedom++
		}
	}
	if rest >= 8 {
		statistic += (float64(restN) - rest) * (float64(restN) - rest) / rest
		freedom++
	} else if float64(restN) > rest+8*math.Sqrt(rest)+8 {
		return math.Inf(1), 1
	}
	return statistic, max(freedom-1, 0)
}

// limit is the value that chi-square exceeds three times in ten million (Wilson and Hilferty's approximation).
func limit(freedom int) float64 {
	const z = 5
	d := 2 / (9 * float64(max(freedom, 1)))
	return float64(max(freedom, 1)) * math.Pow(1-d+z*math.Sqrt(d), 3)
}

// fits tells whether tokens look drawn from p.
func fits(tokens []int32, p []float64) (ok bool, statistic float64, freedom int) {
	counts := make([]int, len(p))
	for _, id := range tokens {
		if id < 0 || int(id) >= len(p) {
			return false, math.Inf(1), 0
		}
		counts[id]++
	}
	statistic, freedom = chiSquare(counts, p)
	return statistic <= limit(freedom), statistic, freedom
}

// reference is the distribution that parameters mean, in float64 and in the order that the OpenAI API and vLLM document:
// bias, masks, penalties, temperature, min-p, top-k, top-p. drafts are tokens of the row that count as output.
func reference(logits []float32, s Slot, drafts []int32, index int) []float64 {
	p := s.Params
	x := make([]float64, len(logits))
	for i, v := range logits {
		x[i] = float64(v) + float64(p.Bias[int32(i)])
	}
	ban := func(id int32) { x[id] = math.Inf(-1) }
	for id := range int32(len(x)) {
		if p.Allowed != nil && !slices.Contains(p.Allowed, id) || slices.Contains(p.Bad, id) {
			ban(id)
		}
	}
	if index < len(s.Prompt)+s.MinTokens {
		for _, id := range s.Stops {
			ban(id)
		}
	}
	penalties(x, s, drafts)
	return truncate(soften(x, float64(p.Temperature)), p)
}

func penalties(x []float64, s Slot, drafts []int32) {
	p := s.Params
	counts := map[int32]int{}
	for _, id := range append(slices.Clone(s.Output), drafts...) {
		counts[id]++
	}
	for i := range x {
		id := int32(i)
		if counts[id] > 0 || slices.Contains(s.Prompt, id) {
			if x[i] > 0 {
				x[i] /= float64(p.Repetition)
			} else {
				x[i] *= float64(p.Repetition)
			}
		}
		x[i] -= float64(counts[id]) * float64(p.Frequency)
		if counts[id] > 0 {
			x[i] -= float64(p.Presence)
		}
	}
}

func soften(x []float64, temperature float64) []float64 {
	out := make([]float64, len(x))
	best := slices.Index(x, slices.Max(x))
	if temperature == 0 {
		out[best] = 1
		return out
	}
	for i := range x {
		out[i] = math.Exp((x[i] - x[best]) / temperature)
	}
	return normal(out)
}

func normal(p []float64) []float64 {
	sum := 0.0
	for _, v := range p {
		sum += v
	}
	for i := range p {
		p[i] /= sum
	}
	return p
}

func truncate(p []float64, by *Params) []float64 {
	order := make([]int, len(p))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		switch {
		case p[a] > p[b]:
			return -1
		case p[a] < p[b]:
			return 1
		}
		return 0
	})
	most := p[order[0]]
	for i, id := range order {
		if p[id] < float64(by.MinP)*most || by.TopK > 0 && i >= by.TopK {
			p[id] = 0
		}
	}
	normal(p)
	sum := 0.0
	for _, id := range order {
		if sum >= float64(by.TopP) {
			p[id] = 0
		}
		sum += p[id]
	}
	return normal(p)
}
