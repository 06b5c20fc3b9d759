package engine

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"reprise/internal/golden"
	"reprise/kernels"
	"reprise/spec"
)

// tinyDrafting are the small goldens with an MTP head.
func tinyDrafting() []string {
	return []string{"nemotron-latent-mtp", "qwen35-dense-tied-mtp", "qwen35-moe-mtp"}
}

// forDrafting runs f on the goldens with an MTP head; on the small ones only where demos would take too long.
func forDrafting(t *testing.T, demos bool, f func(*testing.T, *golden.Golden)) {
	names := tinyDrafting()
	if demos {
		names = append(names, "demo-nemotron", "demo-qwen35")
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) { f(t, golden.Open(t, name)) })
	}
}

// watched is a device whose programs call hooks in place of two operations.
type watched struct {
	kernels.Device
	hooks watchedOps
}

type watchedOps struct {
	kernels.Ops
	commit func(o kernels.Ops, p kernels.Commit)
	begin  func(o kernels.Ops, p kernels.DraftBegin)
	next   func(o kernels.Ops, p kernels.DraftNext)
}

func (w *watched) Submit(p kernels.Program) {
	w.Device.Submit(kernels.ProgramFunc(func(o kernels.Ops) {
		h := w.hooks
		h.Ops = o
		p.Run(h)
	}))
}

func (w watchedOps) Commit(p kernels.Commit) {
	if w.commit == nil {
		w.Ops.Commit(p)
		return
	}
	w.commit(w.Ops, p)
}

func (w watchedOps) DraftBegin(p kernels.DraftBegin) {
	w.Ops.DraftBegin(p)
	if w.begin != nil {
		w.begin(w.Ops, p)
	}
}

func (w watchedOps) DraftNext(p kernels.DraftNext) {
	w.Ops.DraftNext(p)
	if w.next != nil {
		w.next(w.Ops, p)
	}
}

func fetch(o kernels.Ops, b kernels.Buffer, from, n int) []int32 {
	host := make([]int32, n)
	o.Download(bytesOf(host), b.Slice(int64(from)*4, int64(n)*4))
	return host
}

func put(o kernels.Ops, b kernels.Buffer, from int, v ...int32) {
	o.Upload(b.Slice(int64(from)*4, int64(len(v))*4), bytesOf(v))
}

// rejecting accepts no draft: none equals a token.
func rejecting(o kernels.Ops, p kernels.Commit) {
	put(o, p.Slots.Drafts, 0, slices.Repeat([]int32{-1}, int(p.Slots.Drafts.Size/4))...)
	o.Commit(p)
}

// recorder collects the drafts of each slot.
type recorder map[int32][][]int32

func (r recorder) next(k int) func(o kernels.Ops, p kernels.DraftNext) {
	return func(o kernels.Ops, p kernels.DraftNext) {
		rows, stride := p.Logits.Rows, p.Slots.DraftStride
		slot, left := fetch(o, p.Slot, 0, rows), fetch(o, p.Left, 0, rows)
		for i := range rows {
			if p.Index == k-1 && left[i] == int32(k) {
				r[slot[i]] = append(r[slot[i]], fetch(o, p.Slots.Drafts, int(slot[i])*stride, k))
			}
		}
	}
}

// TestGoldenDrafts rejects every draft, so that drafts follow each token, and compares those behind the first ones: alone
// and with others in the batch, prompts whole and in chunks beside rows that verify.
func TestGoldenDrafts(t *testing.T) {
	forDrafting(t, true, func(t *testing.T, g *golden.Golden) {
		for _, o := range []Options{{}, {MaxTokens: 40, PageTokens: 4, Window: 8}, {MaxSeqs: 1, MaxTokens: 16, Window: 4}} {
			testDrafts(t, g, o)
			if testing.Short() && strings.HasPrefix(g.Name, "demo-") {
				break
			}
		}
	})
}

func testDrafts(t *testing.T, g *golden.Golden, o Options) {
	t.Helper()
	k, got := len(g.Cases[0].Drafts[0]), recorder{}
	dev := &watched{Device: device(t)}
	dev.hooks.commit, dev.hooks.next = rejecting, got.next(k)
	o.Drafts, o.FixedDepth = k, true
	e := openOn(t, dev, g, o)
	checkGreedy(t, e, g)
	if a := e.Stats().Drafts; a.Accepted != 0 || a.Drafted == 0 {
		t.Errorf("%+v: all drafts should have been rejected", a)
	}
	for _, c := range g.Cases {
		found := false
		for _, list := range got {
			for from := range list { // one slot serves one case after another when they take turns
				found = found || len(list)-from >= len(c.Drafts) && fmt.Sprint(list[from:from+len(c.Drafts)]) == fmt.Sprint(c.Drafts)
			}
		}
		if !found {
			t.Errorf("%+v, prompt of %d: nobody drafted %v", o, len(c.Prompt), c.Drafts)
			for slot, list := range got {
				t.Logf("slot %d: %v", slot, list[:min(8, len(list))])
			}
		}
	}
}

