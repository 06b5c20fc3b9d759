package engine

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"reprise/internal/golden"
	"reprise/kernels"
	"reprise/spec"
)

// format is a choice of the three flags.
type format struct {
	state, read string
	rounding    kernels.Rounding
}

func (f format) String() string {
	return fmt.Sprintf("%s-%s-%v", f.state, f.read, f.rounding)
}

func (f format) options(o Options) Options {
	o.StateDType, o.ReadDType, o.Rounding = f.state, f.read, f.rounding
	return o
}

// formatModels have no experts, whose choice would leap.
func formatModels() []string { return []string{"nemotron-dense", "qwen35-dense"} }

// bothFamilies have heads that draft.
func bothFamilies() []string { return []string{"nemotron-latent-mtp", "qwen35-dense-tied-mtp"} }

// formats are those of the paper's Sec. 7.4, the same rounded to nearest, and the rest of what is read apart from what is
// carried on.
var formats = []format{
	{"float32", "same", kernels.Nearest}, {"float32", "float16", kernels.Nearest}, {"float32", "nvfp4", kernels.Nearest},
	{"float16", "same", kernels.Nearest}, {"bfloat16", "same", kernels.Nearest}, {"fp8", "same", kernels.Nearest}, {"nvfp4", "same", kernels.Nearest},
	{"float16", "same", kernels.Stochastic}, {"bfloat16", "same", kernels.Stochastic}, {"fp8", "same", kernels.Stochastic}, {"nvfp4", "same", kernels.Stochastic},
	{"float16", "fp8", kernels.Stochastic}, {"float16", "nvfp4", kernels.Stochastic}, {"fp8", "nvfp4", kernels.Stochastic}, {"fp8", "nvfp4", kernels.Nearest},
	{"bfloat16", "fp8", kernels.Stochastic},
}

// forFormats runs f in every format on models of both families.
func forFormats(t *testing.T, models []string, f func(t *testing.T, g *golden.Golden, f format)) {
	for _, name := range models {
		g := golden.Open(t, name)
		g.Cases = slices.Clone(g.Cases[:4])
		for i, format := range formats {
			if testing.Short() && i%6 != 1 {
				continue
			}
			t.Run(name+"/"+format.String(), func(t *testing.T) { f(t, g, format) })
		}
	}
}

// TestFormatsBatchEqualsSingle: in every format, requests at once give the bits of single runs, whatever slots, blocks and
// pages they get. The window is short, so that states are rounded many times; random numbers then depend on layer, element
// and position alone.
func TestFormatsBatchEqualsSingle(t *testing.T) {
	forFormats(t, bothFamilies(), func(t *testing.T, g *golden.Golden, f format) {
		want := alone(t, g, f.options(Options{MaxSeqs: 1, MaxLogProbs: 5, Window: 4}))
		e := open(t, g, f.options(Options{PageTokens: 8, MaxLogProbs: 5, Window: 4}))
		for round := range 2 { // the second finds slots and blocks used, in another order
			running := make([]*Sequence, len(g.Cases))
			for i := range g.Cases {
				i = (i*3 + round) % len(g.Cases)
				running[i] = submit(t, e, scored(&g.Cases[i], 24))
			}
			for i, s := range running {
				if err := read(t, s).equal(want[i]); err != nil {
					t.Errorf("case %d: %v", i, err)
				}
			}
		}
	})
}

// TestFormatsSwapped: moved to host memory between any two steps, and between the chunks of its prompt, a sequence goes on
// with the same bits: both copies of the state and the scratch block of an unfinished prompt come back as they were.
func TestFormatsSwapped(t *testing.T) {
	forFormats(t, bothFamilies(), func(t *testing.T, g *golden.Golden, f format) {
		for _, o := range []Options{{}, {Drafts: 2, FixedDepth: true}} {
			o.MaxTokens, o.MaxSeqs, o.PageTokens, o.Window, o.MaxLogProbs = 24, 1, 4, 4, 5
			c := &g.Cases[3]
			want, _ := turned(t, device(t), g, f.options(o), c, nil)
			got, swaps := turned(t, device(t), g, f.options(o), c, func(turn int) bool { return turn%3 != 1 })
			if err := got.equal(want); err != nil {
				t.Errorf("%d drafts: %v", o.Drafts, err)
			}
			if swaps < 10 {
				t.Errorf("swapped %d times: the test shows nothing", swaps)
			}
		}
	})
}

