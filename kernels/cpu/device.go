package cpu

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"

	"reprise/kernels"
)

// queueLength bounds how many programs may wait; Submit blocks beyond it.
const queueLength = 256

// Options of Open.
type Options struct {
	Threads int // workers; 0 = GOMAXPROCS
}

// Device is the CPU as a kernels.Device. One goroutine runs the programs in order; inside a program each operation
// is finished before the next one starts.
type Device struct {
	memory memory
	pool   *pool
	ops    *ops

	queue    chan kernels.Program // nil marks a ticket
	enqueued kernels.Ticket       // entries of the queue so far
	stopped  chan struct{}        // closed when the stream goroutine has ended
	closed   bool

	mu     sync.Mutex
	moved  sync.Cond // done has advanced
	done   kernels.Ticket
	faults []ticketFault // not yet reported, oldest first
}

type ticketFault struct {
	at    kernels.Ticket
	fault *kernels.Fault
}

var _ kernels.Device = (*Device)(nil)

// Open starts the device. Close ends its goroutines and returns its memory.
func Open(o Options) (*Device, error) {
	if o.Threads < 0 {
		return nil, fmt.Errorf("cpu: %d threads", o.Threads)
	}
	if o.Threads == 0 {
		o.Threads = runtime.GOMAXPROCS(0)
	}
	d := &Device{
		memory:  newMemory(),
		pool:    newPool(o.Threads),
		queue:   make(chan kernels.Program, queueLength),
		stopped: make(chan struct{}),
	}
	d.moved.L = &d.mu
	d.ops = newOps(d.pool)
	go d.stream()
	return d, nil
}

// Name tells the instruction set and the number of workers.
func (d *Device) Name() string {
	return fmt.Sprintf("cpu (%s, %s, %d threads)", runtime.GOARCH, simd, d.pool.size())
}

// Activations is F32.
func (d *Device) Activations() kernels.DType { return kernels.F32 }

// MemoryFree is what the operating system calls available.
func (d *Device) MemoryFree() int64 { return memoryFree() }

// Alloc returns zeroed memory, 256-byte aligned; zero bytes give a nil buffer.
func (d *Device) Alloc(bytes int64) (kernels.Buffer, error) { return d.memory.alloc(bytes) }

// Free returns memory of Alloc after everything enqueued has run.
func (d *Device) Free(b kernels.Buffer) {
	if b.Nil() {
		return
	}
	d.drain()
	d.memory.free(b)
}

// StateSupport takes every precision.
func (d *Device) StateSupport(p kernels.Precision) error { return p.Validate() }

// HostWeights is true: operations read the tensors' memory.
func (d *Device) HostWeights() bool { return true }

// Packed has nothing to give back.
func (d *Device) Packed() error { return nil }

// AllocHost returns host memory; any will do for copies on this device. It is valid until Close.
func (d *Device) AllocHost(bytes int64) ([]byte, error) {
	if bytes < 0 {
		return nil, fmt.Errorf("cpu: allocate %d bytes of host memory", bytes)
	}
	if bytes < largeHost {
		return alignedBytes(bytes), nil
	}
	return d.memory.allocHost(bytes)
}

// Submit enqueues p.
func (d *Device) Submit(p kernels.Program) {
	if p == nil {
		fail("submission of a nil program")
	}
	d.enqueue(p)
}

func (d *Device) enqueue(p kernels.Program) {
	d.enqueued++
	d.queue <- p
}

// graph is the program itself: on this device a replay runs it again.
type graph struct{ program kernels.Program }

// Bytes is 0.
func (*graph) Bytes() int64 { return 0 }

// Capture keeps p for Replay.
func (d *Device) Capture(p kernels.Program) (kernels.Graph, error) {
	if p == nil {
		return nil, errors.New("cpu: capture of a nil program")
	}
	return &graph{p}, nil
}

// Graphs reports that capturing gains nothing here.
func (d *Device) Graphs() bool { return false }

// Replay enqueues the program of g.
func (d *Device) Replay(g kernels.Graph) { d.Submit(g.(*graph).program) }

// Mark returns the ticket of everything enqueued so far.
func (d *Device) Mark() kernels.Ticket {
	d.enqueue(nil)
	return d.enqueued
}

// Wait blocks until t is done and reports the first unreported fault of the programs up to t.
func (d *Device) Wait(t kernels.Ticket) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.done < t {
		d.moved.Wait()
	}
	return d.takeFault(t)
}

// takeFault drops the faults up to t and returns the first of them.
func (d *Device) takeFault(t kernels.Ticket) error {
	n := 0
	for n < len(d.faults) && d.faults[n].at <= t {
		n++
	}
	if n == 0 {
		return nil
	}
	first := d.faults[0].fault
	d.faults = append(d.faults[:0], d.faults[n:]...)
	return first
}

// drain waits for the stream and leaves faults to be reported by Wait.
func (d *Device) drain() {
	d.mu.Lock()
	for d.done < d.enqueued {
		d.moved.Wait()
	}
	d.mu.Unlock()
}

// Close waits for the stream, ends the workers and returns all memory. A second call does nothing.
func (d *Device) Close() error {
	if d.closed {
		return nil
	}
	d.closed = true
	close(d.queue)
	<-d.stopped
	d.pool.close()
	return d.memory.close()
}

func (d *Device) stream() {
	defer close(d.stopped)
	for p := range d.queue {
		fault := d.run(p)
		d.mu.Lock()
		d.done++
		if fault != nil {
			d.faults = append(d.faults, ticketFault{d.done, fault})
		}
		d.moved.Broadcast()
		d.mu.Unlock()
	}
}

// run runs p and turns a panic into a fault.
func (d *Device) run(p kernels.Program) (fault *kernels.Fault) {
	d.ops.current = ""
	defer func() {
		if cause := recover(); cause != nil {
			fault = newFault(d.ops.current, cause)
		}
	}()
	if p != nil {
		p.Run(d.ops)
	}
	return nil
}

func newFault(op string, cause any) *kernels.Fault {
	if w, ok := cause.(*workerPanic); ok {
		return &kernels.Fault{Op: op, Cause: w.cause, Stack: w.stack}
	}
	return &kernels.Fault{Op: op, Cause: cause, Stack: string(debug.Stack())}
}
