package engine

import (
	"context"
	"runtime"
	"testing"

	"reprise/internal/golden"
)

// TestStepsAllocateNothing counts the allocations of the whole process over hundreds of steps in steady state: planning,
// memory, device, collection and the reader together. The runtime itself makes a few now and then; a step that made even
// one would show as hundreds.
func TestStepsAllocateNothing(t *testing.T) {
	g := golden.Open(t, "nemotron-moe")
	for name, o := range map[string]Options{"plain": {}, "a page every step": {PageTokens: 1}} {
		t.Run(name, func(t *testing.T) {
			o.MaxSeqs = 4
			e := open(t, g, o)
			s := submit(t, e, greedy(g.Cases[1].Prompt, 480))
			other := submit(t, e, greedy(g.Cases[2].Prompt, 480))
			advance := func(tokens int) { // a reader may get several tokens at once
				for _, q := range []*Sequence{s, other} {
					for left := tokens; left > 0; {
						u, err := q.Next(context.Background())
						if err != nil || u.Done() {
							t.Fatalf("ended with %d tokens to come: %+v, %v", left, u, err)
						}
						left -= len(u.Tokens)
					}
				}
			}
			advance(60)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			advance(200)
			runtime.ReadMemStats(&after)
			if n := after.Mallocs - before.Mallocs; n > 60 {
				t.Errorf("%d allocations in 200 steps of two sequences", n)
			}
			s.Cancel()
			other.Cancel()
		})
	}
}
