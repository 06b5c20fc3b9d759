//go:build cuda

package cuda

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"unsafe"

	"reprise/kernels"
	"reprise/kernels/cuda/driver"
)

// Device is one GPU as a kernels.Device. Programs run on the caller's goroutine, which is locked to its thread meanwhile,
// and enqueue their work on one stream.
type Device struct {
	gpu  *driver.GPU
	name string
	act  kernels.DType

	walkScans   bool // prefill scans go token by token
	ownProducts bool // products without cuBLASLt
	stream      driver.Stream
	ops         *ops
	memory      memory
	packer      packer
	modules     []driver.Module

	tickets tickets
	meter   meter
	lost    *kernels.Fault // the device is unusable
	closed  bool
}

var _ kernels.Device = (*Device)(nil)

// Built says whether this binary has CUDA.
const Built = true

// Open takes a GPU of compute capability 9.0 and loads the kernels.
func Open(o Options) (kernels.Device, error) {
	d := &Device{act: o.Activations, walkScans: o.WalkScans, ownProducts: o.OwnProducts}
	if d.act == kernels.Invalid {
		d.act = kernels.BF16
	}
	if d.act != kernels.BF16 && d.act != kernels.F32 {
		return nil, fmt.Errorf("cuda: activations of %s: %w", d.act, kernels.ErrUnsupported)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := d.open(o.Ordinal); err != nil {
		return nil, fmt.Errorf("cuda: %w", errors.Join(err, d.release()))
	}
	return d, nil
}

func (d *Device) open(ordinal int) (err error) {
	if err = driver.Load(); err != nil {
		return err
	}
	if d.gpu, err = driver.OpenGPU(ordinal); err != nil {
		return err
	}
	if d.gpu.Major != 9 || d.gpu.Minor != 0 {
		return fmt.Errorf("%s has compute capability %d.%d, want 9.0: %w", d.gpu.Name, d.gpu.Major, d.gpu.Minor, kernels.ErrUnsupported)
	}
	d.name = fmt.Sprintf("cuda:%d (%s, %s activations)", ordinal, d.gpu.Name, d.act)
	if err = d.gpu.Use(); err != nil {
		return err
	}
	if d.stream, err = driver.NewStream(); err != nil {
		return err
	}
	if err = d.tickets.open(); err != nil {
		return err
	}
	if err = d.memory.open(d.stream); err != nil {
		return err
	}
	d.packer = packer{gpu: d.gpu, stream: d.stream}
	d.ops, err = newOps(d)
	return err
}

// use locks the goroutine to a thread that has the context; the result undoes it.
func (d *Device) use() {
	runtime.LockOSThread()
	if err := d.gpu.Use(); err != nil {
		panic(fmt.Sprintf("cuda: %v", err))
	}
}

// Name tells the GPU and the activations.
func (d *Device) Name() string { return d.name }

// Activations is BF16, or F32 in float32 mode.
func (d *Device) Activations() kernels.DType { return d.act }

// MemoryFree is what the driver calls free.
func (d *Device) MemoryFree() int64 {
	d.use()
	defer runtime.UnlockOSThread()
	free, _, err := driver.MemoryInfo()
	if err != nil {
		return 0
	}
	return free
}

// MemoryTaken is the bytes on the device and of pinned memory that were asked for and not freed, by the device's own books.
func (d *Device) MemoryTaken() (device, pinned int64) {
	device, pinned = d.memory.taken()
	return device, pinned + d.packer.taken()
}

// Alloc returns zeroed memory, 256-byte aligned; zero bytes give a nil buffer.
func (d *Device) Alloc(bytes int64) (kernels.Buffer, error) {
	d.use()
	defer runtime.UnlockOSThread()
	return d.memory.alloc(bytes)
}

// Free returns memory of Alloc; it waits for the stream.
func (d *Device) Free(b kernels.Buffer) {
	if b.Nil() {
		return
	}
	d.use()
	defer runtime.UnlockOSThread()
	if err := d.memory.free(b); err != nil {
		d.fail("Free", err)
	}
}

// HostWeights is false: Pack copies.
func (d *Device) HostWeights() bool { return false }

// StateSupport takes every precision.
func (d *Device) StateSupport(p kernels.Precision) error { return p.Validate() }

// AllocHost returns zeroed pinned memory.
func (d *Device) AllocHost(bytes int64) ([]byte, error) {
	d.use()
	defer runtime.UnlockOSThread()
	return d.memory.allocHost(bytes)
}

// Submit enqueues the work of p. What p copies to Go memory is there when Submit returns.
func (d *Device) Submit(p kernels.Program) {
	d.use()
	defer runtime.UnlockOSThread()
	if d.lost != nil {
		return
	}
	if err := d.metered(func() error { d.add(d.run(p)); return nil }); err != nil {
		d.fail("Submit", err)
	}
}

// run runs p and turns a panic into a fault.
func (d *Device) run(p kernels.Program) (fault *kernels.Fault) {
	d.ops.current, d.ops.front, d.ops.settled, d.ops.linear.chain.count = "", front{}, false, 0
	defer func() {
		if cause := recover(); cause != nil {
			fault = newFault(d.ops.current, cause)
		}
	}()
	p.Run(d.ops)
	d.ops.flush()
	return nil
}

func newFault(op string, cause any) *kernels.Fault {
	f := &kernels.Fault{Op: op, Cause: cause, Stack: string(debug.Stack())}
	if err, ok := cause.(error); ok {
		var failed *driver.Error
		f.Sticky = errors.As(err, &failed) && failed.Sticky()
	}
	return f
}

// add keeps a fault for Wait.
func (d *Device) add(f *kernels.Fault) {
	if f == nil {
		return
	}
	if f.Sticky && d.lost == nil {
		d.lost = f
	}
	d.tickets.fault(f)
}

func (d *Device) fail(op string, err error) { d.add(newFault(op, err)) }

// graph is a captured program.
type graph struct {
	exec  driver.Graph
	bytes int64
}

// Bytes is by how much the capture lowered the free memory.
func (g *graph) Bytes() int64 { return g.bytes }

// Capture records p. Uploads from Go memory are frozen; a download into Go memory is an error.
func (d *Device) Capture(p kernels.Program) (kernels.Graph, error) {
	d.use()
	defer runtime.UnlockOSThread()
	if d.lost != nil {
		return nil, d.lost
	}
	g, err := d.capture(p)
	if err != nil {
		return nil, fmt.Errorf("cuda: capture: %w", err)
	}
	return g, nil
}

func (d *Device) capture(p kernels.Program) (*graph, error) {
	g := &graph{}
	before, _, err := driver.MemoryInfo()
	if err != nil {
		return nil, err
	}
	if err := d.stream.BeginCapture(); err != nil {
		return nil, err
	}
	d.ops.capturing = g
	fault := d.run(p)
	d.ops.capturing = nil
	g.exec, err = d.stream.EndCapture()
	if fault != nil && err == nil {
		err = g.exec.Destroy()
	}
	if fault != nil {
		return nil, errors.Join(fault, err)
	}
	if err != nil {
		return nil, err
	}
	after, _, err := driver.MemoryInfo()
	g.bytes = max(0, before-after)
	return g, err
}

// Graphs reports that a replay costs one call instead of hundreds.
func (d *Device) Graphs() bool { return true }

// Replay enqueues a captured program.
func (d *Device) Replay(g kernels.Graph) {
	d.use()
	defer runtime.UnlockOSThread()
	if d.lost != nil {
		return
	}
	if err := d.metered(func() error { return d.stream.Replay(g.(*graph).exec) }); err != nil {
		d.fail("Replay", err)
	}
}

// Mark returns the ticket of everything enqueued so far.
func (d *Device) Mark() kernels.Ticket {
	d.use()
	defer runtime.UnlockOSThread()
	t, err := d.tickets.mark(d.stream)
	if err != nil && d.lost == nil {
		d.fail("Mark", err)
	}
	return t
}

// Wait blocks until t is done. A fault that a kernel found in its data may belong to a later program than t.
func (d *Device) Wait(t kernels.Ticket) error {
	d.use()
	defer runtime.UnlockOSThread()
	if d.lost == nil {
		if err := d.tickets.wait(t); err != nil {
			d.fail("", err)
		} else if f := d.memory.trouble.take(); f != nil {
			d.tickets.blame(t, f)
		}
	}
	if f := d.tickets.take(t); f != nil {
		return f
	}
	if d.lost != nil {
		return d.lost
	}
	return nil
}

// Close waits for the stream and frees everything. A second call does nothing.
func (d *Device) Close() error {
	if d.closed {
		return nil
	}
	d.closed = true
	d.use()
	defer runtime.UnlockOSThread()
	err := d.stream.Synchronize()
	return errors.Join(err, d.release())
}

// release gives back whatever open took.
func (d *Device) release() error {
	if d.gpu == nil {
		return nil
	}
	var list []error
	if d.ops != nil {
		list = append(list, d.ops.close())
	}
	list = append(list, d.packer.close(), d.memory.close(), d.tickets.close(), d.meter.close())
	for _, m := range d.modules {
		list = append(list, m.Unload())
	}
	if d.stream != (driver.Stream{}) {
		list = append(list, d.stream.Destroy())
	}
	return errors.Join(append(list, d.gpu.Close())...)
}

// address is where host memory starts.
func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }
