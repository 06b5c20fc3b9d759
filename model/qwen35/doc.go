// Package qwen35 is the qwen3_5 family (dense and mixture of experts, Qwen3.5 and Qwen3.6), text only: vision tensors of
// a checkpoint are ignored. Each layer is a mixer, Gated DeltaNet or gated attention, and an MLP.
//
//	x = embed(ids);  for each layer: x += mixer(norm(x)), x += mlp(norm(x));  logits = head(norm(x))
//
// All norms but the one inside Gated DeltaNet store w for a factor 1+w.
//
// Not here: the mathematics of the mixers (ssm, attention, layers, kernels).
package qwen35
