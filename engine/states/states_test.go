package states

import (
	"bytes"
	"errors"
	"testing"

	"reprise/attention"
	"reprise/kernels"
)

const plenty = 1 << 20

var start = history{7}

func words(n int, seed uint64) []uint64 {
	w := make([]uint64, n)
	for i := range w {
		w[i] = seed*1000 + uint64(i)
	}
	return w
}

func (y *toy) prepare(needs ...Need) {
	y.t.Helper()
	must(y.t, y.st.Prepare(y.work, needs))
	y.flush()
	y.check()
}

// grow runs a sequence to a history of prompt tokens and then steps of one token.
func (y *toy) grow(id ID, h history, prompt, steps int, seed uint64) history {
	y.t.Helper()
	y.prepare(Need{ID: id, Tokens: h.tokens() + prompt + steps})
	if prompt > 0 {
		h = y.prefill(id, h, words(prompt, seed))
	}
	for _, w := range words(steps, seed+1) {
		h = y.step(id, h, []uint64{w}, 1)
	}
	y.verify(id, h)
	return h
}

func (y *toy) end(ids ...ID) {
	y.t.Helper()
	for _, id := range ids {
		y.st.Release(id)
		y.check()
	}
	must(y.t, y.st.Idle())
}

func TestFreshSlotsAreClean(t *testing.T) {
	y := newToy(t, 0)
	for round := range uint64(3) { // slots, blocks and pages come back dirty
		h := y.grow(1, start, 9, 7, round)
		if h.tokens() != 16 {
			t.Fatal(h.tokens())
		}
		y.grow(2, start, 0, 3, round+10)
		y.end(1, 2)
	}
}

func TestSwapRestoresEveryByte(t *testing.T) {
	for _, steps := range []int{0, 1, 3, 4, 5, 9} { // any phase of the rings, of pages and of the flush
		y := newToy(t, plenty)
		h := y.grow(1, start, 6, steps, 1)
		before := y.dump(1)
		must(t, y.st.SwapOut(y.work, 1, y.cursor(1)))
		y.flush()
		y.check()
		if u := y.st.Usage(); u.Slots+u.Blocks+u.Pages > 0 || u.Swapped != 1 || u.HostBytes == 0 || !y.st.Swapped(1) {
			t.Errorf("after swap-out: %+v", u)
		}
		other := y.grow(2, start, 11, 6, 2) // takes what was freed and dirties it
		y.prepare(Need{ID: 1, Tokens: h.tokens() + 1})
		if y.st.Usage().HostBytes != 0 || y.st.Swapped(1) {
			t.Error("host memory is held after swap-in")
		}
		y.verify(1, h)
		if after := y.dump(1); !bytes.Equal(before, after) {
			t.Errorf("%d steps: swapped-in state differs", steps)
		}
		h = y.grow(1, h, 0, 7, 3)
		y.verify(1, h)
		y.verify(2, other)
		y.end(1, 2)
	}
}

