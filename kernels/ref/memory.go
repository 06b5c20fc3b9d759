package ref

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"unsafe"

	"reprise/kernels"
)

// capacity bounds what one device hands out.
const capacity = 16 << 30

// memory is allocations in order of address. Buffers are resolved by search, so that a buffer outside of every
// allocation panics.
type memory struct {
	allocations []allocation
	used        int64
}

type allocation struct {
	addr uintptr
	data []byte
	keep []byte // data and its alignment padding
}

const alignment = 256

// MemoryFree is what is left of the capacity.
func (m *memory) MemoryFree() int64 { return capacity - m.used }

// Alloc returns zeroed memory.
func (m *memory) Alloc(bytes int64) (kernels.Buffer, error) {
	if bytes < 0 || bytes > m.MemoryFree() {
		return kernels.Buffer{}, fmt.Errorf("ref: %d bytes: %w", bytes, kernels.ErrOutOfMemory)
	}
	keep := make([]byte, bytes+alignment)
	base := uintptr(unsafe.Pointer(&keep[0]))
	pad := -base % alignment
	a := allocation{base + pad, keep[pad : int64(pad)+bytes], keep}
	m.allocations = slices.Insert(m.allocations, m.after(a.addr), a)
	m.used += bytes
	return kernels.Buffer{Addr: a.addr, Size: bytes}, nil
}

// Free forgets an allocation.
func (m *memory) Free(b kernels.Buffer) {
	i := m.after(b.Addr) - 1
	if i < 0 || m.allocations[i].addr != b.Addr || int64(len(m.allocations[i].data)) != b.Size {
		panic(fmt.Sprintf("ref: free of %#x+%d, which is no allocation", b.Addr, b.Size))
	}
	m.used -= b.Size
	m.allocations = slices.Delete(m.allocations, i, i+1)
}

// after is the number of allocations that start at addr or below.
func (m *memory) after(addr uintptr) int {
	i, found := slices.BinarySearchFunc(m.allocations, addr, func(a allocation, addr uintptr) int {
		return int(int64(a.addr) - int64(addr))
	})
	if found {
		i++
	}
	return i
}

// bytes is the memory of b.
func (m *memory) bytes(b kernels.Buffer) []byte {
	if b.Nil() {
		return nil
	}
	if i := m.after(b.Addr) - 1; i >= 0 {
		a := m.allocations[i]
		if off := int64(b.Addr - a.addr); off+b.Size <= int64(len(a.data)) {
			return a.data[off : off+b.Size]
		}
	}
	panic(fmt.Sprintf("ref: buffer %#x+%d is outside of every allocation", b.Addr, b.Size))
}

// ints is an i32 array.
type ints []byte

func (m *memory) ints(b kernels.Buffer) ints { return ints(m.bytes(b)) }

func (s ints) at(i int) int       { return int(int32(binary.LittleEndian.Uint32(s[4*i:]))) }
func (s ints) set(i, v int)       { binary.LittleEndian.PutUint32(s[4*i:], uint32(int32(v))) }
func (s ints) bit(i int) bool     { return s.at(i/32)>>(i%32)&1 == 1 }
func (s ints) word(i int) float32 { return math.Float32frombits(uint32(s.at(i))) }

// values is an array of floating-point numbers as stored.
type values struct {
	dtype kernels.DType
	data  []byte
}

// at widens element i.
func (v values) at(i int) float64 {
	switch v.dtype {
	case kernels.F32:
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(v.data[4*i:])))
	case kernels.F16:
		return float64(kernels.F16ToF32(binary.LittleEndian.Uint16(v.data[2*i:])))
	case kernels.BF16:
		return float64(kernels.BF16ToF32(binary.LittleEndian.Uint16(v.data[2*i:])))
	case kernels.F8E4M3:
		return float64(kernels.F8E4M3ToF32(v.data[i]))
	case kernels.F8E5M2:
		return float64(kernels.F8E5M2ToF32(v.data[i]))
	}
	panic("ref: " + v.dtype.String() + " is no floating-point type")
}

// set rounds x into element i; float16 saturates.
func (v values) set(i int, x float64) {
	f := float32(x)
	switch v.dtype {
	case kernels.F32:
		binary.LittleEndian.PutUint32(v.data[4*i:], math.Float32bits(f))
	case kernels.F16:
		if f == f {
			f = min(max(f, -65504), 65504)
		}
		binary.LittleEndian.PutUint16(v.data[2*i:], kernels.F32ToF16(f))
	case kernels.BF16:
		binary.LittleEndian.PutUint16(v.data[2*i:], kernels.F32ToBF16(f))
	case kernels.F8E4M3:
		v.data[i] = kernels.F32ToF8E4M3(f)
	default:
		panic("ref: cannot store " + v.dtype.String())
	}
}

// row is a run of stored numbers, loaded and stored as a whole.
type row[F real] struct{ values }

func (r row[F]) load(n int) []F {
	out := make([]F, n)
	for i := range out {
		out[i] = F(r.at(i))
	}
	return out
}

func (r row[F]) store(x []F) {
	for i, v := range x {
		r.set(i, float64(v))
	}
}

// floats loads the first n elements of a float32 array; nil for a buffer that is absent.
func (o ops[F]) floats(b kernels.Buffer, n int) []F {
	if b.Nil() {
		return nil
	}
	return row[F]{values{kernels.F32, o.bytes(b)}}.load(n)
}

// matrix is a matrix resolved to memory.
type matrix[F real] struct {
	kernels.Mat
	data []byte
}

func (o ops[F]) matrix(m kernels.Mat) matrix[F] { return matrix[F]{m, o.bytes(m.Buf)} }

func (m matrix[F]) row(i int) row[F] {
	size := m.DType.Size()
	from := i * m.Stride * size
	return row[F]{values{m.DType, m.data[from : from+m.Cols*size]}}
}

func (m matrix[F]) get(i int) []F { return m.row(i).load(m.Cols) }

func (m matrix[F]) put(i int, x []F) { m.row(i).store(x) }

func (m matrix[F]) zero(i int) { m.put(i, make([]F, m.Cols)) }
