// Package driver is the CUDA driver as kernels/cuda needs it: one binary that starts with and without libcuda.so.1.
//
// gorgonia.org/cu links against libcuda at build time. Here every driver symbol it or this package uses is a jump through
// a table (trampolines_amd64.S, written by scripts/trampolines.sh) that Load fills from the library found at run time;
// until then each call answers CUDA_ERROR_NOT_FOUND. What gorgonia.org/cu lacks is here too: capture and replay, launches
// with a packed parameter buffer and launch attributes, tensor maps, pinned memory, cuBLASLt by dlopen.
//
// Not here: kernels, memory plans, any policy.
package driver