// TestUnfinishedPromptsGoOn: chunk by chunk through a scratch block, swapped out and forked in the middle.
func TestUnfinishedPromptsGoOn(t *testing.T) {
	y := newToy(t, plenty)
	advance := func(id ID, h history, n int, kind Prefill, wantScratch bool, wantStage int32) history {
		t.Helper()
		y.prepare(Need{ID: id, Tokens: h.tokens() + n, Prefill: kind})
		scratch, stage := y.st.Staged(0)
		if (scratch >= 0) != wantScratch || stage != wantStage {
			t.Errorf("sequence %d: scratch block %d, stage %d; want one: %v, stage %d", id, scratch, stage, wantScratch, wantStage)
		}
		h = y.chunk(id, h, words(n, uint64(id)*100+uint64(h.tokens())), scratch, stage)
		y.verify(id, h)
		return h
	}
	whole := advance(3, start, 6, LastChunk, false, 0)
	h := advance(1, start, 5, Chunk, true, 0)
	must(t, y.st.SwapOut(y.work, 1, y.cursor(1)))
	y.flush()
	y.check()
	other := advance(2, start, 7, Chunk, true, 0) // takes what was freed and dirties it
	h = advance(1, h, 3, Chunk, true, kernels.Resume)
	var short *Shortage
	if err := y.st.Prepare(y.work, []Need{{ID: 4, Tokens: 9, Prefill: Chunk}}); !errors.As(err, &short) || *short != (Shortage{Scratch: 1}) {
		t.Errorf("a third unfinished prompt: %v", err)
	}
	snap, err := y.st.Snapshot(y.work, 1, y.cursor(1))
	must(t, err)
	y.flush()
	h = advance(1, h, 2, LastChunk, true, kernels.Resume|kernels.Publish)
	y.prepare(Need{ID: 4, Tokens: 9, From: snap, Prefill: LastChunk})
	y.st.Drop(snap)
	y.check()
	scratch, stage := y.st.Staged(0)
	if stage != kernels.Resume|kernels.Publish {
		t.Errorf("restored within a prompt: stage %d", stage)
	}
	forked := y.chunk(4, h[:9], words(1, 9), scratch, stage)
	other = advance(2, other, 1, LastChunk, true, kernels.Resume|kernels.Publish)
	for id, h := range map[ID]history{1: h, 2: other, 3: whole, 4: forked} {
		y.verify(id, h)
		y.verify(id, y.grow(id, h, 0, 6, uint64(id)))
	}
	if u := y.st.Usage(); u.Scratch != 0 || u.TotalScratch != toyScratch {
		t.Errorf("%+v", u)
	}
	y.end(1, 2, 3, 4)
}

// dump is a sequence's state as the device would use it: what an image would hold, by the pools' own functions.
func (y *toy) dump(id ID) []byte {
	var out []byte
	c, slot := y.cursor(id), y.slot(id)
	y.do(func(o kernels.Ops) {
		block, tail := make([]byte, y.ssm.BlockBytes()), make([]byte, y.ssm.TailSize(c))
		y.ssm.SaveBlock(o, int(c.Src), block)
		y.ssm.SaveTail(o, slot, c, tail)
		out = append(append(out, block...), tail...)
		for _, p := range y.st.books.Table(id)[:(int(c.Origin+c.H)+toyPageTokens-1)/toyPageTokens] {
			page := make([]byte, y.kv.Config().PageBytes())
			y.kv.SavePage(o, int(p), page)
			out = append(out, page...)
		}
		extra := make([]byte, 8)
		y.extra.Save(o, slot, extra)
		out = append(out, extra...)
	})
	return out
}

func TestSnapshotOutlivesItsSharers(t *testing.T) {
	for _, tokens := range []int{1, 4, 6, 8, 11} { // within and at the edge of a page and of the window
		y := newToy(t, plenty)
		h := y.grow(1, start, 1, tokens-1, 1)
		snap, err := y.st.Snapshot(y.work, 1, y.cursor(1))
		must(t, err)
		y.flush()
		y.check()
		if snap.Tokens() != tokens {
			t.Errorf("snapshot of %d tokens, want %d", snap.Tokens(), tokens)
		}
		a := y.grow(1, h, 0, 9, 2) // the original goes on through flushes
		b := y.fork(2, snap, h, 3) // and so do two others
		c := y.fork(3, snap, h, 4)
		y.verify(1, a)
		y.verify(2, b)
		y.verify(3, c)
		y.st.Release(1)
		y.st.Release(2)
		y.check()
		y.verify(3, c)
		d := y.fork(4, snap, h, 5)
		y.st.Drop(snap)
		y.check()
		y.verify(4, d)
		y.grow(4, d, 3, 2, 6)
		y.end(3, 4)
	}
}

// fork restores a snapshot, verifies it and goes on: a step, a prefill chunk, steps.
func (y *toy) fork(id ID, snap *Snapshot, h history, seed uint64) history {
	y.t.Helper()
	y.prepare(Need{ID: id, Tokens: h.tokens() + 10, From: snap})
	y.verify(id, h)
	h = y.step(id, h, words(2, seed), 1)
	h = y.prefill(id, h, words(3, seed+1))
	for _, w := range words(5, seed+2) {
		h = y.step(id, h, []uint64{w}, 1)
	}
	y.verify(id, h)
	return h
}

