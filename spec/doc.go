// Package spec proposes tokens that the model then verifies several at a time: drafters (the model's MTP head, look-up of
// repetitions), how deep to draft, and statistics of what was accepted.
//
// A drafter works on the device, behind a step's Commit, and learns only from what was committed. Drafts lie in the slots
// (kernels.Slots.Drafts, DraftCount); whatever they are, the output is that of plain decoding: the sampler draws every
// token of a step by the same rule and the same random number, and Commit keeps the drafts that equal it.
//
// Everything about depth is a pure state machine: durations are handed in, there is no clock here.
//
// Not here: verification (a step row of 1 + drafts tokens), acceptance and stops (kernels.Ops.Commit), who has memory for
// how many drafts (engine/sched, engine/states).
package spec
