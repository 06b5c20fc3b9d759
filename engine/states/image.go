package states

import (
	"reprise/engine/states/internal/ledger"
	"reprise/kernels"
)

// image is what host memory keeps of a sequence: the tail of its slot and Extra, for an unfinished prompt its scratch block,
// and for a swapped-out sequence its pages and, without a scratch block, its state block too. All parts lie in one extent.
type image struct {
	cursor                             kernels.Cursor
	at                                 ledger.Extent
	tail, extra, scratch, block, pages []byte
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

// newImage takes host memory for the state of a sequence with the given cursor and cuts it.
func (s *States) newImage(id ID, c kernels.Cursor, block, pages int64) (image, error) {
	tail, extra, scratch := s.ssm.TailSize(c), int64(0), int64(0)
	if s.extra != nil {
		extra = s.extra.Bytes()
	}
	if s.books.Scratch(id) != 0 {
		scratch = s.ssm.ScratchBytes()
	}
	at, err := s.arena.Alloc(round(tail) + round(extra) + round(scratch) + round(block) + round(pages))
	if err != nil {
		return image{}, err
	}
	rest := s.chunks[at.Chunk][at.Offset : at.Offset+at.Size]
	cut := func(n int64) []byte {
		b := rest[:n:n]
		rest = rest[round(n):]
		return b
	}
	return image{cursor: c, at: at, tail: cut(tail), extra: cut(extra), scratch: cut(scratch), block: cut(block), pages: cut(pages)}, nil
}

// round pads a part of an image, so that copies are aligned.
func round(n int64) int64 { return (n + 63) &^ 63 }

// save records the copies of what every image has.
func (s *States) save(w *Work, slot, scratch int32, im *image) {
	w.add(command{kind: saveTail, a: slot, cursor: im.cursor, host: im.tail})
	if scratch != 0 {
		w.add(command{kind: saveScratch, a: scratch - 1, host: im.scratch})
	}
	if s.extra != nil {
		w.add(command{kind: saveExtra, a: slot, host: im.extra})
	}
}

// Snapshot keeps the state of a sequence that holds a slot. c is its cursor on the device, with no step of it in flight.
// The sequence may go on: before its next step Prepare gives it a block of its own to write. The error is ErrHostMemory.
func (s *States) Snapshot(w *Work, id ID, c kernels.Cursor) (*Snapshot, error) {
	im, err := s.newImage(id, c, 0, 0)
	if err != nil {
		return nil, err
	}
	snap := &Snapshot{image: im, books: s.books.Share(id, c.Src, int(c.Origin+c.H))}
	slot, _ := s.books.Slot(id)
	s.save(w, slot, s.books.Scratch(id), &snap.image)
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
	block := s.ssm.BlockBytes()
	if s.books.Scratch(id) != 0 {
		block = 0 // the last chunk will write it
	}
	im, err := s.newImage(id, c, block, covered*s.pageBytes)
	if err != nil {
		return err
	}
	from := s.books.SwapOut(id, c.Src, tokens)
	s.save(w, from.Slot, from.Scratch, &im)
	if from.Scratch == 0 {
		w.add(command{kind: saveBlock, a: from.Block, host: im.block})
	}
	for i, page := range from.Pages {
		w.add(command{kind: savePage, a: page, host: im.page(i, s.pageBytes)})
	}
	s.images[id] = &im
	return nil
}
