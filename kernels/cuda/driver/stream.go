//go:build cuda

package driver

/*
#include <cuda.h>
#cgo noescape reprise_launch
#cgo nocallback reprise_launch
static CUresult reprise_launch(CUfunction f, const unsigned *grid, const unsigned *block, unsigned shared, unsigned cluster,
                               int early, int aligned, int together, CUstream stream, void *parameters, size_t bytes) {
  CUlaunchAttribute attributes[3];
  CUlaunchConfig c = {0};
  c.gridDimX = grid[0], c.gridDimY = grid[1], c.gridDimZ = grid[2];
  c.blockDimX = block[0], c.blockDimY = block[1], c.blockDimZ = block[2];
  c.sharedMemBytes = shared, c.hStream = stream, c.attrs = attributes;
  if (cluster > 1) {
    CUlaunchAttribute *a = &attributes[c.numAttrs++];
    a->id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    a->value.clusterDim.x = cluster, a->value.clusterDim.y = 1, a->value.clusterDim.z = 1;
  }
  if (early) {
    CUlaunchAttribute *a = &attributes[c.numAttrs++];
    a->id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    a->value.programmaticStreamSerializationAllowed = 1;
  }
  if (together) {
    CUlaunchAttribute *a = &attributes[c.numAttrs++];
    a->id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
    a->value.cooperative = 1;
  }
  void *list[] = {parameters}, *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, parameters, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END};
  return aligned ? cuLaunchKernelEx(&c, f, list, 0) : cuLaunchKernelEx(&c, f, 0, extra);
}
static CUresult reprise_capture_end(CUstream stream, CUgraphExec *out) {
  CUgraph graph = 0;
  CUresult r = cuStreamEndCapture(stream, &graph);
  if (r) return r;
  if (!graph) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  r = cuGraphInstantiateWithFlags(out, graph, 0);
  cuGraphDestroy(graph);
  return r ? r : cuGraphUpload(*out, stream);
}
static CUresult reprise_shared(CUfunction f, int bytes) {
  CUresult r = cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, bytes);
  if (r) return r;
  return cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, CU_SHAREDMEM_CARVEOUT_MAX_SHARED);
}
static CUresult reprise_wide_clusters(CUfunction f) {
  return cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1);
}
*/
import "C"

import (
	"unsafe"

	"gorgonia.org/cu"
)

// Stream is an in-order queue of device work.
type Stream struct{ s cu.Stream }

func (s Stream) c() C.CUstream { return C.CUstream(unsafe.Pointer(s.s.C())) }

// NewStream makes a stream that does not wait for the default one.
func NewStream() (Stream, error) {
	s, err := cu.MakeStream(cu.NonBlocking)
	return Stream{s}, named("cuStreamCreate", err)
}

// Destroy ends the stream when its work is done.
func (s *Stream) Destroy() error { return named("cuStreamDestroy", s.s.Destroy()) }

// Synchronize waits for everything enqueued.
func (s Stream) Synchronize() error { return named("cuStreamSynchronize", s.s.Synchronize()) }

// Upload enqueues a copy from pinned memory.
func (s Stream) Upload(dst uintptr, src []byte) error {
	return named("cuMemcpyHtoDAsync", cu.MemcpyHtoDAsync(cu.DevicePtr(dst), unsafe.Pointer(unsafe.SliceData(src)), int64(len(src)), s.s))
}

// Download enqueues a copy to pinned memory.
func (s Stream) Download(dst []byte, src uintptr) error {
	return named("cuMemcpyDtoHAsync", cu.MemcpyDtoHAsync(unsafe.Pointer(unsafe.SliceData(dst)), cu.DevicePtr(src), int64(len(dst)), s.s))
}

// Copy enqueues a copy inside the device.
func (s Stream) Copy(dst, src uintptr, bytes int64) error {
	return named("cuMemcpyDtoDAsync", cu.MemcpyDtoDAsync(cu.DevicePtr(dst), cu.DevicePtr(src), bytes, s.s))
}

// Clear enqueues writing zeros.
func (s Stream) Clear(dst uintptr, bytes int64) error {
	return named("cuMemsetD8Async", cu.MemsetD8Async(cu.DevicePtr(dst), 0, bytes, s.s))
}

// Event is a point in a stream.
type Event struct{ e cu.Event }

