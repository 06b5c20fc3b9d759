// Package ledger keeps the books of a device's memory: which slot, state block and KV page belongs to whom, and which
// parts of host memory hold images of swapped-out sequences. It is plain arithmetic over ids: it neither knows devices
// nor moves bytes; what must happen on the device is returned as Changes.
//
// Slot 0, block 0 and page 0 are null and never given out. Blocks and pages are reference counted; everything is either
// free or owned, and Check recounts it all.
//
// Sharing. A snapshot holds a sequence's block and pages by reference. A sequence whose block is shared gets a second
// one reserved before its next step: the device reads src and writes dst, and once it has (Observe), the shared block is
// let go. Pages below a snapshot's last token are never written again by the sequence that filled them, so they are
// shared as they are; the last, partly filled page is copied for each sequence restored from the snapshot, since two
// sequences would go on in it.
package ledger
