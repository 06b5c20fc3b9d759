// Package layers is what model families are built from: a weight, its shape, and a call into kernels. Here live the
// Loader (tensors of a checkpoint -> device memory, or a list of what would be read), Linear, Norm, Vocabulary, MLP, MoE,
// Scratch (activation memory in stack order), and the Frame around a model's layers with the Residual stream through them.
//
// Not here: mixers with state (ssm, attention), names of tensors and the order of layers (model/...), mathematics
// (kernels).
//
// Convention: Forward reads x [tokens, in] and overwrites y [tokens, out]; Add adds to y, which is mostly the residual
// stream. Both take what they need in between from Scratch and give it back.
package layers
