//go:build cuda

package cuda

import (
	"errors"
	"fmt"
	"runtime"

	"reprise/kernels"
)

// rowAlign is what rows of weights are padded to with zeros, bytes.
const rowAlign = 128

// weight is one matrix, or experts matrices of equal shape one behind the other: element (r, c) of expert e is at byte
// (e*rows + r)*stride + c*size of buf.
type weight struct {
	experts, rows, cols int
	dtype               kernels.DType
	stride              int64
	buf                 kernels.Buffer
}

func (w *weight) Shape() (experts, rows, cols int) { return w.experts, w.rows, w.cols }
func (w *weight) DType() kernels.DType             { return w.dtype }
func (w *weight) Bytes() int64                     { return w.buf.Size }

// Top is the same memory, read less far.
func (w *weight) Top(rows int) kernels.Weight {
	if w.experts != 1 || rows < 1 || rows > w.rows {
		panic(fmt.Sprintf("cuda: the first %d rows of a weight of %d x %d", rows, w.experts, w.rows))
	}
	top := *w
	top.rows, top.buf = rows, w.buf.Slice(0, int64(rows)*w.stride)
	return &top
}

func own(w kernels.Weight) *weight {
	p, ok := w.(*weight)
	if !ok {
		panic(fmt.Sprintf("cuda: weight of another device: %T", w))
	}
	return p
}

// Pack copies the tensors to the device, through pinned memory of fixed size. It has read them when it returns.
func (d *Device) Pack(s kernels.WeightSpec) (kernels.Weight, error) {
	d.use()
	defer runtime.UnlockOSThread()
	w, err := d.pack(s)
	if err != nil {
		return nil, fmt.Errorf("cuda: weight %s: %w", s.Name, err)
	}
	return w, nil
}

// Packed waits for the copies and frees the pinned memory that they went through.
func (d *Device) Packed() error {
	d.use()
	defer runtime.UnlockOSThread()
	if err := errors.Join(d.stream.Synchronize(), d.packer.close()); err != nil {
		return fmt.Errorf("cuda: after packing weights: %w", err)
	}
	return nil
}

func (d *Device) pack(s kernels.WeightSpec) (*weight, error) {
	m, err := s.Matrices()
	if err != nil {
		return nil, err
	}
	w, err := layOut(m)
	if err != nil {
		return nil, err
	}
	if w.buf, err = d.memory.alloc(int64(w.experts) * int64(w.rows) * w.stride); err != nil {
		return nil, err
	}
	if err := d.packer.copy(w.pieces(m.Parts)); err != nil {
		return nil, errors.Join(err, d.memory.free(w.buf))
	}
	return w, nil
}

// layOut is a weight without memory.
func layOut(m kernels.Matrices) (*weight, error) {
	size := int64(m.Cols * m.DType.Size())
	stride := (size + rowAlign - 1) / rowAlign * rowAlign
	if stride > pieceBytes {
		return nil, fmt.Errorf("rows of %d columns: %w", m.Cols, kernels.ErrUnsupported)
	}
	return &weight{experts: m.Experts, rows: m.Rows, cols: m.Cols, dtype: m.DType, stride: stride}, nil
}

// pieces cuts the tensors, by part and expert, for their places in the weight.
func (w *weight) pieces(parts [][]kernels.HostTensor) []piece {
	var list []piece
	from := 0
	for _, part := range parts {
		for e, t := range part {
			at := w.buf.Addr + uintptr(int64(e*w.rows+from)*w.stride)
			list = pieces(list, at, w.stride, t.Data, t.Shape[0])
		}
		from += part[0].Shape[0]
	}
	return list
}
