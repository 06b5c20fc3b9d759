// Package cuda is an NVIDIA GPU of compute capability 9.0 as a kernels.Device, behind the build tag cuda. Without the tag
// only Open exists, and says so.
//
// Here live the device (memory, programs, graphs, faults), one Go file a family of operations that fills parameter structs
// and launches, and src/*.cu with the kernels. Not here: calls into libcuda (driver), the meaning of the operations
// (kernels, kernels/ref).
//
// Adding a kernel. src/FAMILY.cu becomes fatbin/FAMILY.fatbin by `make fatbins`; all of fatbin/ is embedded, each file is
// a module. A kernel is extern "C", takes one struct by value (const __grid_constant__ P p) whose Go twin has the same
// layout (uint64 addresses first, then 4-byte fields; no padding in between), and starts with pdl_begin() (src/common.cuh):
// every kernel is launched early, so nothing another launch wrote may be touched before it. Weights may be loaded earlier,
// but by ld.relaxed.gpu, cp.async or bulk copies: ptxas moves plain and .nc loads behind griddepcontrol.wait. A family is a Go struct of
// driver.Function fields with a load method (see dense.go) that names its kernels; Open calls load, so a missing kernel is
// an error there. A method of ops calls o.enter, must(p.Validate()) and launch. Kernels that exist once an activation type
// are named NAME_bf16 and NAME_f32. Programs are captured: all grid sizes come from host-known counts, rows that do not
// count return early, nothing is allocated or looked up at launch; scratch memory is taken at load (ops.scratch).
// What a kernel finds wrong in its data it writes to the trouble word (report in common.cuh): Wait makes a Fault of it.
package cuda
