package kernels

import "fmt"

// Buffer is a range of one device's memory. Only the device that allocated it may look inside; everyone else may
// cut it. On the CPU Addr is the address of memory outside the Go heap.
type Buffer struct {
	Addr uintptr
	Size int64 // bytes
}

// Nil reports whether b holds nothing.
func (b Buffer) Nil() bool { return b.Size == 0 }

// Slice is the part of b that starts at byte off and is size bytes long.
func (b Buffer) Slice(off, size int64) Buffer {
	if off < 0 || size < 0 || off+size > b.Size {
		panic(fmt.Sprintf("kernels: slice %d+%d of a buffer of %d bytes", off, size, b.Size))
	}
	return Buffer{b.Addr + uintptr(off), size}
}

// Mat is a row-major matrix in device memory; row i starts Stride elements after row i-1.
type Mat struct {
	Buf        Buffer
	Rows, Cols int
	Stride     int // elements, >= Cols
	DType      DType
}

// NewMat lays a dense rows x cols matrix over the start of b.
func NewMat(b Buffer, t DType, rows, cols int) Mat {
	return Mat{b.Slice(0, int64(rows)*int64(cols)*int64(t.Size())), rows, cols, cols, t}
}

// Nil reports whether m is absent.
func (m Mat) Nil() bool { return m.Buf.Nil() }

// RowRange is rows [from, from+n) of m.
func (m Mat) RowRange(from, n int) Mat {
	if from < 0 || n < 0 || from+n > m.Rows {
		panic(fmt.Sprintf("kernels: rows %d+%d of %d", from, n, m.Rows))
	}
	if n == 0 {
		return Mat{Buf: Buffer{m.Buf.Addr, 0}, Cols: m.Cols, Stride: m.Stride, DType: m.DType}
	}
	size := int64(m.DType.Size())
	off := int64(from) * int64(m.Stride) * size
	m.Buf = m.Buf.Slice(off, (int64(n-1)*int64(m.Stride)+int64(m.Cols))*size)
	m.Rows = n
	return m
}

// ColRange is columns [from, from+n) of m.
func (m Mat) ColRange(from, n int) Mat {
	if from < 0 || n < 0 || from+n > m.Cols {
		panic(fmt.Sprintf("kernels: columns %d+%d of %d", from, n, m.Cols))
	}
	m.Cols = n
	if m.Rows == 0 {
		return m
	}
	size := int64(m.DType.Size())
	m.Buf = m.Buf.Slice(int64(from)*size, (int64(m.Rows-1)*int64(m.Stride)+int64(n))*size)
	return m
}

// HostTensor is a tensor in host memory as a checkpoint stores it (little endian, row-major, not aligned).
type HostTensor struct {
	Name  string
	DType DType
	Shape []int
	Data  []byte
}

// Elements is the product of the shape.
func (t HostTensor) Elements() int {
	n := 1
	for _, d := range t.Shape {
		n *= d
	}
	return n
}
