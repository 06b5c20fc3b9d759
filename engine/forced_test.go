package engine

import (
	"math"
	"slices"
	"testing"

	"reprise/internal/golden"
	"reprise/kernels"
)

// read are the rows of a forced run, by text and tokens read.
func readForced(t *testing.T, f *Forced, o Options) map[[2]int][]float32 {
	t.Helper()
	r, err := f.Run(o)
	if err != nil {
		t.Fatal(err)
	}
	out := map[[2]int][]float32{}
	for r.Launch() {
		rows, err := r.Collect()
		if err != nil {
			t.Fatal(err)
		}
		for _, row := range rows {
			at := [2]int{row.Text, row.Read}
			if out[at] != nil {
				t.Errorf("text %d is answered twice behind %d tokens", row.Text, row.Read)
			}
			out[at] = slices.Clone(row.Logits)
		}
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	return out
}

func openForced(t *testing.T, g *golden.Golden, x Texts) *Forced {
	t.Helper()
	dev := device(t)
	f, err := OpenForced(dev, Source{Folder: g.Folder}, x, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// goldenTexts are prompts with their greedy continuations.
func goldenTexts(g *golden.Golden) (out [][]int32) {
	for _, c := range g.Cases {
		out = append(out, append(slices.Clone(c.Prompt), c.Greedy...))
	}
	return out
}

// TestForcedGoldens reads the goldens token by token, from their first one on, alone and three a step: logits are those
// of the independent implementation and the next token is the largest. Rows come for every token behind the prompt.
func TestForcedGoldens(t *testing.T) {
	forGoldens(t, func(t *testing.T, g *golden.Golden) {
		for _, x := range []Texts{{Prompt: 1, Tokens: 1}, {Prompt: 2, Tokens: 3}} {
			x.IDs = goldenTexts(g)
			all := readForced(t, openForced(t, g, x), Options{Window: 5})
			count := 0
			for i, c := range g.Cases {
				count += len(x.IDs[i]) - x.Prompt
				for k, want := range c.Logits {
					if at := len(c.Prompt) - len(c.Logits) + k + 1; at > x.Prompt {
						checkLogits(t, all[[2]int{i, at}], want, c.Scale())
					}
				}
				for k, want := range c.Greedy {
					if got := largest(all[[2]int{i, len(c.Prompt) + k}]); len(c.Prompt)+k > x.Prompt && got != want {
						t.Errorf("%d tokens a step, case %d: token %d is %d, want %d", x.Tokens, i, k, got, want)
					}
				}
			}
			if len(all) != count {
				t.Errorf("%d tokens a step: %d rows, want %d", x.Tokens, len(all), count)
			}
		}
	})
}

func checkLogits(t *testing.T, got, want []float32, scale float64) {
	t.Helper()
	for i := range want {
		if d := math.Abs(float64(got[i] - want[i])); !(d <= golden.LogitTolerance*scale) {
			t.Fatalf("logit %d is %g, want %g", i, got[i], want[i])
		}
	}
}

func largest(logits []float32) int32 {
	best := 0
	for i, v := range logits {
		if v > logits[best] {
			best = i
		}
	}
	return int32(best)
}

// TestForcedRunsSideBySide launches runs in turn over one model: each answers as it does alone, bit for bit, and a run
// that differs in its KV cache answers something else.
func TestForcedRunsSideBySide(t *testing.T) {
	g := golden.Open(t, "nemotron-latent-mtp")
	x := Texts{IDs: goldenTexts(g), Prompt: 3, Tokens: 2}
	f := openForced(t, g, x)
	alone := readForced(t, f, Options{})
	var runs []*ForcedRun
	for _, o := range []Options{{}, {KVDType: kernels.F8E4M3}, {PageTokens: 3}} {
		r, err := f.Run(o)
		if err != nil {
			t.Fatal(err)
		}
		runs = append(runs, r)
	}
	other := 0
	for runs[0].Launch() {
		for _, r := range runs[1:] {
			if !r.Launch() {
				t.Fatal("runs end at different steps")
			}
		}
		for i, r := range runs {
			rows, err := r.Collect()
			if err != nil {
				t.Fatal(err)
			}
			for _, row := range rows {
				same := slices.Equal(row.Logits, alone[[2]int{row.Text, row.Read}])
				switch {
				case i != 1 && !same:
					t.Fatalf("run %d: text %d behind %d tokens differs from the run alone", i, row.Text, row.Read)
				case i == 1 && !same:
					other++
				}
			}
		}
	}
	if other == 0 {
		t.Error("an fp8 cache changed nothing: the test shows nothing")
	}
}

func TestForcedRefuses(t *testing.T) {
	g := golden.Open(t, "qwen35-dense")
	for name, x := range map[string]Texts{
		"no texts":        {Prompt: 1, Tokens: 1},
		"no prompt":       {IDs: [][]int32{{1, 2}}, Tokens: 1},
		"no tokens":       {IDs: [][]int32{{1, 2}}, Prompt: 1},
		"only a prompt":   {IDs: [][]int32{{1, 2}}, Prompt: 2, Tokens: 1},
		"negative id":     {IDs: [][]int32{{1, -2}}, Prompt: 1, Tokens: 1},
		"id too large":    {IDs: [][]int32{{1, 1 << 20}}, Prompt: 1, Tokens: 1},
		"too many tokens": {IDs: [][]int32{{1, 2}}, Prompt: 1, Tokens: 1 << 10},
	} {
		if _, err := OpenForced(nil, Source{Folder: g.Folder}, x, 0); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
