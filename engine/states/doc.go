// Package states owns the device memory of sequences: slots, state blocks, KV pages, snapshots, and the host memory of
// swapped-out sequences. Everything a sequence holds is given by one call, Prepare, all or nothing, and comes back by one
// call, Release, whatever state it is in.
//
// Bookkeeping happens at once on the caller's goroutine; the device work that it implies is recorded in a Work, a program
// that the caller submits before the step that needs it. Works are submitted in the order in which they were recorded:
// the stream's order then makes every reuse safe, of slots, blocks, pages and host memory alike.
//
// Where a sequence's state is depends on cursors that the device writes (kernels.Cursors). Methods that take a
// kernels.Cursor want the cursor as the device has it, with no step of that sequence in flight: wait for its steps, then
// read it (ssm.Pool.ReadCursor). The tokens in the state are Origin + H.
//
// Snapshots are never dropped here. On a Shortage the caller first drops those that it can do without, and observes the
// cursors of sequences that share blocks.
//
// Fork is Snapshot, then Prepare with Need.From for each child, then Drop.
//
// Where there are scratch blocks, the state of an unfinished prompt lies in one; which rows use one and how, Staged tells
// behind Prepare. Its image holds the scratch block, so that it too goes on bit for bit.
//
// Not here: who runs when (engine/sched), what lies where inside a block, slot or page (ssm, attention), and per-slot
// memory of the sampler and the engine, which takes part in images by way of Extra.
package states
