package tokenizer

import (
	"hash/maphash"
	"slices"
	"strings"
	"sync/atomic"
)

const (
	cacheSlots    = 1 << 15
	maxCachedText = 48 // bytes; longer pieces rarely come back
)

// pieceCache remembers ids of pieces. A piece has one slot, the newest one in it stays:
// bounded (at most about 10 MB), and without locks, since entries never change.
type pieceCache [cacheSlots]atomic.Pointer[cacheEntry]

type cacheEntry struct {
	piece string
	ids   []int32
}

// slot is chosen with a random seed, so that no text can aim at one slot.
func (t *Tokenizer) slot(piece string) *atomic.Pointer[cacheEntry] {
	return &t.cache[maphash.String(t.seed, piece)%cacheSlots]
}

// encodePiece appends the ids of one piece of valid UTF-8.
func (t *Tokenizer) encodePiece(w *word, out []int32, piece string) []int32 {
	if len(piece) > maxCachedText {
		return w.encode(&t.model, out, piece)
	}
	slot := t.slot(piece)
	if entry := slot.Load(); entry != nil && entry.piece == piece {
		return append(out, entry.ids...)
	}
	start := len(out)
	out = w.encode(&t.model, out, piece)
	slot.Store(&cacheEntry{piece: strings.Clone(piece), ids: slices.Clone(out[start:])})
	return out
}
