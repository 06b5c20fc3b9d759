package ledger

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// owner is what the random caller knows of a sequence, to be checked against the books.
type owner struct {
	tokens  int // in its state
	swapped bool
	staged  bool // its prompt is unfinished and its state in a scratch block
}

type caller struct {
	t         *testing.T
	rng       *rand.Rand
	l         *Ledger
	config    Config
	known     map[ID]*owner
	snapshots []*Snapshot
	next      ID
}

func TestRandomOperations(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 2))
		c := Config{Slots: 2 + rng.IntN(6), Blocks: 2 + rng.IntN(8), Pages: 2 + rng.IntN(40), PageTokens: 1 + rng.IntN(5), MaxPages: 1 + rng.IntN(12), Scratch: rng.IntN(4)}
		k := &caller{t: t, rng: rng, l: New(c), config: c, known: map[ID]*owner{}}
		for range 300 {
			k.act()
			k.check()
		}
		k.empty()
		if t.Failed() {
			t.Fatalf("seed %d, %+v", seed, c)
		}
	}
}

func (k *caller) act() {
	id, o := k.any()
	switch k.rng.IntN(10) {
	case 0:
		if o != nil {
			k.l.Release(id)
			delete(k.known, id)
		}
	case 1:
		if o != nil && !o.swapped {
			k.snapshots = append(k.snapshots, k.l.Share(id, k.block(id), o.tokens))
		}
	case 2:
		if n := len(k.snapshots); n > 0 {
			i := k.rng.IntN(n)
			k.l.Drop(k.snapshots[i])
			k.snapshots = slices.Delete(k.snapshots, i, i+1)
		}
	case 3:
		if o != nil && !o.swapped {
			s := k.l.SwapOut(id, k.block(id), o.tokens)
			if len(s.Pages) != k.l.pagesFor(o.tokens) || (s.Scratch != 0) != o.staged {
				k.t.Errorf("%+v saved for %+v", s, o)
			}
			o.swapped = true
		}
	case 4:
		if o != nil && !o.swapped {
			k.l.Observe(id, k.block(id))
		}
	default:
		k.prepare()
	}
}

func (k *caller) any() (ID, *owner) {
	var ids []ID
	for id := range k.known {
		ids = append(ids, id)
	}
	if len(ids) == 0 {
		return 0, nil
	}
	slices.Sort(ids)
	id := ids[k.rng.IntN(len(ids))]
	return id, k.known[id]
}

// block is the block that the device reads by now: the old or the new one.
func (k *caller) block(id ID) int32 {
	src, dst := k.l.Blocks(id)
	if k.rng.IntN(2) == 0 {
		return src
	}
	return dst
}

func (k *caller) prepare() {
	var needs []Need
	limit := k.config.MaxPages * k.config.PageTokens
	for id, o := range k.known {
		if k.rng.IntN(2) == 0 {
			needs = append(needs, Need{ID: id, Tokens: min(limit, o.tokens+k.rng.IntN(6)), Prefill: Prefill(k.rng.IntN(3))})
		}
	}
	slices.SortFunc(needs, func(a, b Need) int { return int(a.ID - b.ID) })
	for range k.rng.IntN(3) {
		k.next++
		n := Need{ID: k.next, Tokens: k.rng.IntN(min(limit, 20) + 1), Prefill: Prefill(k.rng.IntN(3))}
		if len(k.snapshots) > 0 && k.rng.IntN(2) == 0 {
			n.From = k.snapshots[k.rng.IntN(len(k.snapshots))]
			n.Tokens = max(n.Tokens, n.From.Tokens())
		}
		needs = append(needs, n)
	}
	before := k.image()
	var c Changes
	if err := k.l.Prepare(needs, &c); err != nil {
		var short *Shortage
		if !errors.As(err, &short) || *short == (Shortage{}) {
			k.t.Errorf("prepare: %v", err)
		}
		if after := k.image(); after != before {
			k.t.Errorf("a failed prepare changed %s to %s", before, after)
		}
		return
	}
	using := map[int32]bool{}
	for _, s := range c.Staged {
		if using[s.Scratch] {
			k.t.Errorf("two rows of a step use scratch block %d", s.Scratch)
		}
		using[s.Scratch] = true
	}
	for _, n := range needs {
		k.prepared(n)
	}
}

