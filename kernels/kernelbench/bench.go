// Package kernelbench is the one table of timings for every device: each hot operation at the shapes that matter, with
// the bytes it must move, the arithmetic it must do, the floor that follows from the device's own measured rates, and
// the ratio of the measured time to it. It refuses to time a device whose conformance suite has not passed (the caller
// hands that verdict in). Not here: correctness (kernels/kerneltest), whole steps (cmd/bench engine).
package kernelbench

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
	"unsafe"

	"reprise/kernels"
)

// Rates are what a device reached in the same run.
type Rates struct {
	Read  float64 // bytes a second of the streaming kernel that floors are counted by
	Flops float64 // floating-point operations a second (a multiply-add is two)
}

// Prober measures its own rates.
type Prober interface {
	// MeasuredRates streams over at least 1 GB and multiplies for a while: bytes and floating-point operations a second.
	MeasuredRates() (read, flops float64, err error)
}

// Meter is a device that knows how long it was busy.
type Meter interface {
	// Meter starts or stops counting, from any goroutine.
	Meter(on bool) error
	// Busy waits for the device and returns the sum of the times that programs took since counting began.
	Busy() (time.Duration, error)
}

// Row is one line of the table. Times are medians.
type Row struct {
	Op    string  `json:"op"`
	Shape string  `json:"shape"`
	Micro float64 `json:"us"`
	Bytes float64 `json:"bytes"` // inputs read once, outputs written once
	Flops float64 `json:"flops"`
	Floor float64 `json:"floor_us"` // max(Bytes/Read, Flops/rate)
	Ratio float64 `json:"ratio"`    // Micro / Floor
}

// Case is an operation at a shape. Run enqueues it once for each of Sets sets of inputs, which rotate so that every
// launch finds its large inputs cold.
type Case struct {
	Op, Shape    string
	Bytes, Flops float64 // of one launch
	Sets         int
	Run          func(o kernels.Ops, set int)
}

// Options choose what is timed.
type Options struct {
	Match   func(op, shape string) bool // nil = everything
	Repeats int                         // replays, of which the median counts; 0 = 5
	Small   bool                        // smallest shapes only: a check that the table runs
}

// Any reports whether a case of the table is chosen; a device may still be without its operation.
func (o Options) Any() bool {
	return slices.ContainsFunc(groups, func(group func(bool) []maker) bool { return slices.ContainsFunc(group(o.Small), o.takes) })
}

func (o Options) takes(m maker) bool { return o.Match == nil || o.Match(m.op, m.shape) }

// Run times the table and hands out each row as it is known.
func Run(dev kernels.Device, rates Rates, o Options, emit func(Row)) error {
	if o.Repeats == 0 {
		o.Repeats = 5
	}
	for _, group := range groups {
		for _, make := range group(o.Small) {
			if !o.takes(make) {
				continue
			}
			row, err := timeOne(dev, make, rates, o.Repeats)
			if errors.Is(err, kernels.ErrUnsupported) {
				continue
			}
			if err != nil {
				return fmt.Errorf("%s %s: %w", make.op, make.shape, err)
			}
			emit(row)
		}
	}
	return nil
}

// maker makes a case when its turn comes, so that only one case's memory exists at a time.
type maker struct {
	op, shape string
	build     func(*lab) Case
}

var groups = []func(small bool) []maker{denseCases, ssmCases, attentionCases, moeCases, sampleCases}

func timeOne(dev kernels.Device, m maker, rates Rates, repeats int) (row Row, err error) {
	l := newLab(dev)
	defer l.free()
	c := m.build(l)
	times, err := l.replays(c, repeats)
	if err != nil {
		return row, err
	}
	seconds := times[len(times)/2]
	floor := max(c.Bytes/rates.Read, c.Flops/rates.Flops)
	return Row{m.op, m.shape, seconds * 1e6, c.Bytes, c.Flops, floor * 1e6, seconds / floor}, nil
}

// replays are the seconds of one launch of c, in increasing order, each from a replay of all sets.
func (l *lab) replays(c Case, repeats int) ([]float64, error) {
	graph, err := l.capture(c, 0, c.Sets)
	if err != nil {
		return nil, err
	}
	times := make([]float64, 0, repeats)
	for i := range repeats + 1 { // the first warms up
		seconds, err := l.replay(graph)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			times = append(times, seconds/float64(c.Sets))
		}
	}
	slices.Sort(times)
	return times, nil
}

// capture prepares sets from..to-1 of a case.
func (l *lab) capture(c Case, from, to int) (kernels.Graph, error) {
	if l.err != nil {
		return nil, l.err
	}
	return l.dev.Capture(kernels.ProgramFunc(func(o kernels.Ops) {
		for set := from; set < to; set++ {
			c.Run(o, set)
		}
	}))
}

