package states

import (
	"reprise/engine/states/internal/ledger"
	"reprise/kernels"
)

// image is what host memory keeps of a sequence: the tail of its slot and Extra, and for a swapped-out one its block and
// pages too. All parts lie in one extent.
type image struct {
	cursor                    kernels.Cursor
	at                        ledger.Extent
	tail, extra, block, pages []byte
}

func (im *image) page(i int, size int64) []byte {
	return im.pages[int64(i)*size : int64(i+1)*size]
}

// Snapshot is a state that can be restored any number of times until it is dropped. Block and pages are shared with the
// sequence it was taken of; the tail is a copy.
type Snapshot struct {
	image
	books *ledger.Snapshot
}

// Tokens is the number of tokens in the state.
func (s *Snapshot) Tokens() int { return s.books.Tokens() }

// newImage takes host memory for a state with the given cursor and cuts it.
func (s *States) newImage(c kernels.Cursor, block, pages int64) (image, error) {
	tail, extra := s.ssm.TailSize(c), int64(0)
	if s.extra != nil {
		extra = s.extra.Bytes()
	}
	sizes := [...]int64{round(tail), round(extra), round(block), pages}
	at, err := s.arena.Alloc(sizes[0] + sizes[1] + sizes[2] + sizes[3])
	if err != nil {
		return image{}, err
	}
	rest := s.chunks[at.Chunk][at.Offset : at.Offset+at.Size]
	cut := func(n, padded int64) []byte {
		b := rest[:n:n]
		rest = rest[padded:]
		return b
	}
	im := image{cursor: c, at: at}
	im.tail, im.extra = cut(tail, sizes[0]), cut(extra, sizes[1])
	im.block, im.pages = cut(block, sizes[2]), cut(pages, sizes[3])
	return im, nil
}

// round pads a part of an image, so that copies are aligned.
func round(n int64) int64 { return (n + 63) &^ 63 }

// save records the copies of what every image has.
func (s *States) save(w *Work, slot int32, im *image) {
	w.add(command{kind: saveTail, a: slot, cursor: im.cursor, host: im.tail})
	if s.extra != nil {
		w.add(command{kind: saveExtra, a: slot, host: im.extra})
	}
}

// Snapshot keeps the state of a sequence that holds a slot. c is its cursor on the device, with no step of it in flight.
// The sequence may go on: before its next step Prepare gives it a block of its own to write. The error is ErrHostMemory.
func (s *States) Snapshot(w *Work, id ID, c kernels.Cursor) (*Snapshot, error) {
	im, err := s.newImage(c, 0, 0)
	if err != nil {
		return nil, err
	}
	snap := &Snapshot{image: im, books: s.books.Share(id, c.Src, int(c.Origin+c.H))}
	slot, _ := s.books.Slot(id)
	s.save(w, slot, &snap.image)
	s.snapshots[snap] = struct{}{}
	return snap, nil
}

// Drop gives a snapshot up. Sequences restored from it go on.
func (s *States) Drop(snap *Snapshot) {
	s.books.Drop(snap.books)
	s.arena.Free(snap.at)
	delete(s.snapshots, snap)
}

// SwapOut copies the whole state of a sequence to host memory and frees its slot, blocks and pages; Prepare brings it
// back bit for bit. c is its cursor on the device, with no step of it in flight. The error is ErrHostMemory; then nothing
// has changed.
func (s *States) SwapOut(w *Work, id ID, c kernels.Cursor) error {
	tokens := int(c.Origin + c.H)
	covered := int64((tokens + s.pageTokens - 1) / s.pageTokens)
	im, err := s.newImage(c, s.ssm.BlockBytes(), covered*s.pageBytes)
	if err != nil {
		return err
	}
	slot, block, pages := s.books.SwapOut(id, c.Src, tokens)
	s.save(w, slot, &im)
	w.add(command{kind: saveBlock, a: block, host: im.block})
	for i, page := range pages {
		w.add(command{kind: savePage, a: page, host: im.page(i, s.pageBytes)})
	}
	s.images[id] = &im
	return nil
}
