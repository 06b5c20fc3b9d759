package layers

import (
	"fmt"

	"reprise/kernels"
)

// Scratch is activation memory, handed out in stack order: what a layer takes it releases when it is done, so that
// all layers share the same bytes. Without memory it only measures: run the largest step against Discard, then Alloc
// and take again what shall stay.
type Scratch struct {
	act        kernels.DType
	buf        kernels.Buffer
	used, peak int64
}

// NewScratch measures for activations of type act.
func NewScratch(act kernels.DType) *Scratch { return &Scratch{act: act} }

// Alloc takes the memory that was measured; what was handed out before is void.
func (s *Scratch) Alloc(dev kernels.Device) error {
	b, err := dev.Alloc(max(s.peak, 1))
	if err != nil {
		return fmt.Errorf("activations: %w", err)
	}
	s.buf, s.used = b, 0
	return nil
}

// Bytes is the memory in use at the deepest point so far.
func (s *Scratch) Bytes() int64 { return s.peak }

// Mark is the current depth, for Release.
func (s *Scratch) Mark() int64 { return s.used }

// Release gives everything back that was taken since the mark.
func (s *Scratch) Release(mark int64) { s.used = mark }

// Mat is a dense matrix of activations; its contents are undefined.
func (s *Scratch) Mat(rows, cols int) kernels.Mat {
	return kernels.NewMat(s.Buffer(int64(rows)*int64(cols)*int64(s.act.Size())), s.act, rows, cols)
}

// MatF32 is a dense f32 matrix.
func (s *Scratch) MatF32(rows, cols int) kernels.Mat {
	return kernels.NewMat(s.Buffer(int64(rows)*int64(cols)*4), kernels.F32, rows, cols)
}

// Buffer is uninitialised memory, 256-byte aligned.
func (s *Scratch) Buffer(bytes int64) kernels.Buffer {
	from := s.used
	s.used += (bytes + 255) &^ 255
	s.peak = max(s.peak, s.used)
	if s.buf.Nil() {
		return kernels.Buffer{Addr: uintptr(from), Size: bytes}
	}
	return s.buf.Slice(from, bytes)
}
