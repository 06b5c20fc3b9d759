package layers

import (
	"reprise/kernels"
	"reprise/model"
)

// Frame is what a model of any family has around its layers: the vocabulary, the residual stream and the norm that ends
// it, activation memory, and the rows that outlive a pass. A family embeds it and runs its layers between Begin and End.
type Frame struct {
	Width      int // of a hidden row
	Vocabulary Vocabulary
	Norm       Norm      // behind the last layer
	Head       model.MTP // or nil; it has a DraftFrame
	Scratch    *Scratch

	hidden  kernels.Mat // [max tokens, Width]: the result of a pass
	drafted kernels.Mat // as hidden, of the head: it may be the head's next input
	base    int64       // depth of the scratch memory above what outlives a pass
	bytes   int64       // of all weights
}

// Begin starts a pass: the stream of the embedded rows of a batch.
func (f *Frame) Begin(o kernels.Ops, b *model.Batch) Residual {
	f.Scratch.Release(f.base)
	x := f.Scratch.Mat(b.Tokens, f.Width)
	f.Vocabulary.Embed(o, b.IDs, x)
	return f.Scratch.Residual(x)
}

// End is the normed rows of the stream, valid until the next Begin.
func (f *Frame) End(o kernels.Ops, r *Residual) kernels.Mat {
	out := f.hidden.RowRange(0, r.X.Rows)
	r.End(o, f.Norm, out)
	return out
}

// Logits multiplies hidden rows by the head of the vocabulary.
func (f *Frame) Logits(o kernels.Ops, hidden, out kernels.Mat) { f.Vocabulary.Logits(o, hidden, out) }

// Top is the head of the first tokens.
func (f *Frame) Top(tokens int) model.Head { return f.Vocabulary.Top(tokens) }

// MTP is the drafting head, or nil.
func (f *Frame) MTP() model.MTP { return f.Head }

// WeightBytes is the device memory of all weights.
func (f *Frame) WeightBytes() int64 { return f.bytes }

// DraftFrame is what an MTP head has around its layers:
//
//	x = Project [norm(embed(next)) ; norm(hidden)], then the layers, then Norm
type DraftFrame struct {
	Model         *Frame // whose vocabulary and memory the head shares
	EmbeddingNorm Norm
	HiddenNorm    Norm
	Project       Linear // [Width, 2*Width], embedding half first
	Norm          Norm
}

// Begin starts a pass: the stream of the pairs of hidden[i] and the embedding of next[i].
func (d *DraftFrame) Begin(o kernels.Ops, b *model.Batch, hidden kernels.Mat, next kernels.Buffer) Residual {
	s, n := d.Model.Scratch, d.Model.Width
	s.Release(d.Model.base)
	x, pair := s.Mat(b.Tokens, n), s.Mat(b.Tokens, 2*n)
	d.Model.Vocabulary.Embed(o, next, x)
	d.EmbeddingNorm.Forward(o, x, kernels.Mat{}, pair.ColRange(0, n))
	d.HiddenNorm.Forward(o, hidden, kernels.Mat{}, pair.ColRange(n, n))
	d.Project.Forward(o, Ready(pair), x)
	return s.Residual(x)
}

// Narrow is a stream for the rows only, i32 [n], of another; a layer has to fill it.
func (d *DraftFrame) Narrow(only kernels.Buffer) Residual {
	return d.Model.Scratch.Residual(d.Model.Scratch.Mat(int(only.Size/4), d.Model.Width))
}

// End is the normed rows of the stream, valid until the head's next End.
func (d *DraftFrame) End(o kernels.Ops, r *Residual) kernels.Mat {
	out := d.Model.drafted.RowRange(0, r.X.Rows)
	r.End(o, d.Norm, out)
	return out
}

// Finish ends the loading of m, the frame's model, from l, whose device has no more weights to pack: it takes the activation
// memory of batches of up to maxTokens tokens. The error may be the one that l met.
func (f *Frame) Finish(m model.Model, l *Loader, s model.Spec, maxTokens int) error {
	if l.err != nil {
		return l.err
	}
	if err := l.dev.Packed(); err != nil {
		return err
	}
	f.bytes = l.bytes
	f.measure(m, s, l.dev.Activations(), maxTokens)
	if err := f.Scratch.Alloc(l.dev); err != nil {
		return err
	}
	f.keep(maxTokens)
	return nil
}

// ActivationBytes is the memory that Finish takes on a device whose activations are of type act.
func (f *Frame) ActivationBytes(m model.Model, s model.Spec, act kernels.DType, maxTokens int) int64 {
	f.measure(m, s, act, maxTokens)
	return f.Scratch.Bytes()
}

// measure finds out the activation memory of the largest batch by having m run it, and the head with all and with some of its
// rows, against operations that do nothing.
func (f *Frame) measure(m model.Model, s model.Spec, act kernels.DType, maxTokens int) {
	f.Scratch = NewScratch(act)
	f.keep(maxTokens)
	b := largestBatch(maxTokens, s)
	hidden := m.Forward(Discard{}, b)
	if f.Head == nil {
		return
	}
	for _, only := range []kernels.Buffer{{}, {Addr: 1, Size: int64(b.Tokens) * 4}} {
		f.Head.Forward(Discard{}, b, hidden, kernels.Buffer{}, only)
	}
}

// largestBatch is a batch of the given tokens to measure with: one step row and one prefill row, state without memory.
func largestBatch(tokens int, s model.Spec) *model.Batch {
	b := &model.Batch{
		Tokens:  tokens,
		Step:    kernels.Rows{Count: 1},
		Prefill: kernels.Rows{Count: 1},
		SSM:     make([]kernels.State, s.Mamba2Layers+s.DeltaLayers),
		KV:      make([]kernels.KV, s.AttentionLayers),
	}
	if s.MTP != nil {
		b.MTPKV = make([]kernels.KV, s.MTP.AttentionLayers)
	}
	return b
}

// keep takes the matrices that outlive a pass from the bottom of the scratch memory.
func (f *Frame) keep(maxTokens int) {
	f.hidden = f.Scratch.Mat(maxTokens, f.Width)
	if f.Head != nil {
		f.drafted = f.Scratch.Mat(maxTokens, f.Width)
	}
	f.base = f.Scratch.Mark()
}
