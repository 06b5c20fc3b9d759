package engine

import (
	"fmt"
	"slices"
	"testing"

	"reprise/internal/golden"
	"reprise/kernels"
)

// mtpGoldens are the goldens with an MTP head.
func mtpGoldens() []string {
	return []string{"nemotron-latent-mtp", "qwen35-dense-tied-mtp", "qwen35-moe-mtp", "demo-nemotron", "demo-qwen35"}
}

func forDrafting(t *testing.T, f func(*testing.T, *golden.Golden)) {
	for _, name := range mtpGoldens() {
		t.Run(name, func(t *testing.T) { f(t, golden.Open(t, name)) })
	}
}

// watched is a device that hands every operation of programs to hooks.
type watched struct {
	kernels.Device
	hook watchedOps
}

type watchedOps struct {
	kernels.Ops
	commit func(o kernels.Ops, p kernels.Commit)
	next   func(o kernels.Ops, p kernels.DraftNext)
}

func (w *watched) Submit(p kernels.Program) {
	w.Device.Submit(kernels.ProgramFunc(func(o kernels.Ops) {
		h := w.hook
		h.Ops = o
		p.Run(h)
	}))
}

func (w watchedOps) Commit(p kernels.Commit) {
	if w.commit != nil {
		w.commit(w.Ops, p)
		return
	}
	w.Ops.Commit(p)
}

func (w watchedOps) DraftNext(p kernels.DraftNext) {
	w.Ops.DraftNext(p)
	if w.next != nil {
		w.next(w.Ops, p)
	}
}

func readInts(o kernels.Ops, b kernels.Buffer) []int32 {
	host := make([]int32, b.Size/4)
	o.Download(bytesOf(host), b)
	return host
}

// TestGoldenDrafts rejects every draft, so that a draft follows each of the first tokens, and compares them all.
func TestGoldenDrafts(t *testing.T) {
	forDrafting(t, func(t *testing.T, g *golden.Golden) {
		for _, o := range []Options{{}, {MaxTokens: 16, PageTokens: 4, Window: 8}} {
			for i := range g.Cases {
				testDrafts(t, g, o, &g.Cases[i])
			}
		}
	})
}

func testDrafts(t *testing.T, g *golden.Golden, o Options, c *golden.Case) {
	t.Helper()
	dev := &watched{Device: device(t)}
	var got [][]int32
	k := len(c.Drafts[0])
	dev.hook.commit = func(o kernels.Ops, p kernels.Commit) {
		drafts := p.Slots.Drafts // none equals what is sampled
		wrong := make([]int32, drafts.Size/4)
		for i := range wrong {
			wrong[i] = -1
		}
		o.Upload(drafts, bytesOf(wrong))
		o.Commit(p)
	}
	dev.hook.next = func(o kernels.Ops, p kernels.DraftNext) {
		if p.Index == k-1 {
			slot := readInts(o, p.Slot.Slice(0, 4))[0]
			if left := readInts(o, p.Left.Slice(0, 4))[0]; left == int32(k) {
				size := int64(p.Slots.DraftStride) * 4
				got = append(got, readInts(o, p.Slots.Drafts.Slice(int64(slot)*size, size)))
			}
		}
	}
	o.Drafts, o.FixedDepth, o.MaxSeqs = k, true, 1
	e := openOn(t, dev, g, o)
	r := read(t, submit(t, e, greedy(c.Prompt, len(c.Greedy))))
	if r.err != nil {
		t.Fatal(r.err)
	}
	if !slices.Equal(r.ids(), c.Greedy) {
		t.Errorf("prompt of %d: %v, want %v", len(c.Prompt), r.ids(), c.Greedy)
	}
	if len(got) < len(c.Drafts) || fmt.Sprint(got[:len(c.Drafts)]) != fmt.Sprint(c.Drafts) {
		t.Errorf("prompt of %d:\n got %v\nwant %v", len(c.Prompt), got, c.Drafts)
	}
}

func TestSpeculativeGreedy(t *testing.T) {
	forDrafting(t, func(t *testing.T, g *golden.Golden) {
		for k := 1; k <= 7; k++ {
			checkGreedy(t, open(t, g, Options{Drafts: k, FixedDepth: true}), g)
		}
	})
}