// A shared block is read until the flush, then Observe gives it back.
func TestObserveReturnsTheSharedBlock(t *testing.T) {
	y := newToy(t, plenty)
	h := y.grow(1, start, 5, 1, 1)
	snap, err := y.st.Snapshot(y.work, 1, y.cursor(1))
	must(t, err)
	y.st.Drop(snap) // the sequence alone again: no reserve
	y.prepare(Need{ID: 1, Tokens: 7})
	if n := y.st.Usage().Blocks; n != 1 {
		t.Errorf("%d blocks without a sharer", n)
	}
	snap, err = y.st.Snapshot(y.work, 1, y.cursor(1))
	must(t, err)
	y.prepare(Need{ID: 1, Tokens: 7})
	if n := y.st.Usage().Blocks; n != 2 {
		t.Errorf("%d blocks with a sharer, want the shared one and a reserve", n)
	}
	if c := y.cursor(1); c.Src == c.Dst {
		t.Errorf("the reserve did not reach the device: %+v", c)
	}
	y.st.Drop(snap)
	y.check()
	h = y.grow(1, h, 0, 6, 2)
	y.st.Observe(1, y.cursor(1))
	y.check()
	if n := y.st.Usage().Blocks; n != 1 {
		t.Errorf("%d blocks after the flush", n)
	}
	y.verify(1, h)
	y.end(1)
}

func TestPrepareIsAllOrNothing(t *testing.T) {
	y := newToy(t, plenty)
	h := y.grow(1, start, 8, 0, 1)
	snap, err := y.st.Snapshot(y.work, 1, y.cursor(1))
	must(t, err)
	y.flush()
	before := y.st.Usage()
	short := func(want Shortage, needs ...Need) {
		t.Helper()
		var s *Shortage
		if err := y.st.Prepare(y.work, needs); !errors.As(err, &s) || *s != want {
			t.Errorf("prepare: %v, want %+v", err, want)
		}
		if !y.work.Empty() || y.st.Usage() != before {
			t.Errorf("a failed prepare changed something: %+v, was %+v", y.st.Usage(), before)
		}
		y.check()
	}
	// 23 pages, of which 2 are taken; 4 slots, 1 taken; 7 blocks, 1 taken
	short(Shortage{Pages: 1}, Need{ID: 1, Tokens: 40}, Need{ID: 2, Tokens: 40}, Need{ID: 3, Tokens: 13})
	short(Shortage{Slots: 1}, Need{ID: 2}, Need{ID: 3}, Need{ID: 4}, Need{ID: 5})
	short(Shortage{Pages: 8}, Need{ID: 2, From: snap, Tokens: 40}, Need{ID: 3, From: snap, Tokens: 40}, Need{ID: 4, From: snap, Tokens: 40}, Need{ID: 1, Tokens: 16})
	y.prepare(Need{ID: 1, Tokens: 40}, Need{ID: 2, Tokens: 40}, Need{ID: 3, Tokens: 12})
	y.verify(1, h)
	y.st.Drop(snap)
	y.end(1, 2, 3)
}

func TestHostMemoryIsBounded(t *testing.T) {
	y := newToy(t, 2048)
	h := y.grow(1, start, 20, 0, 1)
	before := y.st.Usage()
	if err := y.st.SwapOut(y.work, 1, y.cursor(1)); !errors.Is(err, ErrHostMemory) {
		t.Errorf("swap-out beyond the limit: %v", err)
	}
	if y.st.Usage() != before || !y.work.Empty() {
		t.Error("a failed swap-out changed something")
	}
	var snaps []*Snapshot
	for {
		snap, err := y.st.Snapshot(y.work, 1, y.cursor(1))
		if errors.Is(err, ErrHostMemory) {
			break
		}
		must(t, err)
		y.check()
		snaps = append(snaps, snap)
	}
	if len(snaps) == 0 || y.st.Usage().HostBytes > 2048 {
		t.Errorf("%d snapshots in %d bytes", len(snaps), y.st.Usage().HostBytes)
	}
	for _, s := range snaps {
		y.st.Drop(s)
		y.check()
	}
	y.flush()
	y.verify(1, h)
	y.end(1)
}

