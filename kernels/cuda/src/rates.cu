// What the memory and the tensor cores reach: a stream that reads 16 bytes for each byte it writes, and random numbers.
#include "common.cuh"

struct Stream {
  uint64_t from, to;
  int64_t groups;  // of 16 x 16 bytes
};
extern "C" __global__ void __launch_bounds__(512) stream_read(PARAMS(Stream, p)) {
  pdl_begin();
  // A block reads 16 runs of 512 x 16 bytes, a thread one piece of each.
  for (int64_t g = blockIdx.x; g * 512 < p.groups; g += gridDim.x) {
    const uint4* from = at<const uint4>(p.from) + g * 512 * 16 + threadIdx.x;
    uint4 v[16], sum = {};
#pragma unroll
    for (int i = 0; i < 16; i++) v[i] = __ldcs(from + i * 512);
#pragma unroll
    for (int i = 0; i < 16; i++) sum.x ^= v[i].x, sum.y ^= v[i].y, sum.z ^= v[i].z, sum.w ^= v[i].w;
    at<uint4>(p.to)[g * 512 + threadIdx.x] = sum;
  }
}

struct Noise {
  uint64_t to;
  int64_t n;  // bf16 numbers
};
extern "C" __global__ void __launch_bounds__(256) noise(PARAMS(Noise, p)) {
  pdl_begin();
  for (int64_t i = blockIdx.x * 256ll + threadIdx.x; i < p.n; i += gridDim.x * 256ll) {
    uint32_t h = (uint32_t)i * 2654435761u + 12345u;
    h = (h ^ h >> 15) * 2246822519u;
    h = (h ^ h >> 13) * 3266489917u;
    at<bf16>(p.to)[i] = __float2bfloat16_rn((int)(h ^ h >> 16) * (1.f / 2147483648.f));
  }
}
