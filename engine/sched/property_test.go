package sched

import (
	"math/rand/v2"
	"testing"
)

// world is a caller with random habits and a memory of its own, against which every plan is checked.
type world struct {
	t      *testing.T
	rng    *rand.Rand
	config Config
	s      *Scheduler
	known  map[ID]*life
	order  []ID // of arrival, living requests only
	flying []*Plan
	spare  []*Plan
	nextID ID
	whole  bool // no MaxChunk: budgets alone cut prompts
}

// life is what the caller knows of a request: the truth that plans must agree with.
type life struct {
	prompt, limit int
	begun         int // tokens of the prompt that prefill rows covered
	tokens        int // in the state, as far as results are known
	upper         int // and with everything in flight accepted
	lower         int // and with every draft in flight rejected
	rows          int // in flight
	running       bool
	swapped       bool
	skipped       int // plans since its last row while running
}

func TestRandomOperations(t *testing.T) {
	seeds := 300
	if testing.Short() {
		seeds = 60
	}
	for seed := range seeds {
		rng := rand.New(rand.NewPCG(uint64(seed), 1))
		c := Config{MaxSeqs: 1 + rng.IntN(6), MaxTokens: 1 + rng.IntN(12), MaxLen: 8 + rng.IntN(40)}
		if rng.IntN(2) == 0 {
			c.MaxChunk = 1 + rng.IntN(8)
		}
		if rng.IntN(2) == 0 {
			c.MixedPrefill = 1 + rng.IntN(4)
		}
		whole := c.MaxChunk == 0
		s, err := New(c)
		if err != nil {
			t.Fatal(err)
		}
		w := &world{t: t, rng: rng, config: s.config, s: s, known: map[ID]*life{}, spare: []*Plan{{}, {}, {}, {}}, whole: whole}
		for range 300 {
			w.act()
		}
		w.finish()
		if t.Failed() {
			t.Fatalf("seed %d, %+v", seed, c)
		}
	}
}

func (w *world) act() {
	switch w.rng.IntN(13) {
	case 0, 1:
		w.add()
	case 2:
		if id, ok := w.any(); ok && w.rng.IntN(3) == 0 {
			w.remove(id)
		}
	case 3:
		if id, ok := w.any(); ok {
			w.s.SetDrafts(id, w.rng.IntN(4))
		}
	case 4:
		w.shortage()
	case 5:
		w.config.MixedPrefill = w.rng.IntN(6) - 1
		w.s.SetMixedPrefill(w.config.MixedPrefill)
	default:
		w.step(2)
	}
}

func (w *world) any() (ID, bool) {
	if len(w.order) == 0 {
		return 0, false
	}
	return w.order[w.rng.IntN(len(w.order))], true
}

func (w *world) add() {
	w.nextID++
	limit := 1 + w.rng.IntN(w.config.MaxLen)
	q := Request{ID: w.nextID, Prompt: 1 + w.rng.IntN(limit), Limit: limit, Drafts: w.rng.IntN(4)}
	if w.rng.IntN(4) == 0 {
		q.Computed = w.rng.IntN(q.Prompt)
	}
	if err := w.s.Add(q); err != nil {
		w.t.Fatal(err)
	}
	w.known[q.ID] = &life{prompt: q.Prompt, limit: limit, begun: q.Computed, tokens: q.Computed, upper: q.Computed, lower: q.Computed}
	w.order = append(w.order, q.ID)
}

func (w *world) remove(id ID) {
	if !w.s.Remove(id) || w.s.Remove(id) {
		w.t.Errorf("remove of %d", id)
	}
	delete(w.known, id)
	for i, o := range w.order {
		if o == id {
			w.order = append(w.order[:i], w.order[i+1:]...)
			return
		}
	}
}

// step plans and launches, then applies results until at most depth plans are in flight.
func (w *world) step(depth int) {
	p := w.spare[0]
	w.s.Schedule(p)
	w.check(p)
	w.commit(p)
	if !p.Empty() {
		w.spare = w.spare[1:]
		w.flying = append(w.flying, p)
	}
	for len(w.flying) >= depth || p.Empty() && len(w.flying) > 0 {
		w.apply()
	}
}

