// Package ledger keeps the books of a device's memory: which slot, state block and KV page belongs to whom, and which
// parts of host memory hold images of swapped-out sequences. It is plain arithmetic over ids: it neither knows devices
// nor moves bytes; what must happen on the device is returned as Changes.
//
// Where checkpoints are stored below float32, the state of an unfinished prompt is in a scratch block, so that it is
// rounded once. A sequence holds one from the chunk that does not finish its prompt until the one that does. Sequences
// whose prompt is one chunk never do, unless they began with a state: what is folded then must not be rounded either.
//
// Slot 0, block 0 and page 0 are null and never given out. Blocks and pages are reference counted; everything is either
// free or owned, and Check recounts it all.
//
// Sharing. A snapshot holds a sequence's block and pages by reference. A sequence whose block is shared gets a second
// one reserved before its next step: the device reads src and writes dst, and once it has (Observe), the shared block is
// let go. The page of a snapshot's last token is copied for each sequence restored from it, since all of them go on in it,
// and a multi-token-prediction head writes its entry of that token only when the next one is known. The pages before it
// are never written again and shared as they are; so is the last one with the sequence that filled it.
package ledger
