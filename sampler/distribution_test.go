package sampler

import (
	"math"
	"slices"
	"testing"
)

// shaped are logits with a slope, a few equal ones, and both signs.
func shaped(vocab int) []float32 {
	out := make([]float32, vocab)
	for i := range out {
		out[i] = float32(math.Round(8*(1.5-3*float64(i*7%vocab)/float64(vocab)+math.Sin(float64(i)))) / 8)
	}
	return out
}

// distribution is a set of parameters and, to show that its test can fail, changes that must be noticed.
type distribution struct {
	name   string
	change func(*Slot)
	wrong  map[string]func(*Slot)
}

func distributions() []distribution {
	set := func(f func(*Params)) func(*Slot) { return func(s *Slot) { f(s.Params) } }
	output := func(s *Slot) { s.Output = []int32{1, 1, 2, 5, 5, 5} }
	return []distribution{
		{"plain", func(*Slot) {}, map[string]func(*Slot){"warmer by a tenth": set(func(p *Params) { p.Temperature = 1.1 })}},
		{"temperature 0.6", set(func(p *Params) { p.Temperature = 0.6 }), map[string]func(*Slot){"1": set(func(p *Params) { p.Temperature = 1 })}},
		{"temperature 2", set(func(p *Params) { p.Temperature = 2 }), map[string]func(*Slot){"1.7": set(func(p *Params) { p.Temperature = 1.7 })}},
		{"greedy", set(func(p *Params) { p.Temperature = 0 }), map[string]func(*Slot){"cold": set(func(p *Params) { p.Temperature = 0.3 })}},
		{"greedy ignores truncation", set(func(p *Params) { p.Temperature, p.TopP, p.TopK, p.MinP = 0, 0.5, 3, 0.5 }), nil},
		{"top_k 1", set(func(p *Params) { p.TopK = 1 }), map[string]func(*Slot){"2": set(func(p *Params) { p.TopK = 2 })}},
		{"top_k 5", set(func(p *Params) { p.TopK = 5 }), map[string]func(*Slot){"4": set(func(p *Params) { p.TopK = 4 }), "6": set(func(p *Params) { p.TopK = 6 })}},
		{"top_k of all", set(func(p *Params) { p.TopK = 1 << 30 }), nil},
		{"top_p 0.8", set(func(p *Params) { p.TopP = 0.8 }), map[string]func(*Slot){"0.7": set(func(p *Params) { p.TopP = 0.7 }), "off": set(func(p *Params) { p.TopP = 1 })}},
		{"top_p tiny", set(func(p *Params) { p.TopP = 1e-30 }), map[string]func(*Slot){"off": set(func(p *Params) { p.TopP = 1 })}},
		{"min_p 0.2", set(func(p *Params) { p.MinP = 0.2 }), map[string]func(*Slot){"0.4": set(func(p *Params) { p.MinP = 0.4 })}},
		{"min_p 1", set(func(p *Params) { p.MinP = 1 }), map[string]func(*Slot){"off": set(func(p *Params) { p.MinP = 0 })}},
		{"presence", func(s *Slot) { output(s); s.Params.Presence = 1.5 }, map[string]func(*Slot){"frequency": set(func(p *Params) { p.Presence, p.Frequency = 0, 1.5 })}},
		{"presence rewards", func(s *Slot) { output(s); s.Params.Presence = -2 }, map[string]func(*Slot){"nothing": set(func(p *Params) { p.Presence = 0 })}},
		{"frequency", func(s *Slot) { output(s); s.Params.Frequency = 0.7 }, map[string]func(*Slot){"once each": func(s *Slot) { s.Output = []int32{1, 2, 5} }}},
		{"repetition of output", func(s *Slot) { output(s); s.Params.Repetition = 1.7 }, map[string]func(*Slot){"off": set(func(p *Params) { p.Repetition = 1 })}},
		{"repetition of the prompt", func(s *Slot) { s.Params.Repetition = 4 }, map[string]func(*Slot){"no prompt": func(s *Slot) { s.Prompt = []int32{9} }}},
		{"repetition below 1", func(s *Slot) { output(s); s.Params.Repetition = 0.5 }, map[string]func(*Slot){"off": set(func(p *Params) { p.Repetition = 1 })}},
		{"bias", set(func(p *Params) { p.Bias = map[int32]float32{3: 2.5, 8: -1} }), map[string]func(*Slot){"one": set(func(p *Params) { p.Bias = map[int32]float32{3: 2.5} })}},
		{"bias 100", set(func(p *Params) { p.Bias = map[int32]float32{3: 100} }), map[string]func(*Slot){"5": set(func(p *Params) { p.Bias = map[int32]float32{3: 5} })}},
		{"allowed", set(func(p *Params) { p.Allowed = []int32{2, 4, 11} }), map[string]func(*Slot){"more": set(func(p *Params) { p.Allowed = []int32{2, 4, 11, 12} })}},
		{"bad", set(func(p *Params) { p.Bad = []int32{0, 6} }), map[string]func(*Slot){"none": set(func(p *Params) { p.Bad = nil })}},
		{"bad before bias", set(func(p *Params) { p.Bad, p.Bias = []int32{6}, map[int32]float32{6: 100} }), nil},
		{"stops before min_tokens", func(s *Slot) { s.Stops, s.MinTokens = []int32{0, 7}, 1<<20 }, map[string]func(*Slot){"late": func(s *Slot) { s.MinTokens = 0 }}},
		{"stops after min_tokens", func(s *Slot) { s.Stops, s.MinTokens = []int32{0, 7}, 1 }, nil},
		{"top_k then top_p", set(func(p *Params) { p.TopK, p.TopP = 6, 0.75 }), map[string]func(*Slot){"no top_k": set(func(p *Params) { p.TopK = 0 })}},
		{"all truncations", set(func(p *Params) { p.Temperature, p.TopK, p.TopP, p.MinP = 1.3, 8, 0.9, 0.05 }), nil},
		{"everything", func(s *Slot) {
			output(s)
			s.Stops, s.MinTokens = []int32{7}, 1<<20
			p := s.Params
			p.Temperature, p.TopK, p.TopP, p.MinP, p.Repetition, p.Presence, p.Frequency = 0.8, 9, 0.95, 0.01, 1.2, 0.3, 0.2
			p.Bias, p.Bad = map[int32]float32{4: 1, 5: -2}, []int32{2}
			p.Allowed = []int32{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
		}, map[string]func(*Slot){"no penalties": set(func(p *Params) { p.Repetition, p.Presence, p.Frequency = 1, 0, 0 })}},
	}
}

// slotFor is a slot with the change applied to neutral parameters.
func slotFor(changes ...func(*Slot)) Slot {
	p := Default()
	p.Seed = 20261130
	s := Slot{Params: &p, Prompt: []int32{3, 3, 6}, MaxLen: 1 << 21, Active: true}
	for _, f := range changes {
		f(&s)
	}
	return s
}

// TestDistributions draws from every kind of parameters and their combinations and compares with a float64 reference,
// over a vocabulary that is one block of the device's selection and one that is several.
func TestDistributions(t *testing.T) {
	for _, vocab := range []int{16, 131} {
		r := newRig(t, vocab, 1000, [context]int32{}, 0)
		logits := shaped(vocab)
		for _, d := range distributions() {
			s := slotFor(d.change)
			tokens := r.sample(logits, s)
			if ok, x, n := fits(tokens, reference(logits, s, nil, 1000)); !ok {
				t.Errorf("vocabulary %d, %s: chi-square %g with %d degrees of freedom, limit %g", vocab, d.name, x, n, limit(n))
			}
			for name, wrong := range d.wrong {
				if ok, x, n := fits(tokens, reference(logits, slotFor(d.change, wrong), nil, 1000)); ok {
					t.Errorf("vocabulary %d, %s: %s is not noticed (chi-square %g with %d degrees of freedom)", vocab, d.name, name, x, n)
				}
			}
		}
	}
}

// TestDraftsCountAsOutput: penalties of a verified row take the drafts before it for output, and not what lies further
// back, which the counts hold already.
func TestDraftsCountAsOutput(t *testing.T) {
	past := [context]int32{4, 9, 2}
	s := slotFor(func(s *Slot) { s.Params.Frequency, s.Params.Presence, s.Output = 1.5, 0.4, []int32{4} })
	logits := shaped(16)
	tokens := newRig(t, 16, 50, past, 2).sample(logits, s)
	if ok, x, n := fits(tokens, reference(logits, s, past[1:], 50)); !ok {
		t.Errorf("chi-square %g with %d degrees of freedom", x, n)
	}
	for _, wrong := range [][]int32{nil, past[2:], past[:]} {
		if ok, _, _ := fits(tokens, reference(logits, s, wrong, 50)); ok {
			t.Errorf("drafts %v are not noticed", wrong)
		}
	}
}

// TestFlatLogits: equal logits are equally likely, and truncation keeps the lowest ids.
func TestFlatLogits(t *testing.T) {
	r := newRig(t, 130, 0, [context]int32{}, 0)
	flat := make([]float32, 130)
	for _, f := range []func(*Params){
		func(*Params) {}, func(p *Params) { p.TopK = 3 }, func(p *Params) { p.TopP = 0.1 }, func(p *Params) { p.MinP = 1 }, func(p *Params) { p.Temperature = 0 },
	} {
		s := slotFor(func(s *Slot) { f(s.Params) })
		tokens := r.sample(flat, s)
		if ok, x, n := fits(tokens, reference(flat, s, nil, 0)); !ok {
			t.Errorf("%+v: chi-square %g with %d degrees of freedom", *s.Params, x, n)
		}
	}
}

// TestSeeds: the same seed gives the same tokens, another one others, and neither neighbouring positions nor neighbouring
// seeds have anything to do with each other.
func TestSeeds(t *testing.T) {
	r := newRig(t, 8, 77, [context]int32{}, 0)
	flat := make([]float32, 8)
	with := func(seed uint64) []int32 { return r.sample(flat, slotFor(func(s *Slot) { s.Params.Seed = seed })) }
	for _, seed := range []uint64{0, 1, 41, 1<<32 - 1, 1 << 32, 1<<64 - 2} {
		a, b, next := with(seed), with(seed), with(seed+1)
		if !slices.Equal(a, b) {
			t.Fatalf("seed %d is not reproducible", seed)
		}
		pairs, seeds, p := make([]int, 64), make([]int, 64), make([]float64, 64)
		for i := range a {
			pairs[8*a[i]+a[(i+1)%len(a)]]++
			seeds[8*a[i]+next[i]]++
		}
		for i := range p {
			p[i] = 1.0 / 64
		}
		if x, n := chiSquare(pairs, p); x > limit(n) {
			t.Errorf("seed %d: neighbouring positions: chi-square %g with %d degrees of freedom", seed, x, n)
		}
		if x, n := chiSquare(seeds, p); x > limit(n) {
			t.Errorf("seeds %d and %d: chi-square %g with %d degrees of freedom", seed, seed+1, x, n)
		}
	}
}

// TestMasksThatLeaveNothing give token 0 rather than a fault.
func TestMasksThatLeaveNothing(t *testing.T) {
	r := newRig(t, 70, 5, [context]int32{}, 0)
	s := slotFor(func(s *Slot) { s.Params.Allowed, s.Params.Bad = []int32{5, 66}, []int32{5, 66} })
	for _, temperature := range []float32{0, 1} {
		s.Params.Temperature = temperature
		for _, id := range r.sample(shaped(70), s) {
			if id != 0 {
				t.Fatalf("temperature %g: token %d", temperature, id)
			}
		}
	}
}
