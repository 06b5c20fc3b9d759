package tokenizer

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/nlpodyssey/gotokenizers/vocabulary"
)

// bpe is a byte-level BPE model: pieces of text to ids.
type bpe struct {
	vocabulary   *vocabulary.Vocabulary
	merges       mergeTable
	filter       pairFilter
	chars        charTable  // characters that merging starts from
	byteIDs      [256]int32 // id of each byte's token; -1 for bytes UTF-8 never has
	ignoreMerges bool       // a piece that is a token is that token, whatever the merges say
}

// pairFilter is a Bloom filter of one hash over the pairs that merge: most pairs of a
// text do not, and 512 KB stay in a core's own cache where the merge map does not.
type pairFilter [1 << 16]uint64

func (f *pairFilter) position(left, right int32) (word, bit uint64) {
	hash := (uint64(uint32(left))<<32 | uint64(uint32(right))) * 0x9E3779B97F4A7C15
	return hash >> 48, hash >> 42 & 63
}

func (f *pairFilter) add(left, right int32) {
	word, bit := f.position(left, right)
	f[word] |= 1 << bit
}

// mayHave is false only for pairs that were not added.
func (f *pairFilter) mayHave(left, right int32) bool {
	word, bit := f.position(left, right)
	return f[word]>>bit&1 != 0
}

// addMerge enters a pair of ids.
func (m *bpe) addMerge(left, right, joined, rank int) {
	m.merges.set(int32(left), int32(right), int32(joined), int32(rank))
	m.filter.add(int32(left), int32(right))
}

// setBytes fills byteIDs and demands a token for every byte that UTF-8 text can have.
func (m *bpe) setBytes() error {
	for b := range m.byteIDs {
		id, ok := m.vocabulary.GetID(string(byteRunes[b]))
		if !ok && b != 0xC0 && b != 0xC1 && b < 0xF5 {
			return fmt.Errorf("no token %q for byte %#02x", byteRunes[b], b)
		}
		if !ok {
			id = -1
		}
		m.byteIDs[b] = int32(id)
	}
	return nil
}

// symbol is a node of the linked list that a piece is while it is merged.
type symbol struct {
	id         int32
	prev, next int32 // positions; -1 at the ends
	rank       int32 // of the merge with next; noMerge if there is none or the symbol is gone
	merged     int32 // id that this merge gives
}

const noMerge = -1

// word merges one piece at a time; its buffers are kept between pieces.
type word struct {
	symbols []symbol
	queue   mergeQueue
	text    strings.Builder
}

// encode appends the ids of a piece, which must be valid UTF-8. O(n log n) time,
// about 40 bytes of memory a byte of the piece.
func (w *word) encode(m *bpe, out []int32, piece string) []int32 {
	if m.ignoreMerges {
		if id, ok := m.vocabulary.GetID(w.spell(piece)); ok {
			return append(out, int32(id))
		}
	}
	w.start(m, piece)
	w.mergeAll(m)
	for at := int32(0); at >= 0; at = w.symbols[at].next {
		out = append(out, w.symbols[at].id)
	}
	return out
}

// spell writes a piece as vocabularies do, a visible character for each byte.
func (w *word) spell(piece string) string {
	w.text.Reset()
	for i := range len(piece) {
		w.text.WriteRune(byteRunes[piece[i]])
	}
	return w.text.String()
}

// start makes a symbol of every character that has one, else of every byte, and queues every merge that is possible.
func (w *word) start(m *bpe, piece string) {
	w.symbols = slices.Grow(w.symbols[:0], len(piece))
	w.queue = slices.Grow(w.queue[:0], len(piece))
	for i := 0; i < len(piece); {
		if piece[i] >= utf8.RuneSelf {
			if id, width, ok := m.chars.at(piece, i); ok {
				w.add(id)
				i += width
				continue
			}
		}
		w.add(m.byteIDs[piece[i]])
		i++
	}
	w.symbols[len(w.symbols)-1].next = -1
	for at := range w.symbols {
		w.offer(m, int32(at))
	}
}

func (w *word) add(id int32) {
	at := int32(len(w.symbols))
	w.symbols = append(w.symbols, symbol{id: id, prev: at - 1, next: at + 1, rank: noMerge})
}

// mergeAll merges until nothing merges any more and returns the highest rank of the merges.
func (w *word) mergeAll(m *bpe) (last int32) {
	for len(w.queue) > 0 {
		rank, at := w.queue.pop()
		if w.symbols[at].rank == rank {
			last = max(last, rank)
			w.merge(m, at)
		}
	}
	return last
}

// merge joins a symbol with its next one. Queue entries made for either before that
// are stale: the symbols' ranks no longer agree with them.
func (w *word) merge(m *bpe, at int32) {
	s := &w.symbols[at]
	gone := &w.symbols[s.next]
	s.id, s.next, gone.rank = s.merged, gone.next, noMerge
	if s.next >= 0 {
		w.symbols[s.next].prev = at
	}
	w.offer(m, at)
	if s.prev >= 0 {
		w.offer(m, s.prev)
	}
}

// offer looks up the merge of a symbol with its next one and queues it.
func (w *word) offer(m *bpe, at int32) {
	s := &w.symbols[at]
	s.rank = noMerge
	if s.next < 0 {
		return
	}
	right := w.symbols[s.next].id
	if !m.filter.mayHave(s.id, right) {
		return
	}
	if merge := m.merges.place(pairOf(s.id, right)); merge.rank != noMerge {
		s.rank, s.merged = merge.rank, merge.joined
		w.queue.push(s.rank, at)
	}
}

// mergeQueue is a binary heap of rank<<32 | position: best rank first, leftmost first
// among equals.
type mergeQueue []uint64

func (q *mergeQueue) push(rank, at int32) {
	h := append(*q, uint64(rank)<<32|uint64(at))
	i := len(h) - 1
	for i > 0 && h[(i-1)/2] > h[i] {
		h[i], h[(i-1)/2] = h[(i-1)/2], h[i]
		i = (i - 1) / 2
	}
	*q = h
}

func (q *mergeQueue) pop() (rank, at int32) {
	h := *q
	top, last := h[0], len(h)-1
	h[0] = h[last]
	h = h[:last]
	for i := 0; ; {
		child := 2*i + 1
		if child >= last {
			break
		}
		if child+1 < last && h[child+1] < h[child] {
			child++
		}
		if h[i] <= h[child] {
			break
		}
		h[i], h[child] = h[child], h[i]
		i = child
	}
	*q = h
	return int32(top >> 32), int32(uint32(top))
}