// NewEvent makes an event; with timing its times can be subtracted.
func NewEvent(timing bool) (Event, error) {
	flags := cu.DisableTiming
	if timing {
		flags = cu.DefaultEvent
	}
	e, err := cu.MakeEvent(flags)
	return Event{e}, named("cuEventCreate", err)
}

// Destroy gives the event back.
func (e *Event) Destroy() error { return named("cuEventDestroy", cu.DestroyEvent(&e.e)) }

// Record moves the event behind everything enqueued.
func (s Stream) Record(e Event) error { return named("cuEventRecord", e.e.Record(s.s)) }

// Synchronize waits for the event.
func (e Event) Synchronize() error { return named("cuEventSynchronize", e.e.Synchronize()) }

// Milliseconds between two events that have happened.
func (e Event) Milliseconds(until Event) (float64, error) {
	ms, err := e.e.Elapsed(until.e)
	return ms, named("cuEventElapsedTime", err)
}

// Module is loaded machine code.
type Module struct{ m cu.Module }

// LoadModule loads a fatbin or cubin.
func LoadModule(image []byte) (Module, error) {
	m, err := cu.LoadData(string(image))
	return Module{m}, named("cuModuleLoadData", err)
}

// Unload gives the code back.
func (m Module) Unload() error { return named("cuModuleUnload", m.m.Unload()) }

// Function is a kernel.
type Function struct{ f cu.Function }

var _ [unsafe.Sizeof(uintptr(0))]struct{} = [unsafe.Sizeof(cu.Function{})]struct{}{}

func (f Function) c() C.CUfunction { return *(*C.CUfunction)(unsafe.Pointer(&f.f)) }

// Nil reports whether f is no kernel.
func (f Function) Nil() bool { return f.c() == nil }

// Function finds a kernel that may use up to shared bytes of dynamic shared memory, in clusters of up to 16 blocks.
func (m Module) Function(name string, shared int) (Function, error) {
	g, err := m.m.Function(name)
	if err != nil {
		return Function{}, named("cuModuleGetFunction "+name, err)
	}
	f := Function{g}
	if shared > 48<<10 {
		err = failure("cuFuncSetAttribute "+name, C.reprise_shared(f.c(), C.int(shared)))
	}
	if err == nil {
		err = failure("cuFuncSetAttribute "+name, C.reprise_wide_clusters(f.c()))
	}
	return f, err
}

// Config is the shape of a launch.
type Config struct {
	Grid, Block [3]uint32
	Shared      uint32 // bytes of dynamic shared memory
	Cluster     uint32 // blocks a cluster along x; 0 and 1: none
	Early       bool   // may start before the kernel in front has ended: its code waits with griddepcontrol
	Together    bool   // its blocks wait for each other: all run at once, or none starts
	Aligned     bool   // the parameter wants more than 16 bytes of alignment, as tensor maps do: the driver has to place it
}

func flag(b bool) C.int {
	if b {
		return 1
	}
	return 0
}

// Launch enqueues a kernel whose one parameter is the struct of the given bytes. It does not allocate.
func (f Function) Launch(s Stream, c *Config, parameters unsafe.Pointer, bytes uintptr) error {
	r := C.reprise_launch(f.c(), (*C.uint)(unsafe.Pointer(&c.Grid[0])), (*C.uint)(unsafe.Pointer(&c.Block[0])), C.uint(c.Shared), C.uint(c.Cluster),
		flag(c.Early), flag(c.Aligned), flag(c.Together), s.c(), parameters, C.size_t(bytes))
	return failure("cuLaunchKernelEx", r)
}

// Graph is captured work.
type Graph struct{ g C.CUgraphExec }

// BeginCapture makes the stream record instead of run.
func (s Stream) BeginCapture() error {
	return failure("cuStreamBeginCapture", C.cuStreamBeginCapture(s.c(), C.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))
}

// EndCapture ends the recording and makes it ready to run.
func (s Stream) EndCapture() (Graph, error) {
	var g Graph
	err := failure("cuStreamEndCapture", C.reprise_capture_end(s.c(), &g.g))
	return g, err
}

// Replay enqueues captured work.
func (s Stream) Replay(g Graph) error { return failure("cuGraphLaunch", C.cuGraphLaunch(g.g, s.c())) }

// Destroy gives the graph back.
func (g Graph) Destroy() error { return failure("cuGraphExecDestroy", C.cuGraphExecDestroy(g.g)) }
