// Package nemotron is the nemotron_h family: NVIDIA Nemotron-H and Nemotron-3. Each layer has one mixer: Mamba-2 (M),
// attention without positions (*), a mixture of experts (E) or a dense MLP (-).
//
//	x = embed(ids);  for each layer: x += mixer(norm(x));  logits = head(norm_f(x))
//
// Not here: the mathematics of the mixers (ssm, attention, layers, kernels).
package nemotron