// check holds a plan against the invariants, without believing the scheduler.
func (w *world) check(p *Plan) {
	if n := p.Tokens(); n > w.config.MaxTokens {
		w.t.Errorf("%d tokens, budget %d", n, w.config.MaxTokens)
	}
	active, admitted := 0, map[ID]bool{}
	for _, l := range w.known {
		if l.running {
			active++
		}
	}
	for _, a := range p.Admitted {
		l := w.known[a.ID]
		if l == nil || l.running || admitted[a.ID] || a.Swapped != l.swapped {
			w.t.Fatalf("admission of %+v, %+v", a, l)
		}
		admitted[a.ID] = true
	}
	if active+len(admitted) > w.config.MaxSeqs {
		w.t.Errorf("%d running, %d admitted, MaxSeqs %d", active, len(admitted), w.config.MaxSeqs)
	}
	w.checkOrder(admitted)
	w.checkRows(p, admitted)
}

// checkOrder: those admitted and running are exactly a prefix of all requests in order of arrival.
func (w *world) checkOrder(admitted map[ID]bool) {
	waiting := ID(0)
	for _, id := range w.order {
		in := w.known[id].running || admitted[id]
		if in && waiting != 0 {
			w.t.Errorf("%d runs before %d", id, waiting)
		}
		if !in {
			waiting = id
		}
	}
}

func (w *world) checkRows(p *Plan, admitted map[ID]bool) {
	seen := map[ID]bool{}
	live := func(id ID) *life {
		l := w.known[id]
		if l == nil || seen[id] || !l.running && !admitted[id] {
			w.t.Fatalf("a row for %d: %+v", id, l)
		}
		seen[id] = true
		return l
	}
	steps := 0
	for _, r := range p.Steps {
		l := live(r.ID)
		if l.running {
			steps++
		}
		if l.begun < l.prompt || r.N < 1 || r.N > p.T || r.Upper < min(l.upper+r.N, l.limit-1) || r.Upper >= l.limit {
			w.t.Errorf("step row %+v of T=%d for %+v", r, p.T, l)
		}
	}
	for _, r := range p.Prefills {
		l := live(r.ID)
		if r.Start != l.begun || r.N < 1 || r.N > w.config.MaxChunk || r.Final != (r.Start+r.N == l.prompt) || r.Upper != l.prompt {
			w.t.Errorf("prefill row %+v for %+v", r, l)
		}
	}
	if n := p.PrefillTokens(); steps > 0 && w.config.MixedPrefill != 0 && n > max(w.config.MixedPrefill, 0) {
		w.t.Errorf("%d prompt tokens next to step rows, at most %d", n, w.config.MixedPrefill)
	}
	for id := range admitted {
		if !seen[id] {
			w.t.Errorf("%d admitted without a row", id)
		}
	}
	w.checkProgress(p, seen)
}

// checkProgress: somebody advances whenever somebody can, and no running step row waits long.
func (w *world) checkProgress(p *Plan, seen map[ID]bool) {
	if p.Empty() && len(w.flying) == 0 && len(w.order) > 0 {
		w.t.Errorf("nothing planned for %d requests", len(w.order))
	}
	for id, l := range w.known {
		l.skipped++
		if seen[id] || !l.running || l.begun < l.prompt || l.lower+1 >= l.limit {
			l.skipped = 0
		}
		if l.skipped > w.config.MaxSeqs {
			w.t.Errorf("%d got no row in %d plans", id, l.skipped)
		}
	}
}

func (w *world) commit(p *Plan) {
	w.s.Commit(p)
	for _, a := range p.Admitted {
		w.known[a.ID].running, w.known[a.ID].swapped = true, false
	}
	for _, r := range p.Steps {
		l := w.known[r.ID]
		l.rows++
		l.lower++
		l.upper += r.N
	}
	for _, r := range p.Prefills {
		l := w.known[r.ID]
		l.rows++
		l.begun += r.N
		l.lower += r.N
		l.upper += r.N
	}
	w.checkUnfinished()
}

// checkUnfinished: where budgets alone cut prompts, one at most of those that run is unfinished. Engines count on it
// for their scratch blocks.
func (w *world) checkUnfinished() {
	n := 0
	for _, l := range w.known {
		if l.running && l.begun > 0 && l.begun < l.prompt {
			n++
		}
	}
	if w.whole && n > 1 {
		w.t.Errorf("%d prompts are unfinished", n)
	}
}

