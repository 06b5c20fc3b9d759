package kerneltest

import (
	"bytes"
	"encoding/binary"
	"hash/fnv"
	"math/rand/v2"
	"testing"

	"reprise/kernels"
	"reprise/kernels/ref"
)

// side is one of the devices that a case runs on.
type side int

// The oracle computes in float64, plain is the same in float32, device is what is tested.
const (
	oracle side = iota
	plain
	device
	sides
)

// bench is one case: arrays with equal contents on every side and the programs that run over them.
type bench struct {
	testing.TB
	*rand.Rand
	devices [sides]kernels.Device
	arrays  []*array
	wide    bool // matrices are views of wider ones
	scales  int  // scales of e4m3 entries are larger by a factor of 2^scales than what fills the range

	precision kernels.Precision // of the states of pools
}

// newBench seeds the case by its name, so that it can be repeated.
func newBench(tb testing.TB, dev kernels.Device, name string) *bench {
	h := fnv.New64a()
	h.Write([]byte(name))
	return &bench{
		TB: tb, Rand: rand.New(rand.NewPCG(h.Sum64(), 1)),
		devices: [sides]kernels.Device{ref.New(), ref.NewFloat32(), dev},
	}
}

// free returns the memory on the tested device.
func (b *bench) free() {
	for _, a := range b.arrays {
		b.devices[device].Free(a.whole[device])
	}
}

// span is bytes [from, to) of an array.
type span struct{ from, to int }

// array is one allocation on every side, between guard zones.
type array struct {
	name    string
	whole   [sides]kernels.Buffer
	buf     [sides]kernels.Buffer
	before  []byte        // contents when the next program starts
	after   [sides][]byte // contents when the last program ended
	mutable []span        // what a program may change; all else must stay
}

// entry is element i of an array of i32, entries are n from i on.
func (a *array) entry(i int) *array { return a.entries(i, 1) }

func (a *array) entries(i, n int) *array {
	c := *a
	for s := range sides {
		c.buf[s] = a.buf[s].Slice(int64(4*i), int64(4*n))
	}
	return &c
}

const guard = 512

// guarded is data between two zones of a pattern that is NaN as float32, bfloat16 and float16, and large as int32.
func guarded(data []byte) []byte {
	zone := bytes.Repeat([]byte{0xad, 0x7f}, guard/2)
	return append(append(bytes.Clone(zone), data...), zone...)
}

// array allocates data on every side; programs may not change it.
func (b *bench) array(name string, data []byte) *array {
	b.Helper()
	a := &array{name: name, before: bytes.Clone(data)}
	whole := guarded(data)
	for s, dev := range b.devices {
		buf, err := dev.Alloc(int64(len(whole)))
		if err != nil {
			b.Fatalf("%s: %v", name, err)
		}
		a.whole[s], a.buf[s] = buf, buf.Slice(guard, int64(len(data)))
		b.do(side(s), func(o kernels.Ops) { o.Upload(buf, whole) })
	}
	b.arrays = append(b.arrays, a)
	return a
}

// allow lets programs change n bytes at from.
func (a *array) allow(from, n int) { a.mutable = append(a.mutable, span{from, from + n}) }

// fixed takes back what allow allowed.
func (a *array) fixed() { a.mutable = nil }

// do runs a program on one side and waits for it.
func (b *bench) do(s side, f kernels.ProgramFunc) {
	b.Helper()
	dev := b.devices[s]
	dev.Submit(f)
	if err := dev.Wait(dev.Mark()); err != nil {
		b.Fatalf("%s: %v", dev.Name(), err)
	}
}

// run executes the program on every side and checks that it changed only what it may.
func (b *bench) run(program func(o kernels.Ops, s side)) {
	b.Helper()
	for s := range sides {
		b.do(s, func(o kernels.Ops) { program(o, s) })
	}
	for _, a := range b.arrays {
		for s := range sides {
			b.fetch(a, s)
		}
	}
}

// fetch reads an array back and compares everything that had to stay.
func (b *bench) fetch(a *array, s side) {
	b.Helper()
	whole := make([]byte, a.whole[s].Size)
	b.do(s, func(o kernels.Ops) { o.Download(whole, a.whole[s]) })
	a.after[s] = whole[guard : len(whole)-guard]
	want := bytes.Clone(a.before)
	for _, m := range a.mutable {
		copy(want[m.from:m.to], a.after[s][m.from:m.to])
	}
	if want = guarded(want); !bytes.Equal(want, whole) {
		at := 0
		for want[at] == whole[at] {
			at++
		}
		b.Errorf("%s: byte %d of %s (%d bytes) changed from %#x to %#x", b.devices[s].Name(), at-guard, a.name, len(a.before), want[at], whole[at])
	}
}

// set replaces the contents of an array on every side.
func (b *bench) set(a *array, data []byte) {
	b.Helper()
	a.before = bytes.Clone(data)
	for s := range sides {
		b.do(s, func(o kernels.Ops) { o.Upload(a.buf[s], data) })
	}
}

// ints is an i32 array.
func (b *bench) ints(name string, v ...int) *array {
	b.Helper()
	return b.array(name, intBytes(v))
}

func intBytes(v []int) []byte {
	data := make([]byte, 4*len(v))
	for i, x := range v {
		binary.LittleEndian.PutUint32(data[4*i:], uint32(int32(x)))
	}
	return data
}

// outInts is an i32 array of n elements to be written, poisoned.
func (b *bench) outInts(name string, n int) *array {
	b.Helper()
	a := b.array(name, bytes.Repeat([]byte{0xad, 0x7f}, 2*n))
	a.allow(0, 4*n)
	return a
}

// intsOf is an i32 array as a side left it.
func (a *array) intsOf(s side) []int { return ints(a.after[s]) }

// ints decodes i32 elements.
func ints(data []byte) []int {
	v := make([]int, len(data)/4)
	for i := range v {
		v[i] = int(int32(binary.LittleEndian.Uint32(data[4*i:])))
	}
	return v
}

// floats is an f32 array.
func (b *bench) floats(name string, v []float32) *array {
	b.Helper()
	return b.array(name, encode(kernels.F32, v))
}

// normal is n numbers of the normal distribution.
func (b *bench) normal(n int, mean, deviation float64) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(mean + deviation*b.NormFloat64())
	}
	return v
}

// weight packs the same tensors on every side.
type weight [sides]kernels.Weight

func (b *bench) pack(spec kernels.WeightSpec) weight {
	b.Helper()
	var w weight
	for s, dev := range b.devices {
		p, err := dev.Pack(spec)
		if err != nil {
			b.Fatalf("%s: %v", dev.Name(), err)
		}
		w[s] = p
	}
	return w
}

// tensor is a host tensor of small numbers, at an address that is not aligned.
func (b *bench) tensor(t kernels.DType, shape ...int) kernels.HostTensor {
	h := kernels.HostTensor{Name: "tensor", DType: t, Shape: shape}
	data := append([]byte{0}, encode(t, b.normal(h.Elements(), 0, 0.5))...)
	h.Data = data[1:]
	return h
}
