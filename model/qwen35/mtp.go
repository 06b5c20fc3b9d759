package qwen35

import (
	"reprise/kernels"
	"reprise/layers"
	"reprise/model"
)

// mtp is the multi-token-prediction head: a frame around one attention layer of its own.
type mtp struct {
	layers.DraftFrame
	layer layer
}

// Forward pairs hidden[i] with the embedding of next[i] and returns the head's hidden rows, all or only some, valid until the
// next call.
func (h *mtp) Forward(o kernels.Ops, b *model.Batch, hidden kernels.Mat, next, only kernels.Buffer) kernels.Mat {
	s, r := h.Model.Scratch, h.Begin(o, b, hidden, next)
	in := r.Input(o, h.layer.inputNorm)
	if only.Nil() {
		h.layer.attention.Add(o, s, b, b.MTPKV[0], in, r.X)
	} else {
		all := r.X
		r = h.Narrow(only)
		h.layer.attention.AddOnly(o, s, b, b.MTPKV[0], in, all, only, r.X)
	}
	h.layer.feed(o, s, &r)
	return h.End(o, &r)
}
