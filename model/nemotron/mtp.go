package nemotron

import (
	"reprise/kernels"
	"reprise/layers"
	"reprise/model"
)

// mtp is the multi-token-prediction head: a frame around layers of its own.
type mtp struct {
	layers.DraftFrame
	layers []layer
	reads  int // the last attention layer: behind it each row is on its own
}

// Forward pairs hidden[i] with the embedding of next[i] and returns the head's hidden rows, all or only some, valid until the
// next call.
func (h *mtp) Forward(o kernels.Ops, b *model.Batch, hidden kernels.Mat, next, only kernels.Buffer) kernels.Mat {
	s, r := h.Model.Scratch, h.Begin(o, b, hidden, next)
	for i := range h.layers {
		l := &h.layers[i]
		in := r.Input(o, l.norm)
		if i != h.reads || only.Nil() {
			l.mix(o, s, b, b.MTPKV, in, &r)
			continue
		}
		all := r.X
		r = h.Narrow(only)
		l.attention.AddOnly(o, s, b, b.MTPKV[l.state], in, all, only, r.X)
	}
	return h.End(o, &r)
}
