package qwen35

import (
	"reprise/kernels"
	"reprise/layers"
	"reprise/model"
)

// mtp is the multi-token-prediction head, which shares the vocabulary with the model:
//
//	x = project [norm(embed(next)) ; norm(hidden)], then one attention layer of its own, then a norm
type mtp struct {
	model         *Model
	embeddingNorm layers.Norm
	hiddenNorm    layers.Norm
	project       layers.Linear // [hidden, 2*hidden], embedding half first
	layer         layer
	norm          layers.Norm
	hidden        kernels.Mat // [max tokens, hidden]: the result, which may be the next call's input
}

// Forward pairs hidden[i] with the embedding of next[i] and returns the head's hidden rows, all or only some, valid until the
// next call.
func (h *mtp) Forward(o kernels.Ops, b *model.Batch, hidden kernels.Mat, next, only kernels.Buffer) kernels.Mat {
	s, n := h.model.scratch, h.model.config.hidden
	s.Release(h.model.base)
	x, pair := s.Mat(b.Tokens, n), s.Mat(b.Tokens, 2*n)
	h.model.vocabulary.Embed(o, next, x)
	h.embeddingNorm.Forward(o, x, kernels.Mat{}, pair.ColRange(0, n))
	h.hiddenNorm.Forward(o, hidden, kernels.Mat{}, pair.ColRange(n, n))
	h.project.Forward(o, layers.Ready(pair), x)
	r := s.Residual(x)
	in := r.Input(o, h.layer.inputNorm)
	if only.Nil() {
		h.layer.attention.Add(o, s, b, b.MTPKV[0], in, x)
	} else {
		r = s.Residual(s.Mat(int(only.Size/4), n))
		h.layer.attention.AddOnly(o, s, b, b.MTPKV[0], in, x, only, r.X)
	}
	h.layer.feed(o, s, &r)
	out := h.hidden.RowRange(0, r.X.Rows)
	r.End(o, h.norm, out)
	return out
}

// measure takes the scratch memory of the largest calls.
func (h *mtp) measure(b *model.Batch) {
	for _, only := range []kernels.Buffer{{}, {Addr: 1, Size: int64(b.Tokens) * 4}} {
		h.Forward(layers.Discard{}, b, h.model.hidden, kernels.Buffer{}, only)
	}
}
