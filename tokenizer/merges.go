package tokenizer

import "math/rand/v2"

// mergeTable finds the merge of a pair of ids: open addressing in one array, at most half full, so that a look-up
// touches one line of memory. The hash has a random factor, so that no file can aim at one place.
type mergeTable struct {
	entries []mergeEntry // a power of two
	factor  uint64
	shift   uint
	count   int
}

type mergeEntry struct {
	pair   uint64 // left<<32 | right
	rank   int32  // noMerge where nothing is
	joined int32
}

// newMergeTable expects so many merges; it grows beyond.
func newMergeTable(expected int) mergeTable {
	t := mergeTable{factor: rand.Uint64() | 1, shift: 60}
	for 1<<(64-t.shift) < 2*expected {
		t.shift--
	}
	t.entries = make([]mergeEntry, 1<<(64-t.shift))
	for i := range t.entries {
		t.entries[i].rank = noMerge
	}
	return t
}

func pairOf(left, right int32) uint64 { return uint64(uint32(left))<<32 | uint64(uint32(right)) }

// place is where the pair is or belongs.
func (t *mergeTable) place(pair uint64) *mergeEntry {
	at := pair * t.factor >> t.shift
	for {
		e := &t.entries[at]
		if e.pair == pair || e.rank == noMerge {
			return e
		}
		at = (at + 1) & uint64(len(t.entries)-1)
	}
}

// set enters a merge; of equal pairs the last counts, as in the Rust library.
func (t *mergeTable) set(left, right, joined, rank int32) {
	pair := pairOf(left, right)
	e := t.place(pair)
	if e.rank == noMerge {
		t.count++
	}
	*e = mergeEntry{pair, rank, joined}
	if 2*t.count > len(t.entries) {
		t.grow()
	}
}

func (t *mergeTable) grow() {
	larger := newMergeTable(len(t.entries))
	larger.count = t.count
	for _, e := range t.entries {
		if e.rank != noMerge {
			*larger.place(e.pair) = e
		}
	}
	*t = larger
}
