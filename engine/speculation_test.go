package engine

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"reprise/internal/golden"
	"reprise/kernels"
	"reprise/tokenizer"
)

// textComparison compares greedy texts of a model in steps with neighbours, alone, and with drafts. Where activations are
// rounded, other rows in a product may round otherwise, and a text goes another way where two tokens are about as likely.
type textComparison struct {
	golden        *golden.Golden
	open          func() kernels.Device
	act           kernels.DType // what activations are rounded to
	texts, length int

	experts bool // of the model; known after run
}

// textsApart is how some texts differ from others: how many do, how many of them at a token that no rounding explains, and the
// largest lead, in nats, that the others had for their own token there.
type textsApart struct {
	count, far int
	worst      float64
}

// drafting are the ways of speculation: as a server has it, and as far ahead as can be with few tokens to draft.
func drafting() []Options {
	return []Options{{Drafts: 3, FixedDepth: true}, {Drafts: 7, FixedDepth: true, DraftVocab: 1024}}
}

// run compares with the texts of plain steps of all rows: those of plain steps of one row, and of each way of drafting.
func (c *textComparison) run(t *testing.T) (alone textsApart, drafted []textsApart) {
	t.Helper()
	var requests, scored []Request
	for _, prompt := range excerpts(t, c.golden, c.texts) {
		r := greedy(prompt, c.length)
		requests = append(requests, r)
		r.LogProbs = 20
		scored = append(scored, r)
	}
	plain := openOn(t, c.open(), c.golden, Options{MaxSeqs: c.texts, MaxLogProbs: 20})
	together := runAll(t, plain, scored)
	var single []result
	for _, r := range requests {
		single = append(single, runAll(t, plain, []Request{r})...)
	}
	c.experts = plain.Spec().Experts > 0
	near := rounding(c.golden, c.act)
	alone = apart(single, together, near)
	t.Logf("%d texts alone: %v; rounding turns up to %.3g around", c.texts, alone, near)
	for _, o := range drafting() {
		o.MaxSeqs = c.texts
		e := openOn(t, c.open(), c.golden, o)
		d := apart(runAll(t, e, requests), together, near)
		a := e.Stats().Drafts
		t.Logf("%d texts with %d drafts: %v; %.2f tokens a step", c.texts, o.Drafts, d, a.TokensAStep())
		if a.Accepted == 0 || a.Accepted == a.Drafted {
			t.Errorf("%+v: the test shows nothing", a)
		}
		drafted = append(drafted, d)
	}
	return alone, drafted
}

func (a textsApart) String() string {
	return fmt.Sprintf("%d differ, %d of them by more than rounding; largest lead %.3g", a.count, a.far, a.worst)
}

// fault is why speculation whose texts differ so is at fault, where texts that are alone differ as usual: more of them do than
// chance explains, or some do where the model was sure.
func (c *textComparison) fault(drafted, usual textsApart) error {
	if oftener(drafted.count, usual.count, c.texts) {
		return fmt.Errorf("%d of %d texts differ from plain decoding, only %d between batches of 1 and %d", drafted.count, c.texts, usual.count, c.texts)
	}
	return c.surprise(drafted, usual)
}

// surprise is the second of these. A choice of experts that flips can move a model so far, but seldom does.
func (c *textComparison) surprise(drafted, usual textsApart) error {
	most := usual.far
	if c.experts {
		most += 2
	}
	if drafted.far > most {
		return fmt.Errorf("%d of %d texts differ where the lead is more than rounding explains, up to %.3g; allowed %d", drafted.far, c.texts, drafted.worst, most)
	}
	return nil
}

// rounding is the lead, in nats, that rounding may turn around: two logits of two runs, each off by what a plain run is. Of
// cases of a model with experts some are off by more, because a choice flipped: the middle one counts.
func rounding(g *golden.Golden, act kernels.DType) float64 {
	scale, off := 0.0, []float64{}
	for i := range g.Cases {
		scale, off = max(scale, g.Cases[i].Scale()), append(off, g.Cases[i].BF16)
	}
	if act == kernels.F32 {
		return 4 * golden.LogitTolerance * scale
	}
	slices.Sort(off)
	return 4 * off[len(off)/2] * scale
}

// apart compares texts with others that have log probabilities.
func apart(texts, others []result, near float64) (a textsApart) {
	for i := range texts {
		got, want := texts[i].ids(), others[i].tokens
		at := 0
		for at < min(len(got), len(want)) && got[at] == want[at].ID {
			at++
		}
		if at == len(got) && at == len(want) {
			continue
		}
		a.count++
		lead := math.Inf(1)
		if at < min(len(got), len(want)) {
			for _, other := range want[at].Top {
				if other.ID == got[at] {
					lead = float64(want[at].LogProb - other.LogProb)
				}
			}
		}
		a.worst = max(a.worst, lead)
		if !(lead <= near) {
			a.far++
		}
	}
	return a
}