func TestFits(t *testing.T) {
	y := newToy(t, 0)
	if err := y.st.Fits(toyMaxLen); err != nil {
		t.Errorf("a sequence of the maximum length: %v", err)
	}
	var s *Shortage
	if err := y.st.Fits(toyMaxLen + 1); !errors.As(err, &s) || s.Pages != 1 {
		t.Errorf("a longer one: %v", err)
	}
}

func TestBadConfig(t *testing.T) {
	y := newToy(t, 0)
	for _, c := range []Config{{}, {Blocks: 1}, {Blocks: 4, HostBytes: -1}} {
		if _, err := New(c, y.dev, y.ssm, y.kv); err == nil {
			t.Errorf("%+v accepted", c)
		}
	}
}

func TestReleaseInEveryState(t *testing.T) {
	y := newToy(t, plenty)
	y.st.Release(99) // never heard of
	y.check()
	y.prepare(Need{ID: 1, Tokens: 1}) // admitted, nothing computed
	y.end(1)
	y.grow(1, start, 5, 0, 1)
	must(t, y.st.SwapOut(y.work, 1, y.cursor(1)))
	y.end(1) // swapped out, the copies not even submitted
	y.flush()
	y.grow(1, start, 5, 0, 2)
	y.end(1, 1)
}

// A full Work of many sequences at once, more table entries than one scatter takes, all right on the device.
func TestOneWorkForEverything(t *testing.T) {
	y := newToy(t, plenty)
	a := y.grow(1, start, 10, 3, 1)
	b := y.grow(2, start, 7, 2, 2)
	snap, err := y.st.Snapshot(y.work, 2, y.cursor(2))
	must(t, err)
	must(t, y.st.SwapOut(y.work, 1, y.cursor(1)))
	for round := range ID(60) { // slots are given and taken back many times within one Work
		must(t, y.st.Prepare(y.work, []Need{{ID: 100 + round, Tokens: 30}}))
		y.st.Release(100 + round)
	}
	must(t, y.st.Prepare(y.work, []Need{{ID: 3, Tokens: 20, From: snap}, {ID: 1, Tokens: 14}, {ID: 4, Tokens: 3}, {ID: 2, Tokens: 10}}))
	if y.work.used < 2 {
		t.Errorf("%d scatter chunks: the test is too small", y.work.used)
	}
	y.flush()
	y.check()
	y.verify(1, a)
	y.verify(2, b)
	y.verify(3, b)
	y.verify(4, start)
	y.st.Drop(snap)
	y.end(1, 2, 3, 4)
}

func TestPrepareDoesNotAllocate(t *testing.T) {
	y := newToy(t, 0)
	needs := []Need{{ID: 1, Tokens: 1}, {ID: 2, Tokens: 1}, {ID: 3, Tokens: 1}}
	step := func() {
		for i := range needs {
			needs[i].Tokens = needs[i].Tokens%28 + 1
			if needs[i].Tokens == 1 {
				y.st.Release(needs[i].ID)
			}
		}
		if err := y.st.Prepare(y.work, needs); err != nil {
			t.Fatal(err)
		}
		y.work.Reset()
	}
	for range 60 {
		step()
	}
	if n := testing.AllocsPerRun(200, step); n != 0 {
		t.Errorf("%v allocations a step", n)
	}
}

// One Prepare with more table entries than a scatter takes.
func TestLongTableUpdate(t *testing.T) {
	y := newToy(t, 0)
	var err error
	y.kv, err = attention.NewPool(y.dev, attention.PoolConfig{
		Layers: 1, KVHeads: 1, HeadDim: 2, DType: kernels.F32, PageTokens: 1, Pages: 1000, Slots: toySlots, MaxLen: 700,
	})
	must(t, err)
	y.st, err = New(Config{Blocks: toyBlocks}, y.dev, y.ssm, y.kv)
	must(t, err)
	y.work = y.st.NewWork()
	y.prepare(Need{ID: 1, Tokens: 700}, Need{ID: 2, Tokens: scatterMax})
	y.do(func(o kernels.Ops) {
		y.checkTable(o, 1, y.slot(1))
		y.checkTable(o, 2, y.slot(2))
	})
	y.end(1, 2)
}
