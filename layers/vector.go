package layers

import (
	"encoding/binary"
	"fmt"
	"math"

	"reprise/kernels"
	"reprise/model"
)

// Kind says what a small tensor is: how made-up checkpoints store and fill it, and what is done to it when it is read.
type Kind uint8

// Kinds of vectors. All are read from any float dtype and kept as f32.
const (
	Plain    Kind = iota // as stored: norm weights, D
	PlainF32             // the same, F32 in releases
	OnePlus              // 1 + w: norms that store w
	Bias                 // as stored
	BiasF32              // as stored, F32 in releases
	NegExp               // -exp(w), F32 in releases: A_log
	DtBias               // as stored
	Conv                 // as stored: taps of a depthwise convolution [channels, 1, taps]
)

var kinds = [...]struct {
	dtype kernels.DType
	init  model.Init
	apply func(float64) float64
}{
	Plain:    {kernels.BF16, model.InitOne, nil},
	PlainF32: {kernels.F32, model.InitOne, nil},
	OnePlus:  {kernels.BF16, model.InitZero, func(w float64) float64 { return 1 + w }},
	Bias:     {kernels.BF16, model.InitZero, nil},
	BiasF32:  {kernels.F32, model.InitZero, nil},
	NegExp:   {kernels.F32, model.InitALog, func(w float64) float64 { return -math.Exp(w) }},
	DtBias:   {kernels.BF16, model.InitDtBias, nil},
	Conv:     {kernels.BF16, model.InitConv, nil},
}

// Vector reads a small tensor of the given shape as f32, row-major, prepared as its kind says. Infinities and NaN are
// errors: every later result would be NaN.
func (l *Loader) Vector(name string, k Kind, shape ...int) kernels.Buffer {
	values := l.values(name, k, shape...)
	if values == nil {
		return kernels.Buffer{}
	}
	return l.upload(name, values)
}

// ScaledNorm is Vector with a further factor for each element, or nil for none.
func (l *Loader) ScaledNorm(name string, k Kind, n int, factors []float64) kernels.Buffer {
	values := l.values(name, k, n)
	if values == nil {
		return kernels.Buffer{}
	}
	for i, f := range factors {
		values[i] = float32(float64(values[i]) * f)
	}
	return l.upload(name, values)
}

// values is nil after an error and while recording.
func (l *Loader) values(name string, k Kind, shape ...int) []float32 {
	t, ok := l.tensor(name, kinds[k].dtype, kinds[k].init, shape...)
	if !ok {
		return nil
	}
	values, err := floats(t)
	if err != nil {
		l.Fail(err)
		return nil
	}
	if f := kinds[k].apply; f != nil {
		for i, v := range values {
			values[i] = float32(f(float64(v)))
		}
	}
	return values
}

// Scalar reads a number stored as a tensor of one element, shape [] or [1].
func (l *Loader) Scalar(name string) float32 {
	if l.err != nil || l.record {
		return 0
	}
	t, err := l.src.Get(name)
	if err != nil {
		t, err = l.src.Get(name, 1)
	}
	if err != nil {
		l.Fail(err)
		return 0
	}
	v, err := floats(t)
	if err == nil && len(v) != 1 {
		err = fmt.Errorf("tensor %s: %d numbers, want one", name, len(v))
	}
	if err != nil {
		l.Fail(err)
		return 0
	}
	return v[0]
}

// Constant is f32 device memory with the given values, for tables that no checkpoint holds.
func (l *Loader) Constant(name string, values []float32) kernels.Buffer {
	if l.err != nil || l.record {
		return kernels.Buffer{}
	}
	return l.upload(name, values)
}

func (l *Loader) upload(name string, values []float32) kernels.Buffer {
	data := make([]byte, 4*len(values))
	for i, v := range values {
		binary.LittleEndian.PutUint32(data[4*i:], math.Float32bits(v))
	}
	b, err := l.dev.Alloc(int64(len(data)))
	if err != nil {
		l.Fail(fmt.Errorf("%s: %w", name, err))
		return kernels.Buffer{}
	}
	l.dev.Submit(kernels.ProgramFunc(func(o kernels.Ops) { o.Upload(b, data) }))
	if err := l.dev.Wait(l.dev.Mark()); err != nil {
		l.Fail(fmt.Errorf("%s: %w", name, err))
		return kernels.Buffer{}
	}
	l.bytes += b.Size
	return b
}

// floats widens a tensor of any float dtype.
func floats(t kernels.HostTensor) ([]float32, error) {
	size := t.DType.Size()
	if !t.DType.Float() || len(t.Data) != t.Elements()*size {
		return nil, fmt.Errorf("tensor %s: %d bytes of %v are not %d numbers", t.Name, len(t.Data), t.DType, t.Elements())
	}
	out := make([]float32, t.Elements())
	for i := range out {
		v := widen(t.DType, t.Data[i*size:])
		if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
			return nil, fmt.Errorf("tensor %s: element %d is %v", t.Name, i, v)
		}
		out[i] = v
	}
	return out, nil
}

func widen(d kernels.DType, b []byte) float32 {
	switch d {
	case kernels.F32:
		return math.Float32frombits(binary.LittleEndian.Uint32(b))
	case kernels.F16:
		return kernels.F16ToF32(binary.LittleEndian.Uint16(b))
	case kernels.BF16:
		return kernels.BF16ToF32(binary.LittleEndian.Uint16(b))
	case kernels.F8E4M3:
		return kernels.F8E4M3ToF32(b[0])
	}
	return kernels.F8E5M2ToF32(b[0])
}
