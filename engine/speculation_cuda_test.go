//go:build cuda

package engine

import (
	"math"
	"os"
	"slices"
	"testing"

	"reprise/internal/golden"
	"reprise/kernels"
	"reprise/tokenizer"
)

// TestCUDASpeculativeTexts: in bfloat16 a product of other rows may round otherwise, so that a greedy text can go another way.
// Speculation, whose steps have more rows, must not do that to more texts than another number of neighbours does.
func TestCUDASpeculativeTexts(t *testing.T) {
	const texts, length = 64, 256
	for _, name := range []string{"demo-nemotron", "demo-qwen35"} {
		t.Run(name, func(t *testing.T) {
			g := golden.Open(t, name)
			var requests []Request
			for _, prompt := range excerpts(t, g, texts) {
				requests = append(requests, greedy(prompt, length))
			}
			plain := openOn(t, gpu(t, kernels.BF16), g, Options{MaxSeqs: texts})
			together := runAll(t, plain, requests)
			var alone []result
			for _, r := range requests {
				alone = append(alone, runAll(t, plain, []Request{r})...)
			}
			for _, o := range []Options{{Drafts: 3}, {Drafts: 7, DraftVocab: 1024}} {
				o.MaxSeqs, o.FixedDepth = texts, true
				e := openOn(t, gpu(t, kernels.BF16), g, o)
				drafted, usual := unlike(runAll(t, e, requests), together), unlike(alone, together)
				a := e.Stats().Drafts
				t.Logf("%d drafts: %d of %d texts differ, %d between batches of 1 and %d; %.2f tokens a step", o.Drafts, drafted, texts, usual, texts, a.TokensAStep())
				if oftener(drafted, usual, texts) {
					t.Errorf("%d drafts: %d of %d texts differ from plain decoding, only %d between batches of 1 and %d", o.Drafts, drafted, texts, usual, texts)
				}
				if a.Accepted == 0 || a.Accepted == a.Drafted {
					t.Errorf("%+v: the test shows nothing", a)
				}
			}
		})
	}
}

// excerpts are prompts of 12 to 43 tokens from a novel.
func excerpts(t *testing.T, g *golden.Golden, n int) (prompts [][]int32) {
	t.Helper()
	text, err := os.ReadFile("../cmd/bench/testdata/jane-eyre.txt")
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

// unlike counts the results with other tokens.
func unlike(a, b []result) (count int) {
	for i := range a {
		if !slices.Equal(a[i].ids(), b[i].ids()) {
			count++
		}
	}
	return count
}

// oftener reports whether a of n is a higher share than b of n, by a one-sided test of two proportions at 5 %.
func oftener(a, b, n int) bool {
	const quantile = 1.645 // 95 % of a standard normal distribution
	share := float64(a+b) / float64(2*n)
	return float64(a-b)/float64(n) > quantile*math.Sqrt(2*share*(1-share)/float64(n))
}
