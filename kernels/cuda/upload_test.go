//go:build cuda

package cuda

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"reprise/kernels"
)

// TestPieces needs no GPU: pieces cover all rows once, in order, and padding is zero whatever the memory held.
func TestPieces(t *testing.T) {
	for _, c := range []struct{ rows, size, stride int }{{1, 2, 128}, {5000, 258, 384}, {4097, 256, 256}, {3, pieceBytes - 2, pieceBytes}, {2, pieceBytes, pieceBytes}} {
		data := noise(uint64(c.rows), c.rows*c.size)
		var got []byte
		for _, p := range pieces(nil, 1<<40, int64(c.stride), data, c.rows) {
			if p.dst != 1<<40+uintptr(len(got)) {
				t.Fatalf("%+v: a piece for %#x behind %d bytes", c, p.dst, len(got))
			}
			got = append(got, p.fill(noise(1, pieceBytes))...)
		}
		if !bytes.Equal(got, padded(data, c.rows, c.stride)) {
			t.Errorf("%+v: other bytes", c)
		}
	}
}

// TestPackManyPieces: weights of more pieces than all workers have, several in a row, whose tensors are overwritten as soon
// as Pack returns. Between two of them, and in the end, the pinned pieces are given back.
func TestPackManyPieces(t *testing.T) {
	dev := openFor(t, kernels.BF16).(*Device)
	defer dev.Close()
	type packed struct {
		w    *weight
		want []byte
	}
	_, before := dev.MemoryTaken()
	givenBack := func() {
		t.Helper()
		if _, pinned := dev.MemoryTaken(); pinned <= before {
			t.Errorf("%d bytes of pinned memory while weights are packed, %d before", pinned, before)
		}
		if err := dev.Packed(); err != nil {
			t.Fatal(err)
		}
		if _, pinned := dev.MemoryTaken(); pinned != before {
			t.Errorf("%d bytes of pinned memory behind the weights, %d before", pinned, before)
		}
	}
	var all []packed
	for i, shape := range [][2]int{{9000, 2560}, {70000, 129}, {1, 64}, {3, pieceBytes / 2}, {40000, 1024}} {
		rows, cols := shape[0], shape[1]
		first := kernels.HostTensor{Name: "a", DType: kernels.BF16, Shape: []int{rows, cols}, Data: noise(uint64(i), rows*cols*2)}
		second := kernels.HostTensor{Name: "b", DType: kernels.BF16, Shape: []int{rows, cols}, Data: noise(uint64(i+9), rows*cols*2)}
		p, err := dev.Pack(kernels.WeightSpec{Name: "w", Experts: 2, Parts: []kernels.HostTensor{first, second}})
		if err != nil {
			t.Fatal(err)
		}
		w := own(p)
		all = append(all, packed{w, append(padded(first.Data, rows, int(w.stride)), padded(second.Data, rows, int(w.stride))...)})
		clear(first.Data)
		clear(second.Data)
		if i == 2 {
			givenBack()
		}
	}
	givenBack()
	for _, p := range all {
		got := make([]byte, p.w.buf.Size)
		dev.Submit(kernels.ProgramFunc(func(o kernels.Ops) { o.Download(got, p.w.buf) }))
		if err := dev.Wait(dev.Mark()); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, p.want) {
			t.Errorf("[%d, %d]: other bytes on the device", p.w.rows, p.w.cols)
		}
	}
}

// A file that became shorter while it was mapped is an error, and leaves no memory behind.
func TestPackOfAShorterFile(t *testing.T) {
	dev := openFor(t, kernels.BF16).(*Device)
	defer dev.Close()
	const rows, cols = 4096, 512
	f, err := os.Create(filepath.Join(t.TempDir(), "weights"))
	if err == nil {
		defer f.Close()
		err = f.Truncate(rows * cols * 2)
	}
	if err != nil {
		t.Fatal(err)
	}
	data, err := unix.Mmap(int(f.Fd()), 0, rows*cols*2, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(data)
	if err := f.Truncate(rows * cols); err != nil {
		t.Fatal(err)
	}
	spec := kernels.WeightSpec{Name: "w", Parts: []kernels.HostTensor{{Name: "w", DType: kernels.BF16, Shape: []int{rows, cols}, Data: data}}}
	before, _ := dev.MemoryTaken()
	if _, err := dev.Pack(spec); err == nil || !strings.Contains(err.Error(), "was it changed?") || strings.Contains(err.Error(), "\n") {
		t.Errorf("packed, or not one line: %v", err)
	}
	if after, _ := dev.MemoryTaken(); after != before {
		t.Errorf("%d bytes of device memory, %d before", after, before)
	}
}

func noise(seed uint64, n int) []byte {
	b, r := make([]byte, n), rand.NewPCG(seed, 1)
	for i := 0; i < n; i += 8 {
		v := r.Uint64()
		for j := range min(8, n-i) {
			b[i+j] = byte(v >> (8 * j))
		}
	}
	return b
}

// padded is data with zeros behind each row.
func padded(data []byte, rows, stride int) []byte {
	out, size := make([]byte, rows*stride), len(data)/rows
	for i := range rows {
		copy(out[i*stride:], data[i*size:(i+1)*size])
	}
	return out
}
