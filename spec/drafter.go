package spec

import (
	"reprise/kernels"
	"reprise/model"
)

// Step is a step behind its Commit, as a drafter sees it. R = Step.Count + Prefill.Count rows, step rows first.
type Step struct {
	kernels.Committed
	Batch     *model.Batch   // the rows again, with their tokens
	Hidden    kernels.Mat    // the model's final-normed rows [Batch.Tokens, hidden]
	Following kernels.Buffer // i32 [Prefill.Count] the prompt token behind a chunk that is not the last, else -1
	Slot      kernels.Buffer // i32 [R]
	Depth     int            // largest Want
}

// Drafter proposes tokens. Draft, Open, Save and Load run inside programs, in stream order.
type Drafter interface {
	// Draft writes up to Want drafts a row to the slots. Rows that it does not serve keep DraftCount 0.
	Draft(o kernels.Ops, s *Step)
	// Open prepares a slot for a sequence of which known tokens are in the state and one more is known, or none is. With
	// loaded the drafter's own memory of the slot was restored by Load.
	Open(o kernels.Ops, slot int, known []int32, loaded bool)
	// Follows reports whether Draft must see every step of a sequence that drafts, at depth 0 too; prefill rows it
	// always must see.
	Follows() bool
	// Lookahead is the tokens behind the committed ones for which drafts of a depth need KV pages.
	Lookahead(depth int) int

	// SlotBytes is what Save copies of a slot to host memory and Load brings back.
	SlotBytes() int64
	Save(o kernels.Ops, slot int, dst []byte)
	Load(o kernels.Ops, slot int, src []byte)
}

// Method names a drafter.
type Method string

// Drafting methods.
const (
	MTPHead Method = "mtp"
	NGram   Method = "ngram"
)
