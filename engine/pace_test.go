package engine

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"reprise/internal/golden"
)

// machine is a device whose step takes fixed + row * rows + token * prompt seconds, and more as soon as there are prompts.
type machine struct{ fixed, row, mixed, token float64 }

func (m machine) step(rows, prompt int) float64 {
	t := m.fixed + m.row*float64(rows) + m.token*float64(prompt)
	if prompt > 0 {
		t += m.mixed
	}
	return t
}

// run lets prompts stream in beside rows requests and returns the longest step behind the first so many.
func (m machine) run(p *pace, rows, steps, settle int, noise func() float64) (longest float64, prompts int) {
	for i := range steps {
		n := max(p.budget(), 0)
		p.launched(rows, n)
		t := m.step(rows, n)
		p.took(rows, n, time.Duration(t*noise()*1e9))
		if i >= settle {
			longest, prompts = max(longest, t), prompts+n
		}
	}
	return longest, prompts
}

func quiet() float64 { return 1 }

func TestPaceKeepsItsRatio(t *testing.T) {
	for name, m := range map[string]machine{
		"small model": {fixed: 2e-3, row: 0.3e-3, token: 0.2e-3}, "GPU": {fixed: 3e-3, row: 20e-6, token: 15e-6},
		"GPU, graphs only without prompts": {fixed: 3e-3, row: 20e-6, mixed: 1e-3, token: 15e-6},
	} {
		for _, rows := range []int{1, 8, 32} {
			for _, ratio := range []float64{1.5, 2, 4} {
				p := &pace{ratio: ratio, least: leastPaceCPU}
				longest, prompts := m.run(p, rows, 400, 100, quiet)
				plain := m.step(rows, 0)
				if longest > 1.001*max(ratio*plain, m.step(rows, p.least)) {
					t.Errorf("%s, %d rows, ratio %v: a step takes %.2f times a plain one", name, rows, ratio, longest/plain)
				}
				// all that fits but for the remeasured steps, whole tokens, and an approach that rounds down
				fits := max((ratio-1)*plain-m.mixed, 0) / m.token
				if want := 300 * fits * remeasure / (remeasure + 1); float64(prompts) < 0.9*want {
					t.Errorf("%s, %d rows, ratio %v: %d prompt tokens in 300 steps, want about %.0f", name, rows, ratio, prompts, want)
				}
			}
		}
	}
}

// TestPaceFollowsTheRows: where only steps with prompts run, steps without are put in, so that what rows take stays known.
func TestPaceFollowsTheRows(t *testing.T) {
	m := machine{fixed: 2e-3, row: 0.5e-3, token: 0.2e-3}
	p := &pace{ratio: 2, least: 4}
	m.run(p, 1, 100, 0, quiet)
	if longest, prompts := m.run(p, 32, 100, 20, quiet); longest > 2.001*m.step(32, 0) || prompts < 80*60 {
		t.Errorf("longest %v, %d prompt tokens", longest, prompts)
	}
	if longest, _ := m.run(p, 1, 100, 20, quiet); longest > 2.001*m.step(1, 0) {
		t.Errorf("back at one row: longest %v", longest)
	}
}

// TestPaceSurvivesNoise: steps disturbed by up to half, and now and then by a hundredfold, neither stop the prompts nor let
// them take everything. Bounds are wide: the estimates swing.
func TestPaceSurvivesNoise(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	noise := func() float64 {
		if r.IntN(100) == 0 {
			return 100
		}
		return 1 + r.Float64()/2
	}
	m := machine{fixed: 3e-3, row: 20e-6, token: 15e-6}
	p := &pace{ratio: 2, least: 16}
	longest, prompts := m.run(p, 8, 5000, 100, noise)
	if mean := prompts / 4900; longest > 6*m.step(8, 0) || mean < 100 || mean > 300 {
		t.Errorf("longest %.1f plain steps, %d tokens a step", longest/m.step(8, 0), mean)
	}
}

func TestPaceAtItsEnds(t *testing.T) {
	if n := (&pace{}).budget(); n != 0 {
		t.Errorf("without a ratio: %d", n)
	}
	p := &pace{ratio: 2, least: 16}
	if n := p.budget(); n != -1 {
		t.Errorf("with nothing measured: %d", n)
	}
	p.took(3, 0, 4*time.Millisecond)
	if n := p.budget(); n != 16 {
		t.Errorf("with prompts not measured: %d", n)
	}
	p.took(0, 1000, 100*time.Millisecond) // a prompt alone is a first guess: 0.1 ms a token
	if n := p.budget(); n != 40 {
		t.Errorf("after a prompt alone: %d, want 40", n)
	}
	for range 30 { // a step with prompts takes far more than allowed, whatever their number
		p.took(3, 16, time.Second)
	}
	if n := p.budget(); n != 16 {
		t.Errorf("the least: %d", n)
	}
	for range 200 {
		p.took(3, 16, time.Nanosecond)
		p.took(3, 0, time.Second)
		p.took(3, 16, 0)
	}
	if n := p.budget(); n != maxPace {
		t.Errorf("prompts that cost nothing: %d", n)
	}
	p.run = remeasure
	if n := p.budget(); n != -1 {
		t.Errorf("after %d steps with prompts: %d", remeasure, n)
	}
	p.launched(0, 5)
	if p.run != remeasure {
		t.Error("a step without running requests counts")
	}
	if p.launched(1, 0); p.run != 0 {
		t.Error("a step without prompts does not count")
	}
}

// TestPacedPromptsStreamIn: with next to no room for prompts, each step beside a running request computes 16 tokens of
// one, and now and then none; both requests get the tokens that they should.
func TestPacedPromptsStreamIn(t *testing.T) {
	g := golden.Open(t, golden.Names()[0])
	e := openStill(t, device(t), g, Options{StepRatio: 1 + 1e-9})
	long := make([]int32, 320)
	for i := range long {
		long[i] = int32(i * 7 % e.limits.Vocab)
	}
	running, other := submit(t, e, greedy(g.Cases[0].Prompt, 60)), (*Sequence)(nil)
	mixed, without := 0, 0
	for len(e.incoming) > 0 || len(e.seqs) > 0 {
		e.turn()
		p := &e.lanes[1-e.next].plan // launched last
		switch n := p.PrefillTokens(); {
		case len(p.Steps) == 0 || !e.lanes[1-e.next].busy:
		case n > leastPaceCPU:
			t.Errorf("%d prompt tokens beside a running request", n)
		case n > 0:
			mixed++
		case mixed > 0 && mixed < 20:
			without++
		}
		if other == nil && len(e.lanes[0].steps) > 0 {
			other = submit(t, e, greedy(long, 5))
		}
	}
	if mixed != 320/leastPaceCPU || without == 0 {
		t.Errorf("%d steps with a part of the prompt, %d without in between", mixed, without)
	}
	go e.loop() // for Close
	first, second := read(t, running).ids(), read(t, other).ids()
	whole := open(t, g, Options{})
	for _, c := range []struct {
		got  []int32
		want []int32
	}{{first, read(t, submit(t, whole, greedy(g.Cases[0].Prompt, 60))).ids()}, {second, read(t, submit(t, whole, greedy(long, 5))).ids()}} {
		if !slices.Equal(c.got, c.want) {
			t.Errorf("got %v\nwant %v", c.got, c.want)
		}
	}
}

func TestGreedyPaced(t *testing.T) {
	forGoldens(t, func(t *testing.T, g *golden.Golden) {
		checkGreedy(t, open(t, g, Options{StepRatio: 1.5, MaxTokens: 64}), g)
	})
}
