//go:build cuda

package cuda

import (
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

func (d *Device) pack(s kernels.WeightSpec) (*weight, error) {
	w, groups, err := plan(s)
	if err != nil {
		return nil, err
	}
	if w.buf, err = d.memory.alloc(int64(w.experts) * int64(w.rows) * w.stride); err != nil {
		return nil, err
	}
	var list []piece
	from := 0
	for _, group := range groups {
		for e, t := range group {
			at := w.buf.Addr + uintptr(int64(e*w.rows+from)*w.stride)
			list = pieces(list, at, w.stride, t.Data, t.Shape[0])
		}
		from += group[0].Shape[0]
	}
	return w, d.packer.copy(list)
}

// plan checks the tensors and returns the [rows, cols] tensors by part and expert.
func plan(s kernels.WeightSpec) (*weight, [][]kernels.HostTensor, error) {
	if s.Format != kernels.Dense {
		return nil, nil, fmt.Errorf("format %d: %w", s.Format, kernels.ErrUnsupported)
	}
	if len(s.Parts) == 0 || s.Experts < 0 {
		return nil, nil, fmt.Errorf("%d parts, %d experts", len(s.Parts), s.Experts)
	}
	w := &weight{experts: max(1, s.Experts), dtype: s.Parts[0].DType}
	if !w.dtype.Float() {
		return nil, nil, fmt.Errorf("dtype %s: %w", w.dtype, kernels.ErrUnsupported)
	}
	groups, err := split(s)
	if err != nil {
		return nil, nil, err
	}
	for _, group := range groups {
		for _, t := range group {
			if err := w.check(t, group[0]); err != nil {
				return nil, nil, err
			}
		}
		w.rows += group[0].Shape[0]
	}
	size := int64(w.cols * w.dtype.Size())
	w.stride = (size + rowAlign - 1) / rowAlign * rowAlign
	if w.stride > pieceBytes {
		return nil, nil, fmt.Errorf("rows of %d columns: %w", w.cols, kernels.ErrUnsupported)
	}
	return w, groups, nil
}

// split sorts the tensors by part and expert.
func split(s kernels.WeightSpec) ([][]kernels.HostTensor, error) {
	var groups [][]kernels.HostTensor
	for left := s.Parts; len(left) > 0; {
		switch t := left[0]; {
		case s.Experts == 0:
			groups, left = append(groups, left[:1]), left[1:]
		case len(t.Shape) == 3:
			group, err := cut(t, s.Experts)
			if err != nil {
				return nil, err
			}
			groups, left = append(groups, group), left[1:]
		case len(left) < s.Experts:
			return nil, fmt.Errorf("tensor %s: %d tensors left for %d experts", t.Name, len(left), s.Experts)
		default:
			groups, left = append(groups, left[:s.Experts]), left[s.Experts:]
		}
	}
	return groups, nil
}

// cut makes matrices of an [experts, rows, cols] tensor.
func cut(t kernels.HostTensor, experts int) ([]kernels.HostTensor, error) {
	if t.Shape[0] != experts || len(t.Data)%experts != 0 {
		return nil, fmt.Errorf("tensor %s: shape %v for %d experts", t.Name, t.Shape, experts)
	}
	group, size := make([]kernels.HostTensor, experts), len(t.Data)/experts
	for e := range group {
		group[e] = kernels.HostTensor{Name: t.Name, DType: t.DType, Shape: t.Shape[1:], Data: t.Data[e*size : (e+1)*size]}
	}
	return group, nil
}

func (w *weight) check(t, first kernels.HostTensor) error {
	switch {
	case t.DType != w.dtype:
		return fmt.Errorf("tensor %s is %s, others %s", t.Name, t.DType, w.dtype)
	case len(t.Shape) != 2 || t.Shape[0] <= 0 || t.Shape[1] <= 0:
		return fmt.Errorf("tensor %s: shape %v is not [rows, cols]", t.Name, t.Shape)
	case w.cols != 0 && t.Shape[1] != w.cols:
		return fmt.Errorf("tensor %s: %d columns, others %d", t.Name, t.Shape[1], w.cols)
	case t.Shape[0] != first.Shape[0]:
		return fmt.Errorf("tensor %s: %d rows, expert 0 %d", t.Name, t.Shape[0], first.Shape[0])
	case len(t.Data) != t.Elements()*w.dtype.Size():
		return fmt.Errorf("tensor %s: %d bytes for shape %v of %s", t.Name, len(t.Data), t.Shape, t.DType)
	}
	w.cols = t.Shape[1]
	return nil
}
