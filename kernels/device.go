package kernels

import (
	"errors"
	"fmt"
)

// ErrUnsupported is wrapped by what a device cannot do; it comes while loading, never in the middle of a step.
var ErrUnsupported = errors.New("not supported by this device")

// ErrOutOfMemory is wrapped by a failed allocation.
var ErrOutOfMemory = errors.New("out of device memory")

// Device is one GPU, or the CPU. It runs programs one after another on a single stream; programs and copies are
// asynchronous to the caller, who waits for tickets. Its methods are called from one goroutine.
type Device interface {
	// Name tells a person which device this is.
	Name() string
	// Activations is the dtype of activations: F32 on the CPU.
	Activations() DType
	// StateSupport reports whether the device's recurrent operations take checkpoints of p; ErrUnsupported if not.
	StateSupport(p Precision) error
	// MemoryFree is the bytes that may still be allocated; an estimate.
	MemoryFree() int64

	// Alloc returns zeroed memory, 256-byte aligned.
	Alloc(bytes int64) (Buffer, error)
	// Free returns memory of Alloc; it waits for the stream.
	Free(Buffer)
	// AllocHost returns host memory that copies may use asynchronously.
	AllocHost(bytes int64) ([]byte, error)

	// Pack takes a weight as the checkpoint stores it; the device decides its own layout. The tensors' memory must
	// stay valid where HostWeights says so.
	Pack(WeightSpec) (Weight, error)
	// Packed ends a series of Packs and gives back what they took besides the weights; a later Pack takes it again.
	Packed() error
	// HostWeights reports whether operations read weights where Pack found them, as the CPU does. Otherwise Pack has
	// copied them when it returns.
	HostWeights() bool

	// Submit runs p once, in stream order. p must not change until the ticket of a later Mark is done.
	Submit(p Program)
	// Capture prepares p for cheap repetition. Everything p reads from Go memory is frozen at capture, except what
	// lies in device or AllocHost memory.
	Capture(p Program) (Graph, error)
	// Replay runs a captured program, in stream order.
	Replay(g Graph)
	// Graphs reports whether replaying is much cheaper than submitting, so that capturing at start pays.
	Graphs() bool

	// Mark returns a ticket that is done when everything enqueued so far is.
	Mark() Ticket
	// Wait blocks until t is done. It reports the first fault of the programs since the last Wait that reported
	// one, as a *Fault.
	Wait(t Ticket) error
	// Close waits for the stream and frees everything.
	Close() error
}

// Ticket is a point in a device's stream; later points are larger.
type Ticket uint64

// Graph is a captured program. Only the device that captured it may replay it.
type Graph interface{ Bytes() int64 }

// Program is device work written against Ops.
type Program interface{ Run(Ops) }

// ProgramFunc makes a Program of a function; keep the value, converting anew allocates.
type ProgramFunc func(Ops)

// Run calls f.
func (f ProgramFunc) Run(o Ops) { f(o) }

// Fault is what a program ended with instead of finishing. Results of the program are undefined.
type Fault struct {
	Op     string // operation, or "" when unknown
	Cause  any    // recovered value or driver error
	Stack  string // where, when known
	Sticky bool   // the device is unusable from now on
}

func (f *Fault) Error() string {
	where := f.Op
	if where == "" {
		where = "program"
	}
	return fmt.Sprintf("device fault in %s: %v", where, f.Cause)
}

// Format says how the elements of a weight are stored.
type Format uint8

// Weight formats. Dense is any float DType element by element.
const (
	Dense Format = iota
)

// WeightSpec describes one weight, or a group that is multiplied as one.
type WeightSpec struct {
	Name   string // for errors
	Format Format
	// Experts is 0 for an ordinary weight. Otherwise the weight is Experts matrices of equal shape.
	Experts int
	// Parts are [rows, cols] tensors of equal cols and equal DType that are stacked along rows in this order; with
	// Experts, either one [Experts, rows, cols] tensor a part, or Experts tensors in a row a part.
	Parts []HostTensor
}

// Weight is a packed matrix; only its device knows the layout.
type Weight interface {
	// Shape is the rows (outputs) and cols (inputs) of one matrix, and the number of matrices (1 unless experts).
	Shape() (experts, rows, cols int)
	// DType is the stored element type.
	DType() DType
	// Bytes is the device memory it occupies.
	Bytes() int64
	// Top is the first rows of an ordinary weight, 1 to all of them, in the same memory.
	Top(rows int) Weight
}
