package nemotron

import (
	"reprise/kernels"
	"reprise/layers"
	"reprise/model"
)

// mtp is the multi-token-prediction head, which shares the vocabulary with the model:
//
//	x = project [norm(embed(next)) ; norm(hidden)], then layers of its own, then a norm
type mtp struct {
	model         *Model
	embeddingNorm layers.Norm
	hiddenNorm    layers.Norm
	project       layers.Linear // [hidden, 2*hidden], embedding half first
	layers        []layer
	norm          layers.Norm
	hidden        kernels.Mat // [max tokens, hidden]: the result, which may be the next call's input
}

// Forward pairs hidden[i] with the embedding of next[i] and returns the head's hidden rows, valid until the next call.
func (h *mtp) Forward(o kernels.Ops, b *model.Batch, hidden kernels.Mat, next kernels.Buffer) kernels.Mat {
	s, n := h.model.scratch, h.model.config.hidden
	s.Release(h.model.base)
	x, pair := s.Mat(b.Tokens, n), s.Mat(b.Tokens, 2*n)
	h.model.vocabulary.Embed(o, next, x)
	h.embeddingNorm.Forward(o, x, kernels.Mat{}, pair.ColRange(0, n))
	h.hiddenNorm.Forward(o, hidden, kernels.Mat{}, pair.ColRange(n, n))
	h.project.Forward(o, layers.Ready(pair), x)
	out := h.hidden.RowRange(0, b.Tokens)
	h.model.stack(o, b, h.layers, b.MTPKV, h.norm, x, out)
	return out
}
