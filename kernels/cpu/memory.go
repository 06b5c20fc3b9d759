package cpu

import (
	"fmt"
	"unsafe"

	"reprise/kernels"
)

// alignment of allocations, bytes.
const alignment = 256

// memory remembers what is allocated, to return all of it in the end.
type memory struct {
	blocks map[uintptr][]byte // by address; what the system gave
}

func newMemory() memory { return memory{make(map[uintptr][]byte)} }

func (m *memory) alloc(bytes int64) (kernels.Buffer, error) {
	if bytes < 0 {
		return kernels.Buffer{}, fmt.Errorf("cpu: allocate %d bytes", bytes)
	}
	if bytes == 0 {
		return kernels.Buffer{}, nil
	}
	block, err := m.allocHost(bytes)
	if err != nil {
		return kernels.Buffer{}, err
	}
	return kernels.Buffer{Addr: uintptr(unsafe.Pointer(unsafe.SliceData(block))), Size: bytes}, nil
}

// allocHost is alloc as the host sees the memory; there are bytes at least 1.
func (m *memory) allocHost(bytes int64) ([]byte, error) {
	block, err := mapMemory(bytes)
	if err != nil {
		return nil, fmt.Errorf("cpu: allocate %d bytes: %w (%v)", bytes, kernels.ErrOutOfMemory, err)
	}
	start := uintptr(unsafe.Pointer(unsafe.SliceData(block)))
	addr := (start + alignment - 1) &^ (alignment - 1)
	m.blocks[addr] = block
	skip := int64(addr - start)
	return block[skip : skip+bytes : skip+bytes], nil
}

func (m *memory) free(b kernels.Buffer) {
	block, ok := m.blocks[b.Addr]
	if !ok {
		panic(fmt.Sprintf("cpu: free of %#x, which is not allocated", b.Addr))
	}
	delete(m.blocks, b.Addr)
	if err := unmapMemory(block); err != nil {
		panic(fmt.Sprintf("cpu: free of %#x: %v", b.Addr, err))
	}
}

func (m *memory) close() error {
	for addr, block := range m.blocks {
		delete(m.blocks, addr)
		if err := unmapMemory(block); err != nil {
			return fmt.Errorf("cpu: return memory: %w", err)
		}
	}
	return nil
}

// largeHost is the host memory that is not of the Go heap: there, the memory of swapped-out sequences would make the garbage
// collector wait for a multiple of it. Smaller pieces stay where the race detector sees them.
const largeHost = 1 << 20

// alignedBytes is n zeroed bytes of the Go heap, aligned for every element type.
func alignedBytes(n int64) []byte {
	if n == 0 {
		return []byte{}
	}
	words := make([]uint64, (n+7)/8)
	return unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), n)
}

// memoryUnknown is the estimate where the system does not tell.
const memoryUnknown = 8 << 30
