package engine

import (
	"slices"
	"testing"

	"reprise/internal/golden"
	"reprise/kernels"
	"reprise/spec"
)

// prompter is a drafter that knows the texts: behind another drafter it overwrites what that one proposed. Models with
// random weights would hardly ever accept a draft otherwise.
type prompter struct {
	spec.Drafter
	texts [][]int32
	wrong func(index int) bool    // the draft of this token of a text shall be wrong
	count func(index, n int) int  // how many of n drafts behind token index to keep; nil = all
	known map[int]map[int32]int32 // of each slot, by index
	tries int
}

func (p *prompter) Open(o kernels.Ops, slot int, known []int32, loaded bool) {
	p.Drafter.Open(o, slot, known, loaded)
	p.known[slot] = map[int32]int32{}
	for i, id := range known {
		p.known[slot][int32(i)] = id
	}
}

func (p *prompter) Draft(o kernels.Ops, s *spec.Step) {
	p.Drafter.Draft(o, s)
	rows := s.Step.Count + s.Prefill.Count
	accepted, want := fetch(o, s.Accepted, 0, rows), fetch(o, s.Want, 0, rows)
	slot, n := fetch(o, s.Step.Slot, 0, s.Step.Count), fetch(o, s.Step.N, 0, s.Step.Count)
	for r := range s.Step.Count {
		if n[r] > 0 {
			first := fetch(o, s.Pos, r*s.Step.T, 1)[0]
			p.learn(int(slot[r]), first+1, fetch(o, s.Sampled, s.SampleFirst+r*s.Step.T, int(accepted[r])))
			p.propose(o, s, int(slot[r]), first+accepted[r], want[r])
		}
	}
	slot, n = fetch(o, s.Prefill.Slot, 0, s.Prefill.Count), fetch(o, s.Prefill.N, 0, s.Prefill.Count)
	start, final := fetch(o, s.Prefill.Start, 0, s.Prefill.Count), fetch(o, s.Final, 0, s.Prefill.Count)
	for r := range s.Prefill.Count {
		first := fetch(o, s.Pos, int(start[r]), 1)[0]
		p.learn(int(slot[r]), first, fetch(o, s.IDs, int(start[r]), int(n[r])))
		if final[r] >= 0 {
			p.learn(int(slot[r]), first+n[r], fetch(o, s.Sampled, int(final[r]), 1))
			p.propose(o, s, int(slot[r]), first+n[r], want[s.Step.Count+r])
		}
	}
}

func (p *prompter) learn(slot int, at int32, ids []int32) {
	for i, id := range ids {
		p.known[slot][at+int32(i)] = id
	}
}

// propose writes the drafts behind the token of index last.
func (p *prompter) propose(o kernels.Ops, s *spec.Step, slot int, last, want int32) {
	text := p.find(slot)
	if want <= 0 || text == nil {
		return
	}
	drafts := make([]int32, want)
	for i := range drafts {
		at := int(last) + 1 + i
		if at < len(text) {
			drafts[i] = text[at]
		}
		if p.wrong != nil && p.wrong(at) {
			drafts[i] ^= 1
		}
	}
	n := int(want)
	if p.count != nil {
		n = p.count(int(last), n)
	}
	put(o, s.Slots.Drafts, slot*s.Slots.DraftStride, drafts...)
	put(o, s.Slots.DraftCount, slot, int32(n))
	p.tries++
}

// find is the text that has all that is known of a slot.
func (p *prompter) find(slot int) []int32 {
	for _, text := range p.texts {
		fits := true
		for at, id := range p.known[slot] {
			if int(at) >= len(text) || text[at] != id {
				fits = false
				break
			}
		}
		if fits {
			return text
		}
	}
	return nil
}

// texts are the cases of a golden, prompt and answer.
func texts(g *golden.Golden) [][]int32 {
	var all [][]int32
	for _, c := range g.Cases {
		all = append(all, slices.Concat(c.Prompt, c.Greedy))
	}
	return all
}

// some is wrong for about one draft in three.
func some(index int) bool { return index*2654435761>>7%3 == 0 }

// openPrompted starts an engine whose drafter is prompted; change may alter it first.
func openPrompted(t testing.TB, dev kernels.Device, g *golden.Golden, o Options, p *prompter) *Engine {
	t.Helper()
	e := openStill(t, dev, g, o)
	p.Drafter, p.known = e.drafter, map[int]map[int32]int32{}
	e.drafter = p
	go e.loop()
	return e
}

// openStill makes an engine whose loop the test runs, or starts.
func openStill(t testing.TB, dev kernels.Device, g *golden.Golden, o Options) *Engine {
	t.Helper()
	if o.MaxLen == 0 {
		o.MaxLen = 512
	}
	config, err := ParseConfig(g.Folder)
	if err != nil {
		t.Fatal(err)
	}
	o = o.withDefaults(dev, config.Spec().Vocab)
	p, err := makePlan(config, o, dev.Activations(), dev.MemoryFree())
	if err != nil {
		t.Fatal(err)
	}
	tensors, err := g.Folder.Tensors()
	if err != nil {
		t.Fatal(err)
	}
	m, err := config.Load(dev, tensors, p.MaxTokens)
	if err != nil {
		t.Fatal(err)
	}
	e, err := build(dev, m, config.Spec(), p, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		if err := e.states.Idle(); err != nil {
			t.Error(err)
		}
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
		tensors.Close()
	})
	return e
}
