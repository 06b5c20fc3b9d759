// Package weights is where a model's tensors come from: files in the safetensors format (one, or shards with an
// index), bytes in memory, or made-up numbers for runs that need no checkpoint. It also reads the small files of a
// model folder as they are.
//
// Everything read here may come from strangers: every rule of the format is checked before a tensor is handed out,
// limits are explicit, and what is wrong comes back as one line naming file and tensor.
//
// Not here: which names a model family uses (model/...), what a device makes of a weight (kernels.Device.Pack), the
// meaning of config.json, tokenizer.json or the chat template.
package weights
