//go:build cuda

package cuda

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"unsafe"

	"reprise/kernels"
	"reprise/kernels/cuda/driver"
)

// stagingBytes is the pinned memory that copies of Go memory pass through in programs.
const stagingBytes = 32 << 20

// memory owns all memory of a device.
type memory struct {
	stream  driver.Stream
	blocks  map[uintptr]int64
	pinned  [][]byte // what allocHost gave
	staging []byte
	used    int // bytes of staging that the stream may still read
	trouble trouble
}

func (m *memory) open(s driver.Stream) (err error) {
	m.stream, m.blocks = s, make(map[uintptr]int64)
	if m.staging, err = driver.AllocHost(stagingBytes); err != nil {
		return err
	}
	if m.trouble.word, err = driver.AllocHost(16); err != nil {
		return err
	}
	clear(m.trouble.word)
	return nil
}

func (m *memory) alloc(bytes int64) (kernels.Buffer, error) {
	if bytes < 0 {
		return kernels.Buffer{}, fmt.Errorf("cuda: allocate %d bytes", bytes)
	}
	if bytes == 0 {
		return kernels.Buffer{}, nil
	}
	p, err := driver.Alloc(bytes)
	if err == nil {
		m.blocks[p] = bytes
		if err = m.stream.Clear(p, bytes); err == nil {
			return kernels.Buffer{Addr: p, Size: bytes}, nil
		}
	}
	var failed *driver.Error
	if errors.As(err, &failed) && (failed.OutOfMemory() || failed.Code == 1) { // more than the address space: invalid value
		return kernels.Buffer{}, fmt.Errorf("cuda: allocate %d bytes: %w (%v)", bytes, kernels.ErrOutOfMemory, err)
	}
	return kernels.Buffer{}, fmt.Errorf("cuda: allocate %d bytes: %w", bytes, err)
}

func (m *memory) free(b kernels.Buffer) error {
	if m.blocks[b.Addr] != b.Size {
		panic(fmt.Sprintf("cuda: free of %d bytes at %#x, which are not allocated", b.Size, b.Addr))
	}
	delete(m.blocks, b.Addr)
	if err := m.stream.Synchronize(); err != nil {
		return err
	}
	return driver.Free(b.Addr)
}

func (m *memory) allocHost(bytes int64) ([]byte, error) {
	if bytes < 0 {
		return nil, fmt.Errorf("cuda: allocate %d bytes of host memory", bytes)
	}
	if bytes == 0 {
		return []byte{}, nil
	}
	b, err := driver.AllocHost(bytes)
	if err != nil {
		return nil, fmt.Errorf("cuda: allocate %d bytes of host memory: %w (%v)", bytes, kernels.ErrOutOfMemory, err)
	}
	clear(b)
	m.pinned = append(m.pinned, b)
	return b, nil
}

// hosted is all pinned memory; parts that could not be opened are nil.
func (m *memory) hosted() [][]byte { return append(slices.Clip(m.pinned), m.staging, m.trouble.word) }

// taken is what was asked for and not freed.
func (m *memory) taken() (device, pinned int64) {
	for _, bytes := range m.blocks {
		device += bytes
	}
	for _, b := range m.hosted() {
		pinned += int64(len(b))
	}
	return device, pinned
}

// isPinned reports whether copies of b may be asynchronous.
func (m *memory) isPinned(b []byte) bool {
	at := address(b)
	for _, p := range m.pinned {
		if from := address(p); at >= from && at+uintptr(len(b)) <= from+uintptr(len(p)) {
			return true
		}
	}
	return false
}

// stage returns n bytes of staging memory that nothing in the stream uses, n <= stagingBytes.
func (m *memory) stage(n int) ([]byte, error) {
	if m.used+n > len(m.staging) {
		if err := m.stream.Synchronize(); err != nil {
			return nil, err
		}
		m.used = 0
	}
	b := m.staging[m.used : m.used+n]
	m.used += (n + 255) &^ 255
	return b, nil
}

func (m *memory) close() error {
	var list []error
	for p := range m.blocks {
		list = append(list, driver.Free(p))
	}
	for _, p := range m.hosted() {
		if p != nil {
			list = append(list, driver.FreeHost(p))
		}
	}
	*m = memory{}
	return errors.Join(list...)
}

// trouble is what a kernel found wrong in its data: a code and a value, in pinned memory that kernels write.
type trouble struct{ word []byte }

// Codes that kernels report; src/common.cuh has the same.
const (
	troubleEmbed = 1 + iota
	troubleExpert
	troublePage
)

// addr is where kernels write.
func (t *trouble) addr() uint64 { return uint64(address(t.word)) }

// take returns what was reported since the last call.
func (t *trouble) take() *kernels.Fault {
	code := (*uint32)(unsafe.Pointer(unsafe.SliceData(t.word)))
	n := atomic.LoadUint32(code)
	if n == 0 {
		return nil
	}
	value := int32(binary.LittleEndian.Uint32(t.word[4:]))
	atomic.StoreUint32(code, 0)
	switch n {
	case troubleEmbed:
		return &kernels.Fault{Op: "Embed", Cause: fmt.Sprintf("token %d is not in the table", value)}
	case troubleExpert:
		return &kernels.Fault{Op: "Experts", Cause: fmt.Sprintf("expert %d does not exist", value)}
	case troublePage:
		return &kernels.Fault{Op: "Attend", Cause: fmt.Sprintf("page %d does not exist", value)}
	}
	return &kernels.Fault{Cause: fmt.Sprintf("trouble %d, value %d", n, value)}
}
