// What all kernels share: parameter types, element types, launch order, reductions.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cstdint>

using bf16 = __nv_bfloat16;

// A kernel takes one struct by value: PARAMS(Norm, p).
#define PARAMS(type, name) const __grid_constant__ type name

// A matrix: element (i, j) at p + i * stride + j.
struct Mat {
  uint64_t p;
  int64_t stride;
};

template <typename T>
__device__ __forceinline__ T* row_of(const Mat& m, int64_t i) {
  return reinterpret_cast<T*>(m.p) + i * m.stride;
}
template <typename T>
__device__ __forceinline__ T* at(uint64_t p) {
  return reinterpret_cast<T*>(p);
}

// Brings the line of an address into the L2 cache.
__device__ __forceinline__ void prefetch_l2(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

// Launch order. Every launch is allowed to start before the one in front has ended; pdl_wait returns when everything in
// front is done and visible. Only constants (weights) may be read before it, and nothing written.
__device__ __forceinline__ void pdl_trigger() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
__device__ __forceinline__ void pdl_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void pdl_begin() {
  pdl_trigger();
  pdl_wait();
}

// Trouble: what a kernel finds wrong in its data. The first report wins.
enum { TROUBLE_EMBED = 1, TROUBLE_EXPERT, TROUBLE_PAGE };
__device__ inline void report(uint64_t trouble, uint32_t code, int value) {
  volatile uint32_t* word = at<volatile uint32_t>(trouble);
  word[1] = (uint32_t)value;
  __threadfence_system();
  word[0] = code;
}

// Element types, numbered as kernels.DType.
enum { F32 = 1, F16 = 2, BF16 = 3, F8E4M3 = 4, F8E5M2 = 5 };

__device__ __forceinline__ float widen(float v) { return v; }
__device__ __forceinline__ float widen(bf16 v) { return __bfloat162float(v); }
__device__ __forceinline__ float widen(__half v) { return __half2float(v); }
template <typename T>
__device__ __forceinline__ T narrow(float v);
template <>
__device__ __forceinline__ float narrow<float>(float v) {
  return v;
}
template <>
__device__ __forceinline__ bf16 narrow<bf16>(float v) {
  return __float2bfloat16_rn(v);
}
template <>
__device__ __forceinline__ __half narrow<__half>(float v) {
  return __float2half_rn(v);
}

// Element i of an array of the given type; exact.
__device__ __forceinline__ float load_as(int dtype, uint64_t p, int64_t i) {
  switch (dtype) {
    case F32: return at<const float>(p)[i];
    case F16: return __half2float(at<const __half>(p)[i]);
    case BF16: return __bfloat162float(at<const bf16>(p)[i]);
    case F8E4M3: return __half2float(__half(__nv_cvt_fp8_to_halfraw(at<const __nv_fp8_storage_t>(p)[i], __NV_E4M3)));
    default: return __half2float(__half(__nv_cvt_fp8_to_halfraw(at<const __nv_fp8_storage_t>(p)[i], __NV_E5M2)));
  }
}
__device__ __forceinline__ void store_as(int dtype, uint64_t p, int64_t i, float v) {
  if (dtype == F32)
    at<float>(p)[i] = v;
  else
    at<bf16>(p)[i] = __float2bfloat16_rn(v);
}

// Eight elements at an address aligned to 16 bytes.
__device__ __forceinline__ void load8(const float* p, float v[8]) {
  float4 a = reinterpret_cast<const float4*>(p)[0], b = reinterpret_cast<const float4*>(p)[1];
  v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}
__device__ __forceinline__ void load8(const bf16* p, float v[8]) {
  uint4 a = *reinterpret_cast<const uint4*>(p);
  uint32_t w[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
  for (int i = 0; i < 4; i++) {
    v[2 * i] = __uint_as_float(w[i] << 16);
    v[2 * i + 1] = __uint_as_float(w[i] & 0xffff0000u);
  }
}
__device__ __forceinline__ void store8(float* p, const float v[8]) {
  reinterpret_cast<float4*>(p)[0] = make_float4(v[0], v[1], v[2], v[3]);
  reinterpret_cast<float4*>(p)[1] = make_float4(v[4], v[5], v[6], v[7]);
}
__device__ __forceinline__ void store8(bf16* p, const float v[8]) {
  uint32_t w[4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    __nv_bfloat162 h = __floats2bfloat162_rn(v[2 * i], v[2 * i + 1]);
    w[i] = *reinterpret_cast<uint32_t*>(&h);
  }
  *reinterpret_cast<uint4*>(p) = make_uint4(w[0], w[1], w[2], w[3]);
}

// Reductions of a warp in a fixed order; every lane gets the result.
__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
  return v;
}
__device__ __forceinline__ double warp_sum(double v) {
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
  return v;
}
__device__ __forceinline__ float warp_max(float v) {
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) v = fmaxf(v, __shfl_xor_sync(~0u, v, o));
  return v;
}

// The sum over a block of up to 1024 threads; space holds 33 floats. Ends with a barrier.
__device__ __forceinline__ float block_sum(float v, float* space) {
  v = warp_sum(v);
  if (threadIdx.x % 32 == 0) space[threadIdx.x / 32] = v;
  __syncthreads();
  if (threadIdx.x < 32) {
    v = warp_sum(threadIdx.x < blockDim.x / 32 ? space[threadIdx.x] : 0.f);
    if (threadIdx.x == 0) space[32] = v;
  }
  __syncthreads();
  return space[32];
}

__device__ __forceinline__ float sigmoid(float x) { return 1.f / (1.f + expf(-x)); }
__device__ __forceinline__ float silu(float x) { return x / (1.f + expf(-x)); }
// The same to about 2^-20 of it, for what becomes bfloat16: a fraction of the instructions.
__device__ __forceinline__ float quick_silu(float x) { return __fdividef(x, 1.f + __expf(-x)); }

__device__ __forceinline__ uint32_t pack_bf16(float x0, float x1) {
  __nv_bfloat162 v = __floats2bfloat162_rn(x0, x1);
  return *reinterpret_cast<uint32_t*>(&v);
}

__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t r;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return r;
}
