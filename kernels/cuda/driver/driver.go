//go:build cuda

package driver

/*
#cgo linux LDFLAGS: -L${SRCDIR}/lib -ldl -lpthread
#include <cuda.h>
int reprise_driver_load(void);
*/
import "C"

import (
	"fmt"
	"reflect"
	"unsafe"

	"gorgonia.org/cu"
)

// Error is a failed driver call.
type Error struct {
	Call string
	Code int // CUresult
	Text string
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %s (%d)", e.Call, e.Text, e.Code) }

// Sticky reports whether the context is lost: every later call would fail too.
func (e *Error) Sticky() bool {
	switch e.Code {
	case 214, 220, 700, 702, 710, 714, 715, 716, 717, 718, 719, 999:
		return true
	}
	return false
}

// OutOfMemory reports whether an allocation found no room.
func (e *Error) OutOfMemory() bool { return e.Code == 2 }

// failure is nil for success.
func failure(call string, r C.CUresult) error {
	if r == 0 {
		return nil
	}
	var text *C.char
	if C.cuGetErrorString(r, &text) != 0 || text == nil {
		return &Error{call, int(r), "unknown error"}
	}
	return &Error{call, int(r), C.GoString(text)}
}

// named gives an error of gorgonia.org/cu, whose type is not exported, the name of its call.
func named(call string, err error) error {
	if err == nil {
		return nil
	}
	if v := reflect.ValueOf(err); v.CanInt() {
		return failure(call, C.CUresult(v.Int()))
	}
	return fmt.Errorf("%s: %w", call, err)
}

// Load finds the driver and initialises it; later calls repeat the first answer.
func Load() error {
	switch status := C.reprise_driver_load(); status {
	case 0:
		return nil
	case -1:
		return fmt.Errorf("libcuda.so.1 was not found: no NVIDIA driver")
	case -2:
		return fmt.Errorf("libcuda.so.1 lacks cuInit")
	default:
		return failure("cuInit", C.CUresult(status))
	}
}

// GPU is one device with its primary context.
type GPU struct {
	Name       string
	Major      int // compute capability
	Minor      int
	Processors int

	device  cu.Device
	context cu.CUContext
}

// OpenGPU retains the primary context of a device.
func OpenGPU(ordinal int) (*GPU, error) {
	n, err := cu.NumDevices()
	if err != nil {
		return nil, named("cuDeviceGetCount", err)
	}
	if ordinal < 0 || ordinal >= n {
		return nil, fmt.Errorf("device %d of %d", ordinal, n)
	}
	g := &GPU{}
	if g.device, err = cu.GetDevice(ordinal); err != nil {
		return nil, named("cuDeviceGet", err)
	}
	if g.Name, err = g.device.Name(); err != nil {
		return nil, named("cuDeviceGetName", err)
	}
	for attribute, to := range map[cu.DeviceAttribute]*int{cu.ComputeCapabilityMajor: &g.Major, cu.ComputeCapabilityMinor: &g.Minor, cu.MultiprocessorCount: &g.Processors} {
		if *to, err = g.device.Attribute(attribute); err != nil {
			return nil, named("cuDeviceGetAttribute", err)
		}
	}
	g.context, err = g.device.RetainPrimaryCtx()
	return g, named("cuDevicePrimaryCtxRetain", err)
}

// Use makes the GPU's context current on the calling thread.
func (g *GPU) Use() error { return named("cuCtxSetCurrent", cu.SetCurrentContext(g.context)) }

// Close releases the primary context.
func (g *GPU) Close() error {
	return named("cuDevicePrimaryCtxRelease", g.device.ReleasePrimaryCtx())
}

// MemoryInfo is the free and the whole memory in bytes.
func MemoryInfo() (free, total int64, err error) {
	free, total, err = cu.MemInfo()
	return free, total, named("cuMemGetInfo", err)
}

// Alloc returns device memory, 256-byte aligned, of undefined content.
func Alloc(bytes int64) (uintptr, error) {
	p, err := cu.MemAlloc(bytes)
	return uintptr(p), named("cuMemAlloc", err)
}

// Free returns memory of Alloc; it waits for the device.
func Free(p uintptr) error { return named("cuMemFree", cu.MemFree(cu.DevicePtr(p))) }

// AllocHost returns pinned memory that kernels may address too.
func AllocHost(bytes int64) ([]byte, error) {
	var p unsafe.Pointer
	if err := failure("cuMemHostAlloc", C.cuMemHostAlloc(&p, C.size_t(bytes), C.CU_MEMHOSTALLOC_PORTABLE|C.CU_MEMHOSTALLOC_DEVICEMAP)); err != nil {
		return nil, err
	}
	return unsafe.Slice((*byte)(p), bytes), nil
}

// FreeHost returns memory of AllocHost.
func FreeHost(b []byte) error {
	return named("cuMemFreeHost", cu.MemFreeHost(unsafe.Pointer(unsafe.SliceData(b))))
}