// TestGoldenAcceptance: what is accepted is what the oracle's drafts and ids imply.
func TestGoldenAcceptance(t *testing.T) {
	forDrafting(t, true, func(t *testing.T, g *golden.Golden) {
		for _, c := range g.Cases {
			e := open(t, g, Options{Drafts: len(c.Drafts[0]), FixedDepth: true})
			n := len(c.Drafts) // known drafts: behind the first n tokens
			read(t, submit(t, e, greedy(c.Prompt, n)))
			var want spec.Acceptance
			for at := 1; at < n; {
				drafts := c.Drafts[at-1]
				verified := min(len(drafts), n-at-1) // the row is cut to the room that is left
				a := 0
				for a < verified && drafts[a] == c.Greedy[at+a] {
					a++
				}
				want.Add(verified, a)
				at += 1 + a
			}
			if got := e.Stats().Drafts; got != want {
				t.Errorf("prompt of %d: %+v, want %+v", len(c.Prompt), got, want)
			}
		}
	})
}

// TestSpeculativeGreedy: whatever is drafted, with every window and in chunks too, the ids are the golden ones. Two drafts
// in three are right.
func TestSpeculativeGreedy(t *testing.T) {
	forDrafting(t, !testing.Short(), func(t *testing.T, g *golden.Golden) {
		at := 0
		for k := 1; k <= spec.MaxDepth; k++ {
			for _, window := range []int{8, 16, 32} {
				for _, tokens := range []int{16, 2048} {
					if at++; at%5 != 0 && (testing.Short() || strings.HasPrefix(g.Name, "demo-")) {
						continue
					}
					o := Options{Drafts: k, FixedDepth: true, Window: window, MaxTokens: tokens}
					e := openPrompted(t, device(t), g, o, &prompter{texts: texts(g), wrong: some})
					checkGreedy(t, e, g)
					if e.Stats().Drafts.Accepted == 0 {
						t.Error("no draft was accepted: the test shows nothing")
					}
				}
			}
		}
	})
}

// TestSpeculativeByTheHead is the same with the head's own drafts, and with depths that measured costs decide.
func TestSpeculativeByTheHead(t *testing.T) {
	forDrafting(t, !testing.Short(), func(t *testing.T, g *golden.Golden) {
		for _, o := range []Options{{Drafts: 2, FixedDepth: true}, {Drafts: 7, FixedDepth: true, Window: 8, MaxTokens: 40}, {Drafts: 5}} {
			e := open(t, g, o)
			for range 2 {
				checkGreedy(t, e, g)
			}
		}
	})
}

// TestSpeculativePreempted runs in a pool too small for all, swapping and computing again.
func TestSpeculativePreempted(t *testing.T) {
	forDrafting(t, false, func(t *testing.T, g *golden.Golden) {
		longest, all := pagesFor(g, 4)
		for _, swap := range []int64{0, 1} {
			for _, method := range []spec.Method{spec.MTPHead, spec.NGram} {
				o := Options{
					Drafts: 3, FixedDepth: true, DraftMethod: method, PageTokens: 4, KVBlocks: min(longest+2, all-1), SwapBytes: swap, MaxTokens: 64,
				}
				e := openPrompted(t, device(t), g, o, &prompter{texts: texts(g), wrong: some})
				checkGreedy(t, e, g)
				if s := e.Stats(); s.Preemptions == 0 || s.Drafts.Accepted == 0 {
					t.Errorf("%s: %d preemptions, %d drafts accepted: the test shows nothing", method, s.Preemptions, s.Drafts.Accepted)
				}
			}
		}
	})
}

