package engine

import (
	"testing"

	"reprise/internal/golden"
	"reprise/spec"
)

// TestContextOfFewPages: n pages hold a sequence of all their tokens; drafts of the model's head need room of their own.
func TestContextOfFewPages(t *testing.T) {
	for _, c := range []struct {
		o    Options
		want int
	}{
		{Options{}, 128}, {Options{Drafts: 3, DraftMethod: spec.NGram}, 128}, {Options{Drafts: 1}, 128}, {Options{Drafts: 3}, 126},
	} {
		c.o.KVBlocks, c.o.PageTokens, c.o.FixedDepth = 8, 16, true
		e := open(t, golden.Open(t, "qwen35-moe-mtp"), c.o)
		if got := e.Limits().MaxLen; got != c.want {
			t.Errorf("%+v: a context of %d tokens, want %d", c.o, got, c.want)
		}
		if out := read(t, submit(t, e, greedy([]int32{5, 6, 7}, 1000))); len(out.tokens) != c.want-3 || out.err != nil {
			t.Errorf("%+v: %d tokens, error %v", c.o, len(out.tokens), out.err)
		}
		r := greedy(make([]int32, c.want), 0) // a prompt that is scored only fills it too
		r.PromptLogProbs = 0
		if out := read(t, submit(t, e, r)); len(out.prompt) != c.want-1 || out.err != nil {
			t.Errorf("%+v: %d scores, error %v", c.o, len(out.prompt), out.err)
		}
	}
}