// excerpts are prompts of 12 to 43 tokens from a novel.
func excerpts(t *testing.T, g *golden.Golden, n int) (prompts [][]int32) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(golden.Repository(), "cmd/bench/testdata/jane-eyre.txt"))
	if err != nil {
		t.Fatal(err)
	}
	tok, err := tokenizer.Load(g.Folder.Tokenizer, g.Folder.TokenizerConfig)
	if err != nil {
		t.Fatal(err)
	}
	ids := tok.Encode(string(text), tokenizer.EncodeOptions{})
	for i := range n {
		from := i * (len(ids) - 64) / n
		prompts = append(prompts, ids[from:from+12+i%32])
	}
	return prompts
}

// oftener reports whether a of n is a higher share than b of n, by a one-sided test of two proportions at 5 % for the four
// comparisons of a run together: two models, two ways of drafting.
func oftener(a, b, n int) bool {
	const quantile = 2.241 // 1 - 5 % / 4 of a standard normal distribution
	share := float64(a+b) / float64(2*n)
	return float64(a-b)/float64(n) > quantile*math.Sqrt(2*share*(1-share)/float64(n))
}

func TestOftener(t *testing.T) {
	for _, c := range []struct {
		a, b int
		want bool
	}{{0, 0, false}, {64, 64, false}, {4, 0, false}, {5, 0, true}, {40, 32, false}, {44, 32, false}, {45, 32, true}, {30, 50, false}} {
		if got := oftener(c.a, c.b, 64); got != c.want {
			t.Errorf("%d and %d of 64: %t", c.a, c.b, got)
		}
	}
}

// TestSpeculativeTexts: on the CPU, whose sums do not depend on the rows, no text differs.
func TestSpeculativeTexts(t *testing.T) {
	for _, name := range []string{"demo-nemotron", "demo-qwen35"} {
		if testing.Short() && name != "demo-qwen35" {
			continue
		}
		c := textComparison{golden: golden.Open(t, name), open: func() kernels.Device { return device(t) }, act: kernels.F32, texts: 10, length: 32}
		alone, drafted := c.run(t)
		for _, a := range slices.Concat([]textsApart{alone}, drafted) {
			if a.count > 0 {
				t.Errorf("%s: %v", name, a)
			}
		}
	}
}

// roundingDevice is one whose products end in bfloat16, as if they were summed in another order where there are other rows.
type roundingDevice struct{ kernels.Device }

func (d roundingDevice) Submit(p kernels.Program) {
	d.Device.Submit(kernels.ProgramFunc(func(o kernels.Ops) { p.Run(roundingOps{o}) }))
}

type roundingOps struct{ kernels.Ops }

func (o roundingOps) Linear(p kernels.Linear) {
	o.Ops.Linear(p)
	if p.Y.Cols > 4000 {
		return // logits
	}
	nudge := 1 + float32(p.Y.Rows%5-2)/(1<<12) // less than half a unit in the last place
	row := make([]float32, p.Y.Cols)
	for r := range p.Y.Rows {
		at := p.Y.RowRange(r, 1).Buf
		o.Download(bytesOf(row), at)
		for i, v := range row {
			row[i] = kernels.BF16ToF32(kernels.F32ToBF16(v * nudge))
		}
		o.Upload(at, bytesOf(row))
	}
}

// TestSpeculativeTextsWhereRoundingDiffers: texts that go another way for no other reason than rounding do so where it decides.
// How many do is a matter of chance here, since steps have other rows in every run.
func TestSpeculativeTextsWhereRoundingDiffers(t *testing.T) {
	if testing.Short() {
		t.Skip("reads 16 texts of both models at several batch sizes; make test does")
	}
	count := 0
	for _, name := range []string{"demo-nemotron", "demo-qwen35"} {
		open := func() kernels.Device { return roundingDevice{device(t)} }
		c := textComparison{golden: golden.Open(t, name), open: open, act: kernels.BF16, texts: 16, length: 64}
		alone, drafted := c.run(t)
		for _, a := range append(drafted, alone) {
			count += a.count
			if err := c.surprise(a, textsApart{}); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if count == 0 {
		t.Error("no text differs: the test shows nothing")
	}
}

// TestSpeculativeTextsCatchesFaults plants verify steps whose second token is sampled from the logits of the first, in all rows
// and in one.
func TestSpeculativeTextsCatchesFaults(t *testing.T) {
	for _, rows := range []int{16, 1} {
		if testing.Short() && rows > 1 {
			continue
		}
		wrong := func(o kernels.Ops, p kernels.Commit) {
			for r := range min(p.Step.Count, rows) {
				if at := p.SampleFirst + r*p.Step.T; p.Step.T > 1 {
					put(o, p.Sampled, at+1, fetch(o, p.Sampled, at, 1)[0])
				}
			}
			o.Commit(p)
		}
		open := func() kernels.Device { return &watched{Device: device(t), hooks: watchedOps{commit: wrong}} }
		c := textComparison{golden: golden.Open(t, "demo-qwen35"), open: open, act: kernels.F32, texts: 16, length: 16}
		alone, drafted := c.run(t)
		for _, a := range drafted {
			if err := c.fault(a, alone); err == nil {
				t.Errorf("%d rows: %v is not seen", rows, a)
			} else {
				t.Log(err)
			}
		}
	}
}
