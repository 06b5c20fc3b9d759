package ref

import (
	"fmt"
	"runtime/debug"

	"reprise/kernels"
)

// Device computes on host memory. Programs run inside Submit and Replay.
type Device struct {
	memory
	name  string
	ops   kernels.Ops
	op    string // the operation that runs
	marks kernels.Ticket
	fault *kernels.Fault
}

// New returns the oracle: float64.
func New() *Device {
	d := &Device{name: "ref (float64)"}
	d.ops = ops[float64]{d}
	return d
}

// NewFloat32 returns the same algorithms in float32.
func NewFloat32() *Device {
	d := &Device{name: "ref (float32)"}
	d.ops = ops[float32]{d}
	return d
}

// Name tells the precision too.
func (d *Device) Name() string { return d.name }

// Activations are float32.
func (d *Device) Activations() kernels.DType { return kernels.F32 }

// StateSupport takes every precision.
func (d *Device) StateSupport(p kernels.Precision) error { return p.Validate() }

// HostWeights is false: Pack widens into memory of its own.
func (d *Device) HostWeights() bool { return false }

// Packed has nothing to give back.
func (d *Device) Packed() error { return nil }

// AllocHost returns ordinary memory: copies are synchronous.
func (d *Device) AllocHost(bytes int64) ([]byte, error) {
	if bytes < 0 || bytes > d.MemoryFree() {
		return nil, fmt.Errorf("ref: %d bytes of host memory: %w", bytes, kernels.ErrOutOfMemory)
	}
	return make([]byte, bytes), nil
}

// Submit runs p to its end or its first panic.
func (d *Device) Submit(p kernels.Program) {
	defer func() {
		if cause := recover(); cause != nil && d.fault == nil {
			d.fault = &kernels.Fault{Op: d.op, Cause: cause, Stack: string(debug.Stack())}
		}
	}()
	d.op = ""
	p.Run(d.ops)
}

// graph is a program that its device runs again.
type graph struct {
	owner   *Device
	program kernels.Program
}

func (graph) Bytes() int64 { return 0 }

// Capture keeps the program; what it reads from Go memory must not change.
func (d *Device) Capture(p kernels.Program) (kernels.Graph, error) { return graph{d, p}, nil }

// Graphs reports that capturing gains nothing here.
func (d *Device) Graphs() bool { return false }

// Replay runs a captured program.
func (d *Device) Replay(g kernels.Graph) {
	own, ok := g.(graph)
	if !ok || own.owner != d {
		panic("ref: replay of another device's graph")
	}
	d.Submit(own.program)
}

// Mark counts.
func (d *Device) Mark() kernels.Ticket {
	d.marks++
	return d.marks
}

// Wait has nothing to wait for; it reports the first fault since it last did.
func (d *Device) Wait(kernels.Ticket) error {
	if d.fault == nil {
		return nil
	}
	f := d.fault
	d.fault = nil
	return f
}

// Close forgets all memory.
func (d *Device) Close() error {
	d.memory = memory{}
	return nil
}

// ops implements kernels.Ops in the precision F.
type ops[F real] struct{ *Device }

// begin names the running operation and refuses broken parameters.
func (o ops[F]) begin(name string, err error) {
	o.op = name
	if err != nil {
		panic(err)
	}
}
