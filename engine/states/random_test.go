package states

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"reprise/kernels"
)

// zoo is many sequences on one toy, with their true histories.
type zoo struct {
	*toy
	rng       *rand.Rand
	live      map[ID]history
	swapped   map[ID]history
	snapshots []kept
	next      ID
	token     uint64
	counts    map[string]int
}

type kept struct {
	snap *Snapshot
	h    history
}

// TestRandomOperations does everything in random order on pools that are always nearly full, with the books checked after
// every operation and every byte of every sequence compared with its history now and then.
func TestRandomOperations(t *testing.T) {
	seeds, counts := uint64(12), map[string]int{}
	if testing.Short() {
		seeds = 3
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			z := &zoo{toy: newToy(t, 20<<10), rng: rand.New(rand.NewPCG(seed, 4)), live: map[ID]history{}, swapped: map[ID]history{}, counts: counts}
			for i := range 250 {
				z.act()
				z.check()
				if i%10 == 0 {
					z.verifyAll()
				}
			}
			z.empty()
		})
	}
	for _, what := range []string{"fresh", "restored", "swapped in", "swapped out", "snapshot", "shortage", "no host memory", "step", "prefill", "released while swapped",
		"chunk in the middle", "snapshot within a prompt", "swapped within a prompt"} {
		if counts[what] == 0 {
			t.Errorf("%q never happened: %v", what, counts)
		}
	}
}

func keys(m map[ID]history) []ID {
	var ids []ID
	for id := range m {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

func (z *zoo) pick(m map[ID]history) (ID, bool) {
	ids := keys(m)
	if len(ids) == 0 {
		return 0, false
	}
	return ids[z.rng.IntN(len(ids))], true
}

func (z *zoo) tokens(n int) []uint64 {
	out := make([]uint64, n)
	for i := range out {
		z.token++
		out[i] = z.token
	}
	return out
}

func (z *zoo) act() {
	switch z.rng.IntN(9) {
	case 0, 1:
		z.admit()
	case 2:
		z.keep()
	case 3:
		z.swapOut()
	case 4:
		z.swapIn()
	case 5:
		z.release()
	default:
		z.advance()
	}
}

// try prepares and reports success; a shortage is part of the game.
func (z *zoo) try(n Need) bool {
	z.t.Helper()
	before := z.st.Usage()
	err := z.st.Prepare(z.work, []Need{n})
	var short *Shortage
	switch {
	case errors.As(err, &short):
		z.counts["shortage"]++
		if z.st.Usage() != before || !z.work.Empty() {
			z.t.Error("a failed prepare changed something")
		}
		return false
	case err != nil:
		z.t.Fatal(err)
	}
	z.flush()
	return true
}

func (z *zoo) admit() {
	z.next++
	n, h, how := Need{ID: z.next, Tokens: z.rng.IntN(8)}, start, "fresh"
	if len(z.snapshots) > 0 && z.rng.IntN(3) > 0 {
		k := z.snapshots[z.rng.IntN(len(z.snapshots))]
		n.From, h, how = k.snap, k.h, "restored"
		n.Tokens = min(toyMaxLen, n.Tokens+h.tokens())
	}
	if z.try(n) {
		z.live[n.ID] = h
		z.counts[how]++
		z.verify(n.ID, h)
	}
}

func (z *zoo) keep() {
	if len(z.snapshots) > 3 {
		i := z.rng.IntN(len(z.snapshots))
		z.st.Drop(z.snapshots[i].snap)
		z.snapshots = slices.Delete(z.snapshots, i, i+1)
		return
	}
	if id, ok := z.pick(z.live); ok {
		if z.st.books.Scratch(id) != 0 {
			z.counts["snapshot within a prompt"]++
		}
		snap, err := z.st.Snapshot(z.work, id, z.cursor(id))
		if errors.Is(err, ErrHostMemory) {
			z.counts["no host memory"]++
			return
		}
		must(z.t, err)
		z.flush()
		z.snapshots = append(z.snapshots, kept{snap, z.live[id]})
		z.counts["snapshot"]++
	}
}

func (z *zoo) swapOut() {
	id, ok := z.pick(z.live)
	if !ok {
		return
	}
	if z.st.books.Scratch(id) != 0 {
		z.counts["swapped within a prompt"]++
	}
	err := z.st.SwapOut(z.work, id, z.cursor(id))
	if errors.Is(err, ErrHostMemory) {
		z.counts["no host memory"]++
		return
	}
	must(z.t, err)
	z.flush()
	z.swapped[id] = z.live[id]
	delete(z.live, id)
	z.counts["swapped out"]++
}

func (z *zoo) swapIn() {
	if id, ok := z.pick(z.swapped); ok {
		h := z.swapped[id]
		if z.try(Need{ID: id, Tokens: min(toyMaxLen, h.tokens()+1)}) {
			z.live[id] = h
			delete(z.swapped, id)
			z.counts["swapped in"]++
			z.verify(id, h)
		}
	}
}

func (z *zoo) release() {
	m := z.live
	if z.rng.IntN(4) == 0 {
		m = z.swapped
	}
	if id, ok := z.pick(m); ok {
		if z.st.Swapped(id) {
			z.counts["released while swapped"]++
		}
		z.st.Release(id)
		delete(m, id)
	}
}

func (z *zoo) advance() {
	id, ok := z.pick(z.live)
	if !ok {
		return
	}
	h := z.live[id]
	room := toyMaxLen - h.tokens()
	if room < z.win.T {
		return
	}
	n, kind := 1+z.rng.IntN(z.win.T), NoChunk
	if z.st.books.Scratch(id) != 0 || z.rng.IntN(5) == 0 {
		n, kind = 1+z.rng.IntN(min(room, 9)), Chunk
		if room < 6 || z.rng.IntN(3) == 0 {
			kind = LastChunk
		}
	}
	if !z.try(Need{ID: id, Tokens: h.tokens() + n, Prefill: kind}) {
		return
	}
	if kind != NoChunk {
		z.counts["prefill"]++
		scratch, stage := z.st.Staged(0)
		z.live[id] = z.chunk(id, h, z.tokens(n), scratch, stage)
		if stage == kernels.Resume {
			z.counts["chunk in the middle"]++
		}
	} else {
		z.counts["step"]++
		z.live[id] = z.step(id, h, z.tokens(n), z.rng.IntN(n+1))
	}
	if z.rng.IntN(2) == 0 {
		z.st.Observe(id, z.cursor(id))
	}
}

func (z *zoo) verifyAll() {
	for _, id := range keys(z.live) {
		z.verify(id, z.live[id])
	}
}

func (z *zoo) empty() {
	z.verifyAll()
	for _, id := range append(keys(z.live), keys(z.swapped)...) {
		z.st.Release(id)
		z.check()
	}
	for _, k := range z.snapshots {
		z.st.Drop(k.snap)
		z.check()
	}
	must(z.t, z.st.Idle())
}
