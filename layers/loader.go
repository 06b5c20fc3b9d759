package layers

import (
	"errors"
	"fmt"
	"strings"

	"reprise/kernels"
	"reprise/model"
)

// Loader reads the tensors of one checkpoint onto one device. Its first error sticks: later calls do nothing and
// return zero values, so that a family reads straight down and asks Err once. A recording Loader reads nothing and
// lists what would be read (Specs): the names and shapes of a family are written in one place.
type Loader struct {
	dev    kernels.Device
	src    model.Tensors
	err    error
	bytes  int64
	record bool
	specs  []model.TensorSpec
}

// NewLoader reads from src onto dev.
func NewLoader(dev kernels.Device, src model.Tensors) *Loader { return &Loader{dev: dev, src: src} }

// NewRecorder lists tensors; where a checkpoint may have one of several forms, the release's form is listed.
func NewRecorder() *Loader { return &Loader{record: true} }

// Err is the first error.
func (l *Loader) Err() error { return l.err }

// Fail makes err the loader's error unless there is one already.
func (l *Loader) Fail(err error) {
	if l.err == nil {
		l.err = err
	}
}

// Bytes is the device memory of everything read so far.
func (l *Loader) Bytes() int64 { return l.bytes }

// Specs is what a recording loader was asked for.
func (l *Loader) Specs() []model.TensorSpec { return l.specs }

// Has reports whether the checkpoint has the tensor; a recording loader has none.
func (l *Loader) Has(name string) bool { return !l.record && l.src.Has(name) }

// Recording reports whether the loader lists instead of reading.
func (l *Loader) Recording() bool { return l.record }

// Prefix is the first of the prefixes under which the checkpoint has the tensor, or prefixes[0].
func (l *Loader) Prefix(tensor string, prefixes ...string) string {
	for _, p := range prefixes {
		if l.Has(p + tensor) {
			return p
		}
	}
	return prefixes[0]
}

// tensor reads one tensor; ok is false after an error and while recording.
func (l *Loader) tensor(name string, d kernels.DType, init model.Init, shape ...int) (t kernels.HostTensor, ok bool) {
	if l.err != nil {
		return t, false
	}
	if l.record {
		l.specs = append(l.specs, model.TensorSpec{Name: name, Shape: shape, DType: d, Init: init})
		return t, false
	}
	if err := l.quantised(name); err != nil {
		l.err = err
		return t, false
	}
	t, err := l.src.Get(name, shape...)
	if err == nil && !t.DType.Float() {
		err = fmt.Errorf("tensor %s: %v is not a floating-point type", name, t.DType)
	}
	l.Fail(err)
	return t, err == nil
}

// ErrQuantised is wrapped when a tensor is stored in a quantised format.
var ErrQuantised = errors.New("this quantised format is not supported yet")

// Companions of a quantised matrix, and the format they belong to; the first that is there decides. The matrix X.weight
// of one layer has X + suffix; stacked experts, which have no .weight, have the suffixes without it.
var formats = []struct{ suffix, format string }{
	{".weight_scale_2", "NVFP4"},
	{".weight_global_scale", "compressed-tensors NVFP4"},
	{".weight_packed", "compressed-tensors"},
	{".weight_scale_inv", "block FP8"},
	{".weight_scale", "FP8"},
	{".qweight", "GPTQ or AWQ"},
	{".scales", "MLX"},
	{"_blocks", "MXFP4"},
	{"_weight_scale", "NVFP4 or FP8"},
	{"_scale_2", "NVFP4"},
	{"_scale_inv", "block FP8"},
	{"_scale", "FP8"},
}

// quantised names the format of a matrix that is not stored as plain numbers.
func (l *Loader) quantised(name string) error {
	base := strings.TrimSuffix(name, ".weight")
	for _, f := range formats {
		if l.src.Has(base + f.suffix) {
			return fmt.Errorf("tensor %s is stored as %s: %w", name, f.format, ErrQuantised)
		}
	}
	return nil
}
