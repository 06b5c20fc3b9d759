package model_test

import (
	"fmt"
	"strings"
	"testing"

	"reprise/kernels"
	"reprise/kernels/cpu"
	"reprise/kernels/ref"
)

// tolerance is the largest difference of logits, relative to the largest logit of the case.
const tolerance = 2e-4

var devices = map[string]func(testing.TB) kernels.Device{
	"ref": func(testing.TB) kernels.Device { return ref.New() },
	"cpu": func(t testing.TB) kernels.Device { return must(cpu.Open(cpu.Options{}))(t) },
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

	logits [][]float32 // of every row that was computed
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
	s.logits = append(s.logits, w.logits...)
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

// runTogether runs sequences to their end, prompts in chunks next to sequences that generate already.
func runTogether(t *testing.T, r *rig, p plan, all ...*sequence) {
	t.Helper()
	for _, s := range all {
		r.open(s.slot)
	}
	for !t.Failed() {
		rows, who := nextRows(all, p)
		if len(rows) == 0 {
			break
		}
		b := r.forward(p.window.T, rows...)
		accepted := append(r.commit(b, rows...), make([]int32, b.Prefill.Count)...)
		for i, w := range rows {
			who[i].take(t, w, int(accepted[i]))
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

var plans = []plan{
	{kernels.Window{L: 16, T: 1}, 16},
	{kernels.Window{L: 4, T: 4}, 7},
	{kernels.Window{L: 32, T: 3}, 200},
}

// TestGoldens runs everything on the CPU; the oracle, which is slow, gets one plan and the first cases of each golden.
func TestGoldens(t *testing.T) {
	for device, open := range devices {
		for k, name := range goldenNames {
			slow := device == "ref"
			if slow && testing.Short() && strings.HasPrefix(name, "demo-") {
				continue
			}
			g := openGolden(t, name)
			for i, p := range plans {
				if slow && i != k%len(plans) {
					continue
				}
				t.Run(device+"/"+name+"/"+p.String(), func(t *testing.T) {
					dev := open(t)
					defer dev.Close()
					var all []*sequence
					for i, c := range g.cases {
						if !slow || i < 3 {
							all = append(all, &sequence{goldenCase: c, slot: i + 1})
						}
					}
					runTogether(t, newRig(t, dev, g, p.window), p, all...)
				})
			}
		}
	}
}

// A sequence's logits are the same, bit for bit, whoever its neighbours are and wherever its state lies.
func TestNeighboursDoNotMatter(t *testing.T) {
	p := plan{kernels.Window{L: 4, T: 3}, 20}
	for _, name := range goldenNames[:6] {
		t.Run(name, func(t *testing.T) {
			g := openGolden(t, name)
			dev := devices["cpu"](t)
			defer dev.Close()
			r := newRig(t, dev, g, p.window)
			var all []*sequence
			for i, c := range g.cases {
				all = append(all, &sequence{goldenCase: c, slot: i + 1})
			}
			runTogether(t, r, p, all...)
			for i, c := range g.cases {
				alone := &sequence{goldenCase: c, slot: 1 + (i+3)%7}
				runTogether(t, r, p, alone)
				if len(alone.logits) != len(all[i].logits) {
					t.Fatalf("case %d: %d and %d rows", i, len(alone.logits), len(all[i].logits))
				}
				for j, l := range alone.logits {
					if d := maxDiff(l, all[i].logits[j]); d != 0 {
						t.Fatalf("case %d row %d: differs by %g", i, j, d)
					}
				}
			}
		})
	}
}
