//go:build cuda

package cuda

import (
	"errors"
	"runtime"
	"sort"

	"reprise/kernels"
	"reprise/kernels/cuda/driver"
)

// rateKernels are those of src/rates.cu.
type rateKernels struct{ read, noise driver.Function }

func (k *rateKernels) load(l *loader) error {
	l.open("rates")
	k.read, k.noise = l.kernel("stream_read", 0), l.kernel("noise", 0)
	return nil
}

// What MeasuredRates runs over.
const (
	rateBytes = 2 << 30
	rateSize  = 8192
)

// MeasuredRates streams over 2 GiB five times, reading 16 bytes for each that is written (the median counts), and
// multiplies random bf16 matrices of 8192 x 8192: bytes read or written, and floating-point operations, a second.
func (d *Device) MeasuredRates() (read, flops float64, err error) {
	from, err := d.Alloc(rateBytes)
	if err != nil {
		return 0, 0, err
	}
	defer d.Free(from)
	to, err := d.Alloc(rateBytes / 16)
	if err != nil {
		return 0, 0, err
	}
	defer d.Free(to)
	if d.act != kernels.BF16 {
		read, err = d.readRate(from, to)
		return read, 0, err
	}
	if read, err = d.readRate(from, to); err != nil {
		return 0, 0, err
	}
	flops, err = d.productRate(from)
	return read, flops, err
}

func (d *Device) readRate(from, to kernels.Buffer) (float64, error) {
	type params struct {
		from, to uint64
		groups   int64
	}
	t, err := d.Time(5, kernels.ProgramFunc(func(o kernels.Ops) {
		launch(d.ops, d.ops.rates.read, line(4*d.gpu.Processors, 512), params{addr(from), addr(to), rateBytes / 256})
	}))
	return (rateBytes + rateBytes/16) / t, err
}

// productRate uses the same memory for all three matrices.
func (d *Device) productRate(b kernels.Buffer) (float64, error) {
	type params struct {
		to uint64
		n  int64
	}
	const bytes = rateSize * rateSize * 2
	w := &weight{experts: 1, rows: rateSize, cols: rateSize, dtype: kernels.BF16, stride: rateSize * 2, buf: b.Slice(0, bytes)}
	x := kernels.NewMat(b.Slice(bytes, bytes), kernels.BF16, rateSize, rateSize)
	y := kernels.NewMat(b.Slice(2*bytes, bytes), kernels.BF16, rateSize, rateSize)
	_, err := d.Time(1, kernels.ProgramFunc(func(o kernels.Ops) {
		launch(d.ops, d.ops.rates.noise, line(1024, 256), params{addr(b), 2 * rateSize * rateSize})
	}))
	if err != nil {
		return 0, err
	}
	t, err := d.Time(10, kernels.ProgramFunc(func(o kernels.Ops) { o.Linear(kernels.Linear{X: x, Y: y, W: w}) }))
	return 2 * rateSize * rateSize * rateSize / t, err
}

// Time is the median seconds of n runs of p on the device, each between two events, behind one run that does not count.
func (d *Device) Time(n int, p kernels.Program) (float64, error) {
	g, err := d.Capture(p)
	if err != nil {
		return 0, err
	}
	defer d.drop(g.(*graph))
	events := make([]driver.Event, n+1)
	d.use()
	defer runtime.UnlockOSThread()
	for i := range events {
		if events[i], err = driver.NewEvent(true); err != nil {
			return 0, err
		}
		defer events[i].Destroy()
	}
	d.Replay(g)
	for i := range events {
		if err := d.stream.Record(events[i]); err != nil {
			return 0, err
		}
		if i < n {
			d.Replay(g)
		}
	}
	if err := d.Wait(d.Mark()); err != nil {
		return 0, err
	}
	return median(events)
}

// drop gives a graph back when it has run.
func (d *Device) drop(g *graph) {
	d.use()
	defer runtime.UnlockOSThread()
	if err := errors.Join(d.stream.Synchronize(), g.exec.Destroy()); err != nil {
		d.fail("Time", err)
	}
}

func median(events []driver.Event) (float64, error) {
	var times []float64
	for i := range len(events) - 1 {
		ms, err := events[i].Milliseconds(events[i+1])
		if err != nil {
			return 0, err
		}
		times = append(times, ms/1e3)
	}
	sort.Float64s(times)
	return times[len(times)/2], nil
}
