// Package layers is what model families are built from: a weight, its shape, and a call into kernels. Here live the
// Loader (tensors of a checkpoint -> device memory, or a list of what would be read), Linear, Norm, Embedding, MLP, MoE
// and Scratch (activation memory in stack order).
//
// Not here: mixers with state (ssm, attention), names of tensors and the order of layers (model/...), mathematics
// (kernels).
//
// Convention: a layer's Forward reads x [tokens, in] and overwrites y [tokens, out]; it takes what it needs in between
// from Scratch and gives it back. It never adds to the residual stream: the next norm does that.
package layers
