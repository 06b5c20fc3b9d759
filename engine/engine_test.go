package engine

import (
	"context"
	"math"
	"slices"
	"testing"
	"time"

	"reprise/internal/golden"
	"reprise/kernels"
	"reprise/kernels/cpu"
	"reprise/sampler"
)

// open starts an engine on a golden's checkpoint and checks when the test ends that everything came back.
func open(t testing.TB, g *golden.Golden, o Options) *Opened {
	t.Helper()
	return openOn(t, device(t), g, o)
}

func device(t testing.TB) kernels.Device {
	t.Helper()
	dev, err := cpu.Open(cpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return dev
}

func openOn(t testing.TB, dev kernels.Device, g *golden.Golden, o Options) *Opened {
	t.Helper()
	if o.MaxLen == 0 {
		o.MaxLen = 512
	}
	e, err := Open(dev, Source{Folder: g.Folder}, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

func greedy(prompt []int32, n int) Request {
	s := sampler.Default()
	s.Temperature = 0
	return Request{Prompt: prompt, MaxTokens: n, IgnoreEOS: true, Sampling: s, LogProbs: -1, PromptLogProbs: -1}
}

// result is everything a sequence said.
type result struct {
	prompt, tokens []Token
	reason         Reason
	stop           int32
	err            error
}

func (r result) ids() []int32 {
	out := make([]int32, len(r.tokens))
	for i, t := range r.tokens {
		out[i] = t.ID
	}
	return out
}

func read(t testing.TB, s *Sequence) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute) // under compute-sanitizer a step takes seconds
	defer cancel()
	var r result
	for {
		u, err := s.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		r.prompt, r.tokens = append(r.prompt, u.Prompt...), append(r.tokens, u.Tokens...)
		if u.Done() {
			r.reason, r.stop, r.err = u.Reason, u.StopID, u.Err
			return r
		}
	}
}

// generator is an Engine, opened or not.
type generator interface {
	Submit(r Request) (*Sequence, error)
}

func submit(t testing.TB, e generator, r Request) *Sequence {
	t.Helper()
	s, err := e.Submit(r)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// checkGreedy runs all cases at once and compares with the golden ids.
func checkGreedy(t *testing.T, e generator, g *golden.Golden) {
	t.Helper()
	var all []*Sequence
	for _, c := range g.Cases {
		all = append(all, submit(t, e, greedy(c.Prompt, len(c.Greedy))))
	}
	for i, s := range all {
		r := read(t, s)
		if r.err != nil {
			t.Fatal(r.err)
		}
		if got, want := r.ids(), g.Cases[i].Greedy; !slices.Equal(got, want) {
			t.Errorf("case %d (%d tokens):\n got %v\nwant %v", i, len(g.Cases[i].Prompt), got, want)
		}
		if r.reason != Length {
			t.Errorf("case %d ended with %q, want length", i, r.reason)
		}
	}
}

func forGoldens(t *testing.T, f func(*testing.T, *golden.Golden)) {
	for _, name := range golden.Names() {
		t.Run(name, func(t *testing.T) { f(t, golden.Open(t, name)) })
	}
}

func TestGreedyAllAtOnce(t *testing.T) {
	forGoldens(t, func(t *testing.T, g *golden.Golden) { checkGreedy(t, open(t, g, Options{}), g) })
}

func TestGreedyOneByOne(t *testing.T) {
	forGoldens(t, func(t *testing.T, g *golden.Golden) {
		e := open(t, g, Options{MaxSeqs: 1})
		checkGreedy(t, e, g)
	})
}

func TestGreedyInChunksOf16AndEveryWindow(t *testing.T) {
	forGoldens(t, func(t *testing.T, g *golden.Golden) {
		for _, window := range []int{1, 4, 16, 32} {
			checkGreedy(t, open(t, g, Options{MaxTokens: 16, Window: window}), g)
		}
	})
}

func TestPromptLogProbs(t *testing.T) {
	forGoldens(t, func(t *testing.T, g *golden.Golden) {
		for _, tokens := range []int{16, 2048} {
			e := open(t, g, Options{MaxTokens: tokens, MaxLogProbs: -1})
			vocab := e.Limits().Vocab
			for i, c := range g.Cases {
				r := greedy(c.Prompt, 1)
				r.LogProbs, r.PromptLogProbs = vocab, vocab
				out := read(t, submit(t, e, r))
				if len(out.prompt) != len(c.Prompt)-1 {
					t.Fatalf("case %d: %d prompt scores, want %d", i, len(out.prompt), len(c.Prompt)-1)
				}
				scored := append(out.prompt, out.tokens...) // entry p is the prediction of position p
				for j, row := range c.Logits {
					compareLogProbs(t, scored[len(c.Prompt)-len(c.Logits)+j], golden.LogProbs(row), c.Scale())
				}
			}
		}
	})
}

// compareLogProbs allows twice the tolerance of logits: a log probability is a difference of two.
func compareLogProbs(t *testing.T, got Token, want []float64, scale float64) {
	t.Helper()
	if len(got.Top) != len(want) {
		t.Fatalf("%d alternatives, want %d", len(got.Top), len(want))
	}
	for _, a := range got.Top {
		if d := math.Abs(float64(a.LogProb) - want[a.ID]); !(d <= 2*golden.LogitTolerance*scale) {
			t.Fatalf("token %d: log probability %g, want %g (scale %g)", a.ID, a.LogProb, want[a.ID], scale)
		}
		if a.ID == got.ID && a.LogProb != got.LogProb {
			t.Fatalf("the chosen token's log probability %g differs from its alternative's %g", got.LogProb, a.LogProb)
		}
	}
}

// copying is a device that says it copies weights.
type copying struct{ kernels.Device }

func (copying) HostWeights() bool { return false }

// TestProgressOfCopiedWeights: it never falls, and ends with everything.
func TestProgressOfCopiedWeights(t *testing.T) {
	dev, last, whole := copying{device(t)}, int64(0), int64(-1)
	e, err := Open(dev, Source{Folder: golden.Open(t, "qwen35-dense-tied-mtp").Folder, Progress: func(done, total int64) {
		if done < last || done > total || whole >= 0 && total != whole {
			t.Errorf("%d of %d behind %d of %d", done, total, last, whole)
		}
		last, whole = done, total
	}}, Options{MaxLen: 64, MaxSeqs: 1})
	if err != nil {
		t.Fatal(err)
	}
	if want := tensorBytes(e.Tensors()); last != want || whole != want {
		t.Errorf("ended at %d of %d, want %d", last, whole, want)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	if err := dev.Close(); err != nil {
		t.Error(err)
	}
}
