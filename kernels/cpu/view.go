package cpu

import (
	"unsafe"

	"reprise/kernels"
)

// view is b as elements of E. Buffers are cut at element boundaries by construction.
func view[E any](b kernels.Buffer) []E {
	if b.Size == 0 {
		return nil
	}
	var e E
	return unsafe.Slice((*E)(pointer(b.Addr)), b.Size/int64(unsafe.Sizeof(e)))
}

// pointer reads an address as a pointer. The memory is outside the Go heap, or kept alive by the device, and never
// moves.
func pointer(addr uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&addr)) }

func bytesOf(b kernels.Buffer) []byte { return view[byte](b) }
func f32(b kernels.Buffer) []float32  { return view[float32](b) }
func i32(b kernels.Buffer) []int32    { return view[int32](b) }
func u32(b kernels.Buffer) []uint32   { return view[uint32](b) }

// rows is an F32 matrix as Go sees it.
type rows struct {
	data         []float32
	count        int // rows
	cols, stride int
}

func rowsOf(m kernels.Mat) rows { return rows{f32(m.Buf), m.Rows, m.Cols, m.Stride} }

// row is row i.
func (r rows) row(i int) []float32 {
	from := i * r.stride
	return r.data[from : from+r.cols : from+r.cols]
}
