// The order of tokens by logit: place = (logit as ordered bits, inverted id), so that a larger place is a larger logit or
// an equal one with a lower id.
#pragma once
#include "common.cuh"

constexpr uint32_t KEY_MINUS_INFINITY = 0x007fffff;

__device__ __forceinline__ uint32_t key_of(float v) {
  uint32_t u = __float_as_uint(v);
  return u & 0x80000000u ? ~u : u | 0x80000000u;
}
__device__ __forceinline__ float logit_of(uint32_t key) { return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key); }
__device__ __forceinline__ uint64_t place_of(float v, int id) { return (uint64_t)key_of(v) << 32 | (uint32_t)~id; }
__device__ __forceinline__ int id_of(uint64_t place) { return (int)~(uint32_t)place; }

// A logit as it is compared: NaN is -Inf, -0 is 0.
__device__ __forceinline__ float comparable(float v) { return isnan(v) ? -INFINITY : v + 0.f; }

__device__ __forceinline__ uint64_t warp_best(uint64_t place) {
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) {
    uint64_t other = __shfl_xor_sync(~0u, place, o);
    place = other > place ? other : place;
  }
  return place;
}
