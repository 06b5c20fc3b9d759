// What the kernels of products share: their parameters, loads of tokens, the mma, clusters.
#pragma once
#include "instructions.cuh"

struct Linear {
  Mat x, y;
  uint64_t w;
  int64_t bytes;  // of a row of w
  int m, n, k;
  int wtype, xtype, ytype, add;
  int aligned;  // rows of x start at multiples of 16 bytes
  uint64_t norm;  // f32 [k]: factors of the norm before the product, for NORMED kernels
  float eps;
  int act;  // ACT_*: what lies behind the product, of NORMED kernels
  int rows, pass;  // of streams: outputs a cluster, and at once
};
enum { ACT_NONE = -1, ACT_SILU_MUL = 0, ACT_RELU2 = 1 };

__device__ __forceinline__ uint32_t pair(const bf16* x, int i, int end) {
  uint32_t lo = i < end ? __bfloat16_as_ushort(x[i]) : 0, hi = i + 1 < end ? __bfloat16_as_ushort(x[i + 1]) : 0;
  return lo | hi << 16;
}

// Columns k .. k+7 of a token; zeros beyond the end and for no token.
__device__ __forceinline__ uint4 load_token(const bf16* x, bool exists, int k, int end, bool aligned) {
  if (!exists || k >= end) return make_uint4(0, 0, 0, 0);
  if (aligned && k + 8 <= end) return *reinterpret_cast<const uint4*>(x + k);
  return make_uint4(pair(x, k, end), pair(x, k + 2, end), pair(x, k + 4, end), pair(x, k + 6, end));
}

__device__ __forceinline__ void cluster_barrier() {
  __syncwarp();
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
__device__ __forceinline__ float load_remote(uint32_t shared, uint32_t rank) {
  uint32_t a;
  float v;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(a) : "r"(shared), "r"(rank));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(a) : "memory");
  return v;
}

// The sums of a warp's slice into shared memory, [tokens][STRIDE]; c: accumulators of RT tiles of 16 rows, NT of 8 tokens.
template <int NT, int RT, int STRIDE>
__device__ __forceinline__ void leave_sums(float* mine, const float (&c)[RT][NT][4], int lane) {
  const int g = lane / 4, t = lane % 4;
#pragma unroll
  for (int r = 0; r < RT; r++)
#pragma unroll
    for (int j = 0; j < NT; j++)
#pragma unroll
      for (int i = 0; i < 4; i++) mine[(j * 8 + 2 * t + i % 2) * STRIDE + r * 16 + g + i / 2 * 8] = c[r][j][i];
}
