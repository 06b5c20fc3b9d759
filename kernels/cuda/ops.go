//go:build cuda

package cuda

import (
	"embed"
	"errors"
	"fmt"
	"unsafe"

	"reprise/kernels"
	"reprise/kernels/cuda/driver"
)

//go:embed fatbin/*.fatbin
var fatbins embed.FS

// ops implements kernels.Ops. It enqueues on the device's stream.
type ops struct {
	dev       *Device
	current   string // operation that is being enqueued, for faults
	capturing *graph // nil unless a program is being captured
	front     front
	settled   bool // see waited

	dense    denseKernels
	linear   linearKernels
	step     stepKernels
	sampling sampleKernels
	ssm      ssmKernels
	rates    rateKernels
	drafting draftKernels

	attention attentionKernels
	experts   expertsKernels
}

var _ kernels.Ops = (*ops)(nil)

func newOps(d *Device) (*ops, error) {
	o := &ops{dev: d}
	for _, family := range []interface{ load(*loader) error }{&o.dense, &o.linear, &o.step, &o.sampling, &o.ssm, &o.rates, &o.drafting, &o.attention, &o.experts} {
		l := &loader{dev: d}
		if err := errors.Join(family.load(l), l.err); err != nil {
			return o, err
		}
	}
	return o, nil
}

func (o *ops) close() error { return o.linear.close() }

// loader finds the kernels of one family.
type loader struct {
	dev    *Device
	module driver.Module
	err    error
}

// open loads the module of src/name.cu.
func (l *loader) open(name string) {
	image, err := fatbins.ReadFile("fatbin/" + name + ".fatbin")
	if err == nil {
		l.module, err = driver.LoadModule(image)
	}
	if err != nil {
		l.err = errors.Join(l.err, fmt.Errorf("kernels of %s: %w", name, err))
		return
	}
	l.dev.modules = append(l.dev.modules, l.module)
}

// kernel finds one by name; it may use up to shared bytes of dynamic shared memory.
func (l *loader) kernel(name string, shared int) driver.Function {
	if l.err != nil {
		return driver.Function{}
	}
	f, err := l.module.Function(name, shared)
	l.err = errors.Join(l.err, err)
	return f
}

// active is kernel for one that exists once an activation type.
func (l *loader) active(name string, shared int) driver.Function {
	if l.dev.act == kernels.F32 {
		return l.kernel(name+"_f32", shared)
	}
	return l.kernel(name+"_bf16", shared)
}

// scratch is device memory for the life of the device.
func (l *loader) scratch(bytes int64) kernels.Buffer {
	if l.err != nil {
		return kernels.Buffer{}
	}
	b, err := l.dev.memory.alloc(bytes)
	l.err = errors.Join(l.err, err)
	return b
}

// enter names the operation that starts. Products wait for those behind them, and run when anything else starts.
func (o *ops) enter(op string) {
	if op != "Linear" {
		o.flush()
	}
	o.current = op
}

// must panics with a violated contract or a failed driver call.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// sameSize requires a copy of equal sizes.
func sameSize(dst, src int64) {
	if dst != src {
		panic(fmt.Sprintf("cuda: copy of %d bytes to %d bytes", src, dst))
	}
}

// line is a launch of blocks in one dimension; grid one in three.
func line(blocks, threads int) driver.Config { return grid(blocks, 1, 1, threads) }

func grid(x, y, z, threads int) driver.Config {
	return driver.Config{Grid: [3]uint32{uint32(x), uint32(y), uint32(z)}, Block: [3]uint32{uint32(threads), 1, 1}, Early: true}
}

// launch enqueues f with the struct p as its parameter; a launch without blocks is none.
func launch[P any](o *ops, f driver.Function, c driver.Config, p P) {
	if c.Grid[0] == 0 || c.Grid[1] == 0 || c.Grid[2] == 0 {
		return
	}
	o.front = front{}
	must(f.Launch(o.dev.stream, &c, unsafe.Pointer(&p), unsafe.Sizeof(p)))
}

// gridRows is the most blocks that a launch has in its second and third dimension.
const gridRows = 1<<16 - 1

// parts calls run for n rows, at most `most` at a time.
func parts(n, most int, run func(from, n int)) {
	for from := 0; from < n; from += most {
		run(from, min(most, n-from))
	}
}

func ceil(n, by int) int { return (n + by - 1) / by }

// addr is a buffer's address as kernels take it; 0 if there is none.
func addr(b kernels.Buffer) uint64 {
	if b.Nil() {
		return 0
	}
	return uint64(b.Addr)
}

// mat is a matrix as kernels take it (struct Mat of common.cuh).
type mat struct {
	addr   uint64
	stride int64 // elements
}

func matOf(m kernels.Mat) mat { return mat{addr(m.Buf), int64(m.Stride)} }

// is requires that the operation's matrices hold activations.
func (o *ops) is(m kernels.Mat, name string) {
	if m.Rows > 0 && m.DType != o.dev.act {
		panic(fmt.Sprintf("cuda: %s holds %s, the device's activations are %s", name, m.DType, o.dev.act))
	}
}