// apply gives the oldest plan in flight random results, ends what has reached its limit and now and then something else.
func (w *world) apply() {
	p := w.flying[0]
	w.flying = w.flying[1:]
	accepted := make([]int32, len(p.Steps)+len(p.Prefills))
	for i, r := range p.Steps {
		if l := w.known[r.ID]; l != nil {
			room := max(l.limit-1-l.tokens, 0) // the device cuts too
			accepted[i] = int32(min(1+w.rng.IntN(r.N), room))
			l.rows--
			l.tokens += int(accepted[i])
			l.upper -= r.N - int(accepted[i])
			l.lower += int(accepted[i]) - 1
		}
	}
	for _, r := range p.Prefills {
		if l := w.known[r.ID]; l != nil {
			l.rows--
			l.tokens += r.N
		}
	}
	w.s.Applied(p, accepted)
	w.spare = append(w.spare, p)
	for _, id := range append([]ID(nil), w.order...) {
		l := w.known[id]
		if l.rows == 0 && w.s.Upper(id) != l.tokens {
			w.t.Errorf("Upper(%d) = %d, is %d", id, w.s.Upper(id), l.tokens)
		}
		if l.tokens+1 >= l.limit && l.tokens >= l.prompt || l.running && w.rng.IntN(40) == 0 {
			w.remove(id)
		}
	}
}

// shortage pretends that a plan does not fit until something is preempted, or a few times.
func (w *world) shortage() {
	p := w.spare[0]
	for range 20 {
		w.s.Schedule(p)
		w.check(p)
		if p.Empty() {
			break
		}
		what, id := w.s.Relieve(p)
		switch what {
		case Drain:
			for len(w.flying) > 0 {
				w.apply()
			}
		case Preempt:
			w.preempt(id)
			return
		case Hopeless:
			w.remove(id)
			return
		}
		if w.rng.IntN(4) == 0 {
			break
		}
	}
}

func (w *world) preempt(id ID) {
	l := w.known[id]
	l.running, l.swapped = false, w.rng.IntN(2) == 0
	if !l.swapped {
		if l.begun >= l.prompt {
			l.prompt = l.tokens + 1
		}
		l.begun, l.tokens, l.upper, l.lower = 0, 0, 0, 0
	}
	w.s.Preempt(id, l.swapped)
	for _, o := range w.order {
		if o > id && w.known[o].running {
			w.t.Errorf("%d preempted before %d", id, o)
		}
	}
}

// finish lets everything run to its end: no request starves.
func (w *world) finish() {
	w.config.MixedPrefill = max(w.config.MixedPrefill, 0)
	w.s.SetMixedPrefill(w.config.MixedPrefill)
	for range 5000 {
		if len(w.order) == 0 {
			break
		}
		w.step(2)
	}
	for len(w.flying) > 0 {
		w.apply()
	}
	if len(w.order) > 0 || w.s.Running()+w.s.Waiting()+w.s.InFlight() > 0 {
		w.t.Errorf("left at the end: %v, %d running, %d waiting, %d rows", w.order, w.s.Running(), w.s.Waiting(), w.s.InFlight())
	}
}

func TestScheduleDoesNotAllocate(t *testing.T) {
	s, err := New(Config{MaxSeqs: 64, MaxTokens: 64, MaxLen: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	for id := range ID(64) {
		if err := s.Add(Request{ID: id, Prompt: 1}); err != nil {
			t.Fatal(err)
		}
	}
	var p Plan
	accepted := make([]int32, 64)
	for i := range accepted {
		accepted[i] = 1
	}
	step := func() {
		s.Schedule(&p)
		s.Commit(&p)
		s.Applied(&p, accepted)
	}
	step()
	step()
	if n := testing.AllocsPerRun(100, step); n != 0 {
		t.Errorf("%v allocations a step", n)
	}
	if len(p.Steps) != 64 {
		t.Errorf("%d rows", len(p.Steps))
	}
}

func BenchmarkStep(b *testing.B) {
	s, _ := New(Config{MaxSeqs: 256, MaxTokens: 1024, MaxLen: 1 << 30})
	for id := range ID(256) {
		if err := s.Add(Request{ID: id, Prompt: 1, Drafts: 3}); err != nil {
			b.Fatal(err)
		}
	}
	var p Plan
	accepted := make([]int32, 256)
	for i := range accepted {
		accepted[i] = 1
	}
	for b.Loop() {
		s.Schedule(&p)
		s.Commit(&p)
		s.Applied(&p, accepted)
	}
}
