package engine

import (
	"slices"
	"testing"

	"reprise/internal/golden"
	"reprise/kernels"
)

// TestCancelFreesTheSlotWithinTwoSteps, whoever is cancelled and at whatever stage.
func TestCancelFreesTheSlotWithinTwoSteps(t *testing.T) {
	g := golden.Open(t, "qwen35-dense-tied-mtp")
	cancelInTurn(t, device(t), g, 0)
	cancelInTurn(t, capturing{device(t)}, g, 3)
}

// cancelInTurn fills all slots, then again and again lets one request wait and cancels another one that runs: the one that
// waits computes in that slot at most two steps later, although steps of the cancelled one are in flight, and those that
// go on answer as if nothing had happened.
func cancelInTurn(t *testing.T, dev kernels.Device, g *golden.Golden, drafts int) {
	t.Helper()
	const slots, rounds, answer = 4, 6, 140
	e := openStill(t, dev, g, Options{MaxSeqs: slots, MaxTokens: 256, Drafts: drafts, FixedDepth: true})
	if dev.Graphs() {
		if err := e.capture(e.geometry()); err != nil {
			t.Fatal(err)
		}
	}
	var list []*Sequence
	add := func() { list = append(list, submit(t, e, greedy(g.Cases[len(list)%len(g.Cases)].Prompt, answer))) }
	slot := func(i int) int {
		if s, ok := e.states.Slot(list[i].id); ok {
			return s
		}
		return -1
	}
	for range slots {
		add()
	}
	for i := range rounds {
		for range 1 + 2*i%5 { // another phase of the step each time
			e.turn()
		}
		add()
		e.turn()
		mine := slot(i)
		if mine < 0 || slot(i+slots) >= 0 {
			t.Fatalf("request %d has slot %d and the one behind it %d: the test shows nothing", i, mine, slot(i+slots))
		}
		list[i].Cancel()
		steps := 0
		for ; steps < 9 && slot(i+slots) != mine; steps++ {
			e.turn()
		}
		if steps > 2 {
			t.Errorf("%d drafts: the slot of a cancelled request is taken %d steps later, want 2 at most", drafts, steps)
		}
	}
	go e.loop()
	for i := rounds; i < len(list); i++ {
		want := g.Cases[i%len(g.Cases)].Greedy
		if got := read(t, list[i]).ids(); len(got) != answer || !slices.Equal(got[:len(want)], want) {
			t.Errorf("request %d, %d drafts: got %v, want %v", i, drafts, got[:min(len(got), len(want))], want)
		}
	}
}
