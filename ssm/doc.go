// Package ssm holds the recurrent mixers (Mamba-2 and Gated DeltaNet) and the pool of their state under ReplaySSM.
//
// Here live the Pool (checkpoint blocks, rings, cursors: one layout for the allocator, the memory plan and the
// kernels), and the mixers: an input projection, the fused step / fold + scan operations, an output projection.
//
// Not here: the mathematics (kernels, models.md 1.c and 2.c), the cursor rule (kernels.Cursor), who owns which slot
// or block and when they are shared (engine/states), and the names of layers (model/...).
//
// State of a sequence with slot s and, of every SSM layer l:
//
//	checkpoint block         [layer][HP, LP] as kernels.CheckpointLayout says, each [Heads, HeadDim, State] (Mamba-2)
//	                         or [ValueHeads, ValueDim, KeyDim] (GDN); LP only with two precisions
//	ring of slot s           [layer][X, B, Decay, Conv, V, Beta] as kernels.RingLayout says
//	scratch block      f32   [layer][...] of a prefill that has not ended, where HP is below float32
//	cursor of slot s   i32   Origin, H, Src, Dst, shared by all layers
//
// The committed tokens number Origin+H: Origin of them are in block Src, H are records in the rings. Token i of a
// sequence lies at i mod the capacity of each ring, so a rejected draft is overwritten by the next step and a
// rollback is a cursor that does not move.
package ssm