// TestSpeculativeMixed: requests that never draft and such that do, in one batch.
func TestSpeculativeMixed(t *testing.T) {
	forDrafting(t, false, func(t *testing.T, g *golden.Golden) {
		o := Options{Drafts: 3, FixedDepth: true, MaxTokens: 48}
		e := openPrompted(t, device(t), g, o, &prompter{texts: texts(g), wrong: some})
		var running []*Sequence
		for i, c := range slices.Concat(g.Cases, g.Cases) {
			r := greedy(c.Prompt, len(c.Greedy))
			r.NoDrafts = i%2 == 0 == (i < len(g.Cases))
			running = append(running, submit(t, e, r))
		}
		for i, s := range running {
			c := g.Cases[i%len(g.Cases)]
			if got := read(t, s).ids(); !slices.Equal(got, c.Greedy) {
				t.Errorf("case %d:\n got %v\nwant %v", i, got, c.Greedy)
			}
		}
		if e.Stats().Drafts.Accepted == 0 {
			t.Error("no draft was accepted: the test shows nothing")
		}
	})
}

// TestNeverDraftingCostsNothing: without a request that drafts the head does not run, and steps have one token a row.
func TestNeverDraftingCostsNothing(t *testing.T) {
	g := golden.Open(t, "qwen35-moe-mtp")
	dev := &watched{Device: device(t)}
	dev.hooks.begin = func(kernels.Ops, kernels.DraftBegin) { t.Error("the head ran") }
	widest := 0
	dev.hooks.commit = func(o kernels.Ops, p kernels.Commit) { widest = max(widest, p.Step.T); o.Commit(p) }
	e := openOn(t, dev, g, Options{Drafts: 3})
	for _, c := range g.Cases {
		r := greedy(c.Prompt, len(c.Greedy))
		r.NoDrafts = true
		if got := read(t, submit(t, e, r)).ids(); !slices.Equal(got, c.Greedy) {
			t.Errorf("got %v, want %v", got, c.Greedy)
		}
	}
	if widest != 1 {
		t.Errorf("steps of %d tokens a row", widest)
	}
}

// TestSyntheticAcceptance: the coin decides what is accepted, captured or not, at every position; what the model accepts by
// itself, which a run without a coin shows, comes on top.
func TestSyntheticAcceptance(t *testing.T) {
	natural := syntheticRates(t, device(t), &spec.Synthetic{})
	for name, dev := range map[string]kernels.Device{"eager": device(t), "captured": capturing{device(t)}} {
		s := &spec.Synthetic{Chance: []float64{0.9, 0.2, 0.7}, Seed: 3}
		for i, got := range syntheticRates(t, dev, s) {
			const spread = 0.13 // three standard errors of the about 130 drafts that reach the last position
			if want := s.Chance[i] + (1-s.Chance[i])*natural[i]; math.Abs(got-want) > spread {
				t.Errorf("%s: position %d: %.2f of the drafts that were reached were accepted, want %.2f", name, i, got, want)
			}
		}
	}
}

// syntheticRates is the share of accepted drafts, of those whose predecessors were, at each position.
func syntheticRates(t *testing.T, dev kernels.Device, s *spec.Synthetic) [3]float64 {
	t.Helper()
	g := golden.Open(t, "qwen35-dense-tied-mtp")
	e := openOn(t, dev, g, Options{MaxSeqs: 4, MaxTokens: 64, Drafts: 3, FixedDepth: true, Synthetic: s})
	var all []*Sequence
	for _, c := range g.Cases[:4] {
		all = append(all, submit(t, e, greedy(c.Prompt, 400)))
	}
	for _, q := range all {
		if r := read(t, q); r.err != nil {
			t.Fatal(r.err)
		}
	}
	a := e.Stats().Drafts
	var out [3]float64
	for i, reached := 0, a.Position[0].Drafted; i < 3; i++ {
		out[i] = float64(a.Position[i].Accepted) / float64(max(reached, 1))
		reached = a.Position[i].Accepted
	}
	return out
}

// TestDepthKnowsPlainRows: adaptive depth hears of the requests that never draft.
func TestDepthKnowsPlainRows(t *testing.T) {
	g := golden.Open(t, "qwen35-moe-mtp")
	e := openStill(t, device(t), g, Options{Drafts: 3})
	for i := range 3 {
		r := greedy(g.Cases[0].Prompt, 40)
		r.NoDrafts = i > 0
		submit(t, e, r)
	}
	seen := false
	for len(e.incoming) > 0 || len(e.seqs) > 0 {
		e.turn()
		own := slices.DeleteFunc(slices.Clone(e.records), func(r *spec.Record) bool { return r == nil })
		seen = seen || len(e.records) == 3 && len(own) == 1
	}
	if !seen {
		t.Error("no step had the records of one request that drafts and of two that do not")
	}
	go e.loop()
}
