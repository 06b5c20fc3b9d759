package model_test

import (
	"fmt"
	"testing"

	"reprise/kernels"
	"reprise/kernels/ref"
)

// tolerance is the largest difference of logits, relative to the largest logit of the case.
const tolerance = 2e-4

var devices = map[string]func(testing.TB) kernels.Device{
	"ref": func(testing.TB) kernels.Device { return ref.New() },
}

// plan is how the cases of a golden are run together.
type plan struct {
	window kernels.Window
	chunk  int // prompt tokens a pass
}

func (p plan) String() string { return fmt.Sprintf("L%d,T%d,chunk%d", p.window.L, p.window.T, p.chunk) }

// sequence is one case in progress.
type sequence struct {
	goldenCase
	slot  int
	done  int // committed tokens
	out   []int32
	steps int
}

// next is the sequence's row of the next pass, or nil at its end.
func (s *sequence) next(p plan) *row {
	if left := len(s.Prompt) - s.done; left > 0 {
		return &row{slot: s.slot, at: s.done, prefill: true, tokens: s.Prompt[s.done:][:min(left, p.chunk)]}
	}
	if len(s.out) == len(s.Greedy) {
		return nil
	}
	w := &row{slot: s.slot, at: s.done, tokens: []int32{s.out[len(s.out)-1]}}
	for j := 1; j < p.window.T && len(s.out)+j-1 < len(s.Greedy)-1; j++ {
		w.tokens = append(w.tokens, s.Greedy[len(s.out)+j-1])
	}
	if s.steps++; s.steps%3 != 0 && len(w.tokens) > 1 { // a wrong draft at a place that moves
		w.tokens[1+s.steps%(len(w.tokens)-1)] ^= 1
	}
	return w
}

// take checks a row's logits and moves on.
func (s *sequence) take(t *testing.T, w *row, accepted int) {
	t.Helper()
	for j, got := range w.logits {
		want := s.expect(w.at + j)
		if want == nil || !w.prefill {
			continue
		}
		if d := maxDiff(got, want); !(d <= tolerance*s.scale()) {
			t.Errorf("slot %d position %d: logits differ by %.2g of the largest", s.slot, w.at+j, d/s.scale())
		}
	}
	if w.prefill {
		s.done += len(w.tokens)
		if s.done == len(s.Prompt) {
			s.out = append(s.out, argmax(w.logits[len(w.tokens)-1]))
		}
		return
	}
	if want := agreeing(w); accepted != want {
		t.Fatalf("slot %d position %d: %d tokens accepted, want %d", s.slot, w.at, accepted, want)
	}
	s.done += accepted
	for _, l := range w.logits[:accepted] {
		s.out = append(s.out, argmax(l))
	}
}

// agreeing is 1 + the drafts that the logits before them choose.
func agreeing(w *row) int {
	a := 1
	for a < len(w.tokens) && argmax(w.logits[a-1]) == w.tokens[a] {
		a++
	}
	return a
}

// runGolden runs all cases at once, prompts in chunks next to sequences that generate already.
func runGolden(t *testing.T, dev kernels.Device, g *golden, p plan, cases int) {
	r := newRig(t, dev, g, p.window)
	var all []*sequence
	for i, c := range g.cases[:min(cases, len(g.cases))] {
		all = append(all, &sequence{goldenCase: c, slot: i + 1})
		r.open(i + 1)
	}
	for {
		rows, who := nextRows(all, p)
		if len(rows) == 0 {
			break
		}
		b := r.forward(p.window.T, rows...)
		accepted := append(r.commit(b, rows...), make([]int32, b.Prefill.Count)...)
		for i, w := range rows {
			who[i].take(t, w, int(accepted[i]))
		}
		if t.Failed() {
			return
		}
	}
	for _, s := range all {
		if got, want := fmt.Sprint(s.out), fmt.Sprint(s.Greedy); got != want {
			t.Errorf("slot %d: tokens\n %s, want\n %s", s.slot, got, want)
		}
	}
}

// nextRows is the rows of the next pass, step rows first, and their sequences.
func nextRows(all []*sequence, p plan) (rows []*row, who []*sequence) {
	var prefill []*row
	var prefilling []*sequence
	for _, s := range all {
		switch w := s.next(p); {
		case w == nil:
		case w.prefill:
			prefill, prefilling = append(prefill, w), append(prefilling, s)
		default:
			rows, who = append(rows, w), append(who, s)
		}
	}
	return append(rows, prefill...), append(who, prefilling...)
}

func TestGoldens(t *testing.T) {
	plans := []plan{
		{kernels.Window{L: 16, T: 1}, 16},
		{kernels.Window{L: 4, T: 4}, 7},
		{kernels.Window{L: 32, T: 3}, 200},
	}
	for device, open := range devices {
		for _, name := range goldenNames {
			g := openGolden(t, name)
			for i, p := range plans {
				t.Run(device+"/"+name+"/"+p.String(), func(t *testing.T) {
					cases := len(g.cases)
					if slow := device == "ref"; slow && testing.Short() && i > 0 {
						t.Skip("slow")
					} else if slow && testing.Short() {
						cases = 3
					}
					dev := open(t)
					defer dev.Close()
					runGolden(t, dev, g, p, cases)
				})
			}
		}
	}
}