// image is everything that the ledger decides by.
func (k *caller) image() string {
	l := k.l
	return fmt.Sprint(l.slots, l.blocks, l.pages, l.scratch, l.live, l.swapped, l.snapshots, l.sharedPages)
}

func (k *caller) prepared(n Need) {
	o := k.known[n.ID]
	if o == nil {
		o = &owner{}
		k.known[n.ID] = o
		if n.From != nil {
			o.tokens, o.staged = n.From.Tokens(), n.From.staged
		}
	}
	o.swapped = false
	if n.Prefill != NoChunk {
		o.staged = n.Prefill == Chunk && k.config.Scratch > 0
	}
	if got := k.l.Scratch(n.ID) != 0; got != o.staged {
		k.t.Errorf("%+v: in a scratch block: %v", n, got)
	}
	pages := k.l.Table(n.ID)
	if len(pages) < k.l.pagesFor(n.Tokens) || len(pages) < k.l.pagesFor(o.tokens) {
		k.t.Errorf("%d pages for %d tokens", len(pages), n.Tokens)
	}
	src, dst := k.l.Blocks(n.ID)
	if k.l.blocks.refs[dst] != 1 {
		k.t.Errorf("sequence %d writes block %d, which has %d owners (reads %d)", n.ID, dst, k.l.blocks.refs[dst], src)
	}
	if n.Tokens > o.tokens && k.rng.IntN(3) > 0 {
		o.tokens += k.rng.IntN(n.Tokens - o.tokens + 1)
	}
}

func (k *caller) check() {
	if err := k.l.Check(k.snapshots); err != nil {
		k.t.Fatal(err)
	}
	writers := map[int32]ID{}
	for id, o := range k.known {
		if o.swapped != k.l.Swapped(id) {
			k.t.Errorf("sequence %d swapped: %v", id, o.swapped)
		}
		if o.swapped {
			continue
		}
		for i, p := range k.l.Table(id) {
			if i < (o.tokens-1)/k.config.PageTokens {
				continue // before the page of the last token: never written again
			}
			if other, taken := writers[p]; taken {
				k.t.Errorf("sequences %d and %d both write page %d", id, other, p)
			}
			writers[p] = id
		}
	}
}

func (k *caller) empty() {
	for id := range k.known {
		k.l.Release(id)
	}
	for _, s := range k.snapshots {
		k.l.Drop(s)
	}
	k.snapshots = nil
	k.known = map[ID]*owner{}
	k.check()
	if u := k.l.Usage(); u.Slots+u.Blocks+u.Pages+u.Scratch+u.Swapped+u.Snapshots != 0 {
		k.t.Errorf("leaked: %+v", u)
	}
}