// turned runs a case on an engine of its own and swaps it out before the turns that are chosen.
func turned(t *testing.T, dev kernels.Device, g *golden.Golden, o Options, c *golden.Case, swap func(turn int) bool) (result, int) {
	t.Helper()
	e := openStill(t, dev, g, o)
	s := submit(t, e, scored(c, 24))
	swaps := swapped(t, e, s, swap)
	go e.loop()
	return read(t, s), swaps
}

// TestFormatsAfterAFault: behind a step that broke, slots, blocks and scratch blocks are as good as new.
func TestFormatsAfterAFault(t *testing.T) {
	forFormats(t, bothFamilies(), func(t *testing.T, g *golden.Golden, f format) {
		o := f.options(Options{MaxTokens: 24, MaxSeqs: 2, Window: 4, MaxLogProbs: 5})
		c := &g.Cases[3]
		want := read(t, submit(t, open(t, g, o), scored(c, 12)))
		for _, steps := range []int{2, 9} { // within the prompt, and behind a flush
			left := steps
			e := openOn(t, faulty{device(t), &left}, g, o)
			if r := read(t, submit(t, e, scored(c, 12))); !errors.Is(r.err, ErrFault) {
				t.Fatalf("got error %v, want the planted fault", r.err)
			}
			if err := read(t, submit(t, e, scored(c, 12))).equal(want); err != nil {
				t.Errorf("after a fault in step %d: %v", steps, err)
			}
		}
	})
}

// forcing makes an engine read a text instead of generating: what was sampled is replaced before it is committed.
type forcing struct{ text []int32 }

func (f *forcing) commit(o kernels.Ops, p kernels.Commit) {
	say := func(sampled int, index int32, n int) {
		rest := append(slices.Clone(f.text[min(int(index), len(f.text)):]), make([]int32, n)...)
		put(o, p.Sampled, sampled, rest[:n]...)
	}
	for r := range p.Step.Count { // one at most: sequences come one by one
		if first := fetch(o, p.Pos, r*p.Step.T, 1)[0]; first >= 0 {
			say(p.SampleFirst+r*p.Step.T, first+1, p.Step.T)
		}
	}
	for r := range p.Prefill.Count {
		if at := fetch(o, p.Final, r, 1)[0]; at >= 0 {
			last := fetch(o, p.Prefill.Start, r, 1)[0] + fetch(o, p.Prefill.N, r, 1)[0] - 1
			say(int(at), fetch(o, p.Pos, int(last), 1)[0]+1, 1)
		}
	}
	o.Commit(p)
}

// forced are the log probabilities of all tokens at the first n places behind each prompt, by case, place and id, of an
// engine that reads the goldens' answers.
func forced(t *testing.T, dev kernels.Device, g *golden.Golden, o Options, n int) (out [][][]float64) {
	t.Helper()
	o.MaxSeqs, o.MaxLogProbs, o.FixedDepth = 1, -1, true
	f := &forcing{}
	e := openStill(t, &watched{Device: dev, hooks: watchedOps{commit: f.commit}}, g, o)
	if o.Drafts > 0 { // some drafts are right
		e.drafter = &prompter{Drafter: e.drafter, texts: texts(g), wrong: some, known: map[int]map[int32]int32{}}
	}
	go e.loop()
	for i := range g.Cases {
		c := &g.Cases[i]
		f.text = slices.Concat(c.Prompt, c.Greedy)
		r := greedy(c.Prompt, n)
		r.LogProbs = e.Limits().Vocab
		answer := read(t, submit(t, e, r))
		if answer.err != nil || !slices.Equal(answer.ids(), c.Greedy[:n]) {
			t.Fatalf("case %d: %v was not forced: %v, error %v", i, c.Greedy[:n], answer.ids(), answer.err)
		}
		out = append(out, byID(answer.tokens))
	}
	if a := e.Stats().Drafts; o.Drafts > 0 && (a.Accepted == 0 || a.Accepted == a.Drafted) {
		t.Errorf("%+v: the test shows nothing", a)
	}
	return out
}

