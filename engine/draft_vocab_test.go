package engine

import (
	"slices"
	"strings"
	"testing"

	"reprise/internal/golden"
	"reprise/kernels"
)

// TestDraftVocabulary: the head drafts among the first tokens only, as if the others' logits were -Inf, and the ids stay those
// of plain decoding, whatever the model itself says.
func TestDraftVocabulary(t *testing.T) {
	forDrafting(t, !testing.Short(), func(t *testing.T, g *golden.Golden) {
		config, err := ParseConfig(g.Folder)
		if err != nil {
			t.Fatal(err)
		}
		vocab := config.Spec().Vocab
		for _, n := range []int{1, vocab / 3, vocab} {
			seen := map[int32]bool{}
			dev := &watched{Device: device(t)}
			dev.hooks.next = func(o kernels.Ops, p kernels.DraftNext) { checkDrafts(t, o, p, n, seen) }
			e := openOn(t, dev, g, Options{Drafts: 3, FixedDepth: true, DraftVocab: n, MaxTokens: 64})
			checkGreedy(t, e, g)
			if e.Stats().Drafts.Drafted == 0 || n > 1 && len(seen) < 10 {
				t.Errorf("%d tokens: %d drafts, %d different: the test shows nothing", n, e.Stats().Drafts.Drafted, len(seen))
			}
			if text := e.Plan().String(); strings.Contains(text, "among the first") != (n < vocab) {
				t.Errorf("%d of %d tokens, the plan says:\n%s", n, vocab, text)
			}
		}
	})
}

// checkDrafts requires logits of n tokens, and of each row that drafts the lowest of the most likely of them.
func checkDrafts(t *testing.T, o kernels.Ops, p kernels.DraftNext, n int, seen map[int32]bool) {
	if p.Logits.Cols != n {
		t.Errorf("logits of %d tokens, want %d", p.Logits.Cols, n)
	}
	slot, left := fetch(o, p.Slot, 0, p.Logits.Rows), fetch(o, p.Left, 0, p.Logits.Rows)
	logits := make([]float32, n)
	for i := range slot {
		if left[i] <= int32(p.Index) {
			continue
		}
		o.Download(bytesOf(logits), p.Logits.RowRange(i, 1).Buf)
		want := int32(slices.Index(logits, slices.Max(logits)))
		if got := fetch(o, p.Slots.Drafts, int(slot[i])*p.Slots.DraftStride+p.Index, 1)[0]; got != want {
			t.Errorf("draft %d, the most likely of %d tokens is %d", got, n, want)
		}
		seen[want] = true
	}
}
