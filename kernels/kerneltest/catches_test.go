package kerneltest

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"reprise/kernels"
	"reprise/kernels/ref"
)

// recorder is a testing.TB that keeps failures to itself.
type recorder struct {
	testing.TB
	failures []string
}

func (r *recorder) Helper()                   {}
func (r *recorder) Errorf(f string, a ...any) { r.failures = append(r.failures, fmt.Sprintf(f, a...)) }
func (r *recorder) Fatal(a ...any)            { r.Fatalf("%v", a) }
func (r *recorder) Fatalf(f string, a ...any) {
	r.Errorf(f, a...)
	runtime.Goexit()
}

// failures runs one case of the suite and returns what it complained about.
func failures(t *testing.T, dev kernels.Device, name string) []string {
	t.Helper()
	r := &recorder{TB: t}
	found := false
	for _, f := range families(true) {
		for _, c := range f.cases {
			if c.name != name {
				continue
			}
			found = true
			done := make(chan struct{})
			go func() {
				defer close(done)
				c.on(r, dev)
			}()
			<-done
		}
	}
	if !found {
		t.Fatalf("no case is called %q", name)
	}
	return r.failures
}

// faulty is the oracle with one planted error.
type faulty struct {
	*ref.Device
	plant func(real kernels.Ops) kernels.Ops
}

func (f faulty) Submit(p kernels.Program) {
	f.Device.Submit(kernels.ProgramFunc(func(o kernels.Ops) { p.Run(f.plant(o)) }))
}

// hooked replaces single operations of the oracle.
type hooked struct {
	kernels.Ops
	norm       func(kernels.Norm)
	linear     func(kernels.Linear)
	mamba2Step func(kernels.Mamba2)
	deltaStep  func(kernels.Delta)
	mamba2Scan func(kernels.Mamba2)
}

func (h hooked) Norm(p kernels.Norm) {
	if h.norm != nil {
		h.norm(p)
		return
	}
	h.Ops.Norm(p)
}

func (h hooked) Linear(p kernels.Linear) {
	if h.linear != nil {
		h.linear(p)
		return
	}
	h.Ops.Linear(p)
}

func (h hooked) Mamba2Step(p kernels.Mamba2) {
	if h.mamba2Step != nil {
		h.mamba2Step(p)
		return
	}
	h.Ops.Mamba2Step(p)
}

func (h hooked) DeltaStep(p kernels.Delta) {
	if h.deltaStep != nil {
		h.deltaStep(p)
		return
	}
	h.Ops.DeltaStep(p)
}

func (h hooked) Mamba2Scan(p kernels.Mamba2) {
	if h.mamba2Scan != nil {
		h.mamba2Scan(p)
		return
	}
	h.Ops.Mamba2Scan(p)
}

// first writes f over the first element of a matrix of float32.
func first(o kernels.Ops, m kernels.Mat, f float32) {
	o.Upload(m.Buf.Slice(0, 4), encode(kernels.F32, []float32{f}))
}

// scale multiplies the first element by 1 + e.
func scale(o kernels.Ops, m kernels.Mat, e float32) {
	b := make([]byte, 4)
	o.Download(b, m.Buf.Slice(0, 4))
	first(o, m, float32(decode(kernels.F32, b)[0])*(1+e))
}

