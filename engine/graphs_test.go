package engine

import (
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"

	"reprise/internal/golden"
	"reprise/kernels"
	"reprise/spec"
)

// capturing is a device that says it gains by graphs.
type capturing struct{ kernels.Device }

func (capturing) Graphs() bool { return true }

// TestCapturedSteps: steps padded to captured sizes give the goldens, with and without drafts.
func TestCapturedSteps(t *testing.T) {
	for _, name := range []string{"nemotron-latent-mtp", "qwen35-moe-mtp", "demo-qwen35"} {
		g := golden.Open(t, name)
		for _, drafts := range []int{0, 2} {
			e := openOn(t, capturing{device(t)}, g, Options{MaxSeqs: 12, MaxTokens: 64, Drafts: drafts, FixedDepth: true})
			checkGreedy(t, e, g)
			if e.Plan().Graphs.Bytes < 0 || len(e.Plan().Graphs.Rows) == 0 {
				t.Error("nothing was captured: the test shows nothing")
			}
		}
	}
}

// forbidding is a capturing device that counts steps which run although they could have been replayed.
type forbidding struct {
	capturing
	eager *atomic.Int64
}

// Submit counts forward passes without prefill rows.
func (f forbidding) Submit(p kernels.Program) {
	f.Device.Submit(kernels.ProgramFunc(func(o kernels.Ops) { p.Run(eagerOps{o, f.eager}) }))
}

type eagerOps struct {
	kernels.Ops
	eager *atomic.Int64
}

func (o eagerOps) Begin(p kernels.Begin) {
	if p.Prefill.Empty() {
		o.eager.Add(1)
	}
	o.Ops.Begin(p)
}

func (o eagerOps) DraftBegin(p kernels.DraftBegin) {
	if p.Prefill.Empty() {
		o.eager.Add(1)
	}
	o.Ops.DraftBegin(p)
}

func (o eagerOps) DraftLookup(p kernels.DraftLookup) {
	if p.Prefill.Empty() {
		o.eager.Add(1)
	}
	o.Ops.DraftLookup(p)
}

// TestDepthChangesAreCaptured: whatever depth follows whichever, only steps with prompts run eagerly.
func TestDepthChangesAreCaptured(t *testing.T) {
	for _, method := range []spec.Method{spec.MTPHead, spec.NGram} {
		g, eager := golden.Open(t, "qwen35-dense-tied-mtp"), new(atomic.Int64)
		e := openStill(t, forbidding{capturing{device(t)}, eager}, g, Options{MaxLen: 512, MaxSeqs: 4, MaxTokens: 64, Drafts: 3, DraftMethod: method})
		if err := e.capture(e.geometry()); err != nil {
			t.Fatal(err)
		}
		for i := range 2 {
			submit(t, e, greedy(g.Cases[i].Prompt, 300))
		}
		seen, random := map[[2]int]bool{}, rand.New(rand.NewPCG(1, 2))
		for turn := 0; len(seen) < 16 && (turn == 0 || len(e.seqs) == 2); turn++ {
			e.control = spec.NewDepth(random.IntN(4), true)
			l := e.lanes[e.next]
			e.turn()
			if len(l.prefills) == 0 && len(l.steps) == 2 {
				seen[[2]int{l.plan.T, l.depth}] = true
			}
		}
		if n := eager.Load(); n > 0 {
			t.Errorf("%s: %d parts of steps without prompts were not replayed", method, n)
		}
		if len(seen) < 14 {
			t.Errorf("%s: only %d combinations of length and depth came up: %v", method, len(seen), seen)
		}
		e.Abort()
		go e.loop()
	}
}

func TestBuckets(t *testing.T) {
	for _, most := range []int{1, 2, 7, 8, 64, 100, 256, 512} {
		b := buckets(most)
		if !slices.IsSorted(b) || b[0] != 1 || b[len(b)-1] != most || len(slices.Compact(slices.Clone(b))) != len(b) {
			t.Errorf("buckets(%d) = %v", most, b)
		}
	}
}