// Check must see every kind of damage, or the other tests prove nothing.
func TestCheckFindsDamage(t *testing.T) {
	damage := map[string]func(l *Ledger, s *Snapshot) []*Snapshot{
		"slot lost":         func(l *Ledger, s *Snapshot) []*Snapshot { l.slots = l.slots[1:]; return one(s) },
		"slot twice":        func(l *Ledger, s *Snapshot) []*Snapshot { l.slots[0] = l.slots[1]; return one(s) },
		"slot owned":        func(l *Ledger, s *Snapshot) []*Snapshot { l.slots[0] = l.live[1]; return one(s) },
		"null slot":         func(l *Ledger, s *Snapshot) []*Snapshot { l.slots[0] = 0; return one(s) },
		"two in one slot":   func(l *Ledger, s *Snapshot) []*Snapshot { l.live[2] = l.live[1]; return one(s) },
		"page lost":         func(l *Ledger, s *Snapshot) []*Snapshot { l.pages.free = l.pages.free[1:]; return one(s) },
		"page twice":        func(l *Ledger, s *Snapshot) []*Snapshot { l.pages.free[0] = l.pages.free[1]; return one(s) },
		"page owned":        func(l *Ledger, s *Snapshot) []*Snapshot { l.pages.free[0] = s.pages[0]; return one(s) },
		"page count":        func(l *Ledger, s *Snapshot) []*Snapshot { l.pages.refs[s.pages[0]]++; return one(s) },
		"block count":       func(l *Ledger, s *Snapshot) []*Snapshot { l.blocks.refs[s.block]--; return one(s) },
		"block lost":        func(l *Ledger, s *Snapshot) []*Snapshot { l.blocks.free = nil; return one(s) },
		"null page":         func(l *Ledger, s *Snapshot) []*Snapshot { l.sequences[l.live[1]].pages[0] = 0; return one(s) },
		"null block":        func(l *Ledger, s *Snapshot) []*Snapshot { l.sequences[l.live[2]].src = 0; return one(s) },
		"snapshot lost":     func(l *Ledger, s *Snapshot) []*Snapshot { return nil },
		"snapshot dropped":  func(l *Ledger, s *Snapshot) []*Snapshot { l.Drop(s); return one(s) },
		"live and swapped":  func(l *Ledger, s *Snapshot) []*Snapshot { l.swapped[1] = swapped{tokens: 3}; return one(s) },
		"scratch lost":      func(l *Ledger, s *Snapshot) []*Snapshot { l.scratch.free = nil; return one(s) },
		"scratch count":     func(l *Ledger, s *Snapshot) []*Snapshot { l.scratch.refs[1]++; return one(s) },
		"scratch owned":     func(l *Ledger, s *Snapshot) []*Snapshot { l.sequences[l.live[2]].scratch = 1; return one(s) },
		"reserve is shared": func(l *Ledger, s *Snapshot) []*Snapshot { shareReserve(l); return one(s) },
	}
	for name, hurt := range damage {
		l := New(Config{Slots: 5, Blocks: 6, Pages: 12, PageTokens: 4, MaxPages: 5, Scratch: 2})
		var c Changes
		must(t, l.Prepare([]Need{{ID: 1, Tokens: 6, Prefill: Chunk}, {ID: 2, Tokens: 2}}, &c))
		s := l.Share(1, 1, 6)
		must(t, l.Prepare([]Need{{ID: 1, Tokens: 7}}, &c))
		must(t, l.Check(one(s)))
		if err := l.Check(hurt(l, s)); err == nil {
			t.Errorf("%s: not found", name)
		}
	}
}

func one(s *Snapshot) []*Snapshot { return []*Snapshot{s} }

// shareReserve makes sequence 2 read what sequence 1 has reserved to write.
func shareReserve(l *Ledger) {
	_, dst := l.Blocks(1)
	s := &l.sequences[l.live[2]]
	l.blocks.drop(s.src)
	s.src, s.dst = dst, dst
	l.blocks.share(dst)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestMisuseStops(t *testing.T) {
	var c Changes
	for name, f := range map[string]func(*Ledger){
		"dropped twice":             func(l *Ledger) { s := l.Share(1, 1, 1); l.Drop(s); l.Drop(s) },
		"restored from a dropped":   func(l *Ledger) { s := l.Share(1, 1, 1); l.Drop(s); l.Prepare([]Need{{ID: 2, Tokens: 2, From: s}}, &c) },
		"strange block":             func(l *Ledger) { l.Observe(1, 3) },
		"more tokens than pages":    func(l *Ledger) { l.Share(1, 1, 9) },
		"tokens beyond any":         func(l *Ledger) { l.Prepare([]Need{{ID: 1, Tokens: 21}}, &c) },
		"swap-out of an unknown":    func(l *Ledger) { l.SwapOut(9, 1, 0) },
		"swap-out, then in no slot": func(l *Ledger) { l.SwapOut(1, 1, 3); l.Table(1) },
	} {
		l := New(Config{Slots: 5, Blocks: 6, Pages: 12, PageTokens: 4, MaxPages: 5})
		must(t, l.Prepare([]Need{{ID: 1, Tokens: 6}}, &c))
		if msg := panicOf(func() { f(l) }); !strings.HasPrefix(msg, "ledger: ") {
			t.Errorf("%s: %q", name, msg)
		}
	}
}

func panicOf(f func()) (msg string) {
	defer func() { msg = fmt.Sprint(recover()) }()
	f()
	return ""
}

func BenchmarkPrepare(b *testing.B) {
	l := New(Config{Slots: 257, Blocks: 257, Pages: 1 << 16, PageTokens: 16, MaxPages: 256})
	needs := make([]Need, 256)
	for i := range needs {
		needs[i] = Need{ID: ID(i), Tokens: i % 16}
	}
	var c Changes
	for b.Loop() {
		for i := range needs {
			if needs[i].Tokens++; needs[i].Tokens > 4000 {
				l.Release(needs[i].ID)
				needs[i].Tokens = 1
			}
		}
		if err := l.Prepare(needs, &c); err != nil {
			b.Fatal(err)
		}
	}
}