func TestSuiteCatchesPlantedErrors(t *testing.T) {
	const small = "mamba2 {4 8 16 2 4}"
	const smallD = "delta {2 4 8 16 4}"
	for name, c := range map[string]struct {
		testcase, complaint string
		plant               func(o kernels.Ops) kernels.Ops
	}{
		"an error of 1e-4": {"norm 5x65", "y: ", func(o kernels.Ops) kernels.Ops {
			return hooked{Ops: o, norm: func(p kernels.Norm) { o.Norm(p); scale(o, p.Y.RowRange(1, 1), 1e-4) }}
		}},
		"an output not written": {"norm 5x65", "y: ", func(o kernels.Ops) kernels.Ops {
			return hooked{Ops: o, norm: func(p kernels.Norm) { p.X, p.Y = p.X.RowRange(0, 4), p.Y.RowRange(0, 4); o.Norm(p) }}
		}},
		"a residual not stored": {"norm add 5x65", "x: ", func(o kernels.Ops) kernels.Ops {
			return hooked{Ops: o, norm: func(p kernels.Norm) {
				x := make([]byte, p.X.Buf.Size)
				o.Download(x, p.X.Buf)
				o.Norm(p)
				o.Upload(p.X.Buf, x)
			}}
		}},
		"a write before the buffer": {"norm 5x65", "changed", func(o kernels.Ops) kernels.Ops {
			return hooked{Ops: o, norm: func(p kernels.Norm) {
				o.Norm(p)
				o.Zero(kernels.Buffer{Addr: p.Y.Buf.Addr - 4, Size: 4})
			}}
		}},
		"a write behind the buffer": {"norm 5x65", "changed", func(o kernels.Ops) kernels.Ops {
			return hooked{Ops: o, norm: func(p kernels.Norm) {
				o.Norm(p)
				o.Zero(kernels.Buffer{Addr: p.Y.Buf.Addr + uintptr(p.Y.Buf.Size), Size: 1})
			}}
		}},
		"a write between strided rows": {"norm 5x65 wide", "changed", func(o kernels.Ops) kernels.Ops {
			return hooked{Ops: o, norm: func(p kernels.Norm) { o.Norm(p); o.Zero(p.Y.Buf.Slice(int64(4*p.Y.Cols), 4)) }}
		}},
		"an input changed": {"norm 5x65", "changed", func(o kernels.Ops) kernels.Ops {
			return hooked{Ops: o, norm: func(p kernels.Norm) { o.Norm(p); scale(o, p.X.RowRange(1, 1), 1) }}
		}},
		"an order of summation that depends on the rows": {"linear float32 5x127x33", "same bits", func(o kernels.Ops) kernels.Ops {
			return hooked{Ops: o, linear: func(p kernels.Linear) {
				o.Linear(p)
				if p.X.Rows == 1 {
					scale(o, p.Y, 1e-7)
				}
			}}
		}},
		"padding not cleared": {small + " step L4 T3", "padding", func(o kernels.Ops) kernels.Ops {
			return hooked{Ops: o, mamba2Step: func(p kernels.Mamba2) { keepPadding(o, p.Rows, p.Out, func() { o.Mamba2Step(p) }) }}
		}},
		"a flush that does not reach the block": {small + " step L4 T3", "blocks", func(o kernels.Ops) kernels.Ops {
			return hooked{Ops: o, mamba2Step: func(p kernels.Mamba2) {
				blocks := make([]byte, p.State.Blocks.Size)
				o.Download(blocks, p.State.Blocks)
				o.Mamba2Step(p)
				o.Upload(p.State.Blocks, blocks)
			}}
		}},
		"a cursor written by a layer": {small + " step L4 T3", "cursor 1", func(o kernels.Ops) kernels.Ops {
			return hooked{Ops: o, mamba2Step: func(p kernels.Mamba2) { o.Mamba2Step(p); o.Zero(p.Cursors.H) }}
		}},
		"checkpoints rounded to bfloat16": {smallD + " step L4 T3", "out", func(o kernels.Ops) kernels.Ops {
			return hooked{Ops: o, deltaStep: func(p kernels.Delta) {
				blocks := make([]byte, p.State.Blocks.Size)
				o.Download(blocks, p.State.Blocks)
				rounded := append([]byte{}, blocks...)
				for i := range rounded {
					if i%4 < 2 {
						rounded[i] = 0
					}
				}
				o.Upload(p.State.Blocks, rounded)
				o.DeltaStep(p)
			}}
		}},
		"a scan that goes on from src": {small + " scan", "out", func(o kernels.Ops) kernels.Ops {
			return hooked{Ops: o, mamba2Scan: func(p kernels.Mamba2) {
				h := make([]byte, p.Cursors.H.Size)
				o.Download(h, p.Cursors.H)
				positions := make([]byte, p.Cursors.H.Size)
				o.Download(positions, p.Cursors.Origin)
				o.Upload(p.Cursors.Origin, addInts(positions, h))
				o.Zero(p.Cursors.H)
				o.Mamba2Scan(p)
				o.Upload(p.Cursors.Origin, positions)
				o.Upload(p.Cursors.H, h)
			}}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			if clean := failures(t, ref.New(), c.testcase); len(clean) > 0 {
				t.Fatalf("without the error: %v", clean)
			}
			got := failures(t, faulty{ref.New(), c.plant}, c.testcase)
			if !strings.Contains(strings.Join(got, "\n"), c.complaint) {
				t.Errorf("complaints %q do not mention %q", got, c.complaint)
			}
		})
	}
}

// keepPadding runs a step and puts back what the padding held before.
func keepPadding(o kernels.Ops, r kernels.Rows, out kernels.Mat, run func()) {
	before := make([]byte, out.Buf.Size)
	o.Download(before, out.Buf)
	run()
	n := make([]byte, r.N.Size)
	o.Download(n, r.N)
	for i, count := range ints(n) {
		for j := count; j < r.T; j++ {
			at := int64(r.First+i*r.T+j) * int64(out.Stride) * 4
			o.Upload(out.Buf.Slice(at, int64(4*out.Cols)), before[at:at+int64(4*out.Cols)])
		}
	}
}

func addInts(x, y []byte) []byte {
	sum := ints(x)
	for i, v := range ints(y) {
		sum[i] += v
	}
	return intBytes(sum)
}