func byID(tokens []Token) [][]float64 {
	out := make([][]float64, len(tokens))
	for i, token := range tokens {
		out[i] = make([]float64, len(token.Top))
		for _, a := range token.Top {
			out[i][a.ID] = float64(a.LogProb)
		}
	}
	return out
}

// difference is the root of the mean square and the largest of the differences, at the places from..to-1 of all cases.
func difference(a, b [][][]float64, from, to int) (rms, most float64) {
	count := 0
	for i := range a {
		for j := from; j < to; j++ {
			for id := range a[i][j] {
				d := math.Abs(a[i][j][id] - b[i][j][id])
				rms, most, count = rms+d*d, max(most, d), count+1
			}
		}
	}
	return math.Sqrt(rms / float64(count)), most
}

// floatTolerance is the allowed difference of log probabilities in float32.
func floatTolerance(g *golden.Golden) float64 {
	scale := 0.0
	for i := range g.Cases {
		scale = max(scale, g.Cases[i].Scale())
	}
	return 2 * golden.LogitTolerance * scale
}

// TestFormatsAgainstFloat32 reads the same texts in every format and compares: prompts are computed in float32 in however
// many chunks, so that the first answer of all formats is that of float32; and what changes the place or the last bit of a
// rounding (chunks, drafts) changes answers by no more than the format itself does. Two runs that are each as far from
// float32 as the format's plain run differ by twice that; drafts are compared by root mean squares, since the roundings
// of other windows are other random samples of the same error.
func TestFormatsAgainstFloat32(t *testing.T) {
	const n = 28
	exact := map[string][][][]float64{}
	forFormats(t, formatModels(), func(t *testing.T, g *golden.Golden, f format) {
		o := Options{Window: 8}
		if exact[g.Name] == nil {
			exact[g.Name] = forced(t, device(t), g, o, n)
		}
		float := floatTolerance(g)
		plain := forced(t, device(t), g, f.options(o), n)
		rms, most := difference(plain, exact[g.Name], 1, n)
		chunked := f.options(o)
		chunked.MaxTokens = 24
		chunks := forced(t, device(t), g, chunked, n)
		for name, run := range map[string][][][]float64{"whole": plain, "chunked": chunks} {
			if _, first := difference(run, exact[g.Name], 0, 1); first > float {
				t.Errorf("%s: the answer to the prompt differs from float32 by %g, tolerance %g", name, first, float)
			}
		}
		_, apart := difference(chunks, plain, 1, n)
		if limit := 2*most + float; apart > limit {
			t.Errorf("chunked and whole differ by %g, tolerance %g", apart, limit)
		}
		drafted := f.options(o)
		drafted.Drafts, drafted.DraftMethod = 3, spec.NGram
		speculative, _ := difference(forced(t, device(t), g, drafted, n), exact[g.Name], 1, n)
		if limit := 1.5*rms + float; speculative > limit {
			t.Errorf("speculative differs from float32 by %g (root mean square), plain by %g", speculative, rms)
		}
		t.Logf("from float32: rms %.2g, most %.2g; chunked from whole: most %.2g; speculative: rms %.2g", rms, most, apart, speculative)
		if f.state != "float32" && rms == 0 {
			t.Error("the format changes nothing: the test shows nothing")
		}
	})
}
