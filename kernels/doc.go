// Package kernels is the contract between the engine and the machine it runs on.
//
// Here live: Device (memory, programs, weights), Ops (the fused operations a model is written in) with one
// parameter struct an operation and its Validate, the layouts that more than one device must agree on
// (replay rings, KV pages, slot tables), the cursor rule of ReplaySSM and the counter-based random numbers.
//
// Not here: any implementation (kernels/ref is the float64 oracle, kernels/cpu the CPU device), what owns the
// memory (ssm, attention, engine/states), and the order of operations in a model (model/...).
//
// Conventions. Matrices are row-major; a "token" is a row of an activation matrix. A "row" of a batch is one
// sequence's share of a step: 1..T tokens of a step row, or a chunk of a prefill row. Slot 0, state block 0 and
// KV page 0 are null: nothing is ever stored there that a live sequence reads, so zeroed tables are harmless.
package kernels
