package ref

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"reprise/kernels"
)

// host puts numbers on a device and takes them off again.
type host struct {
	*testing.T
	dev *Device
	rng *rand.Rand
}

func newHost(t *testing.T) host { return host{t, New(), rand.New(rand.NewPCG(1, 2))} }

func (h host) buffer(data []byte) kernels.Buffer {
	h.Helper()
	b, err := h.dev.Alloc(int64(len(data)))
	if err != nil {
		h.Fatal(err)
	}
	copy(h.dev.bytes(b), data)
	return b
}

func (h host) floats(v ...float64) kernels.Buffer {
	h.Helper()
	var data []byte
	for _, x := range v {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(float32(x)))
	}
	return h.buffer(data)
}

func (h host) ints(v ...int) kernels.Buffer {
	h.Helper()
	var data []byte
	for _, x := range v {
		data = binary.LittleEndian.AppendUint32(data, uint32(int32(x)))
	}
	return h.buffer(data)
}

func (h host) mat(cols int, v ...float64) kernels.Mat {
	h.Helper()
	return kernels.NewMat(h.floats(v...), kernels.F32, len(v)/cols, cols)
}

// random is n numbers as float32 has them.
func (h host) random(n int, scale float64) []float64 {
	v := make([]float64, n)
	for i := range v {
		v[i] = float64(float32(h.rng.NormFloat64() * scale))
	}
	return v
}

func (h host) run(f kernels.ProgramFunc) {
	h.Helper()
	h.dev.Submit(f)
	if err := h.dev.Wait(h.dev.Mark()); err != nil {
		h.Fatal(err)
	}
}

func (h host) read(b kernels.Buffer) []float64 {
	return row[float64]{values{kernels.F32, h.dev.bytes(b)}}.load(int(b.Size / 4))
}

func (h host) readInts(b kernels.Buffer) []int {
	s := h.dev.ints(b)
	v := make([]int, len(s)/4)
	for i := range v {
		v[i] = s.at(i)
	}
	return v
}

// near requires numbers that agree to float32's rounding of the results.
func (h host) near(what string, got, want []float64) {
	h.Helper()
	if len(got) != len(want) {
		h.Fatalf("%s: %d numbers, want %d", what, len(got), len(want))
	}
	for i := range got {
		if !(math.Abs(got[i]-want[i]) <= 1e-6*math.Max(1, math.Abs(want[i]))) {
			h.Fatalf("%s: number %d is %v, want %v", what, i, got[i], want[i])
		}
	}
}

// sequence is one packed row of n tokens in slot 1 with block 1, at the start of its sequence.
func (h host) sequence(n int) (kernels.Rows, kernels.Cursors) {
	h.Helper()
	rows := kernels.Rows{Count: 1, Tokens: n, MaxLen: n, Slot: h.ints(1), N: h.ints(n), Start: h.ints(0)}
	return rows, kernels.Cursors{Origin: h.ints(0, 0), H: h.ints(0, 0), Src: h.ints(0, 1), Dst: h.ints(0, 1)}
}

func (h host) state(elements int, block []float64, l kernels.RingLayout, w kernels.Window) kernels.State {
	h.Helper()
	return kernels.State{
		Blocks: h.floats(append(make([]float64, elements), block...)...), BlockStride: int64(4 * elements),
		Rings: h.buffer(make([]byte, 2*l.Bytes)), RingStride: l.Bytes, Layout: l, Window: w,
	}
}