// replay is the seconds that a graph takes.
func (l *lab) replay(g kernels.Graph) (float64, error) {
	begin := time.Now()
	l.dev.Replay(g)
	err := l.dev.Wait(l.dev.Mark())
	return time.Since(begin).Seconds(), err
}

// lab allocates and fills what a case needs; the first error sticks.
type lab struct {
	dev     kernels.Device
	rng     *rand.Rand
	buffers []kernels.Buffer
	err     error
}

func newLab(dev kernels.Device) *lab { return &lab{dev: dev, rng: rand.New(rand.NewPCG(1, 2))} }

func (l *lab) free() {
	for _, b := range l.buffers {
		l.dev.Free(b)
	}
}

func (l *lab) alloc(bytes int64) kernels.Buffer {
	if l.err != nil {
		return kernels.Buffer{Size: bytes}
	}
	b, err := l.dev.Alloc(bytes)
	if err != nil {
		l.err = err
		return kernels.Buffer{Size: bytes}
	}
	l.buffers = append(l.buffers, b)
	return b
}

func (l *lab) upload(b kernels.Buffer, src []byte) {
	l.run(func(o kernels.Ops) { o.Upload(b.Slice(0, int64(len(src))), src) })
}

// run submits a program and waits for it, unless there was an error before.
func (l *lab) run(p func(kernels.Ops)) {
	if l.err != nil {
		return
	}
	l.dev.Submit(kernels.ProgramFunc(p))
	l.err = l.dev.Wait(l.dev.Mark())
}

func bytesOf[T int32 | float32 | uint16 | uint8 | kernels.SlotParams](s []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(*new(T))))
}

func (l *lab) ints(v ...int32) kernels.Buffer {
	b := l.alloc(int64(max(len(v), 1)) * 4)
	l.upload(b, bytesOf(v))
	return b
}

func (l *lab) sequence(n int, f func(i int) int) kernels.Buffer {
	v := make([]int32, n)
	for i := range v {
		v[i] = int32(f(i))
	}
	return l.ints(v...)
}

// encode gives n elements around zero with the given spread.
func (l *lab) encode(t kernels.DType, n int, spread float32) []byte {
	value := func() float32 { return (l.rng.Float32()*2 - 1) * spread }
	switch t {
	case kernels.F32:
		v := make([]float32, n)
		for i := range v {
			v[i] = value()
		}
		return bytesOf(v)
	case kernels.F8E4M3:
		v := make([]uint8, n)
		for i := range v {
			v[i] = kernels.F32ToF8E4M3(value())
		}
		return v
	}
	v := make([]uint16, n)
	for i := range v {
		if t == kernels.F16 {
			v[i] = kernels.F32ToF16(value())
		} else {
			v[i] = kernels.F32ToBF16(value())
		}
	}
	return bytesOf(v)
}

// floats is a filled buffer of elements of type t. Large ones repeat a block of random numbers of odd length.
func (l *lab) floats(t kernels.DType, n int64, spread float32) kernels.Buffer {
	size := int64(t.Size())
	b := l.alloc(n * size)
	if n == 0 {
		return b
	}
	block := l.encode(t, int(min(n, 1<<20-3)), spread)
	first := int64(len(block))
	l.upload(b, block)
	l.run(func(o kernels.Ops) {
		for at := first; at < n*size; at += first {
			more := min(first, n*size-at)
			o.Copy(b.Slice(at, more), b.Slice(0, more))
		}
	})
	return b
}

func (l *lab) mat(rows, cols int, spread float32) kernels.Mat {
	return l.matOf(l.act(), rows, cols, spread)
}

func (l *lab) matOf(t kernels.DType, rows, cols int, spread float32) kernels.Mat {
	return kernels.NewMat(l.floats(t, int64(rows)*int64(cols), spread), t, rows, cols)
}

func (l *lab) act() kernels.DType { return l.dev.Activations() }

// weight packs a made-up weight of bfloat16 elements.
func (l *lab) weight(experts, rows, cols int) kernels.Weight {
	if l.err != nil {
		return nil
	}
	n := max(experts, 1) * rows * cols
	block := l.encode(kernels.BF16, min(n, 1<<20-3), 0.05)
	data := make([]byte, 0, 2*n+len(block))
	for len(data) < 2*n {
		data = append(data, block...)
	}
	shape := []int{rows, cols}
	if experts > 0 {
		shape = []int{experts, rows, cols}
	}
	w, err := l.dev.Pack(kernels.WeightSpec{
		Name: "bench", Experts: experts,
		Parts: []kernels.HostTensor{{Name: "bench", DType: kernels.BF16, Shape: shape, Data: data[:2*n]}},
	})
	l.err = err
	return w
}

// sets is how many copies of bytes make memory cold. Where arithmetic takes far longer than memory, cold memory does not
// matter, and a few launches have to do.
func sets(bytes, flops float64, small bool) int {
	if small {
		return 1
	}
	return int(max(1, min(512e6/bytes, 8e9/flops, 64)))
}
