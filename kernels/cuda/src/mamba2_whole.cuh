// What a Mamba-2 step in one kernel does around the state: the convolution of a block's channels, and the gated norm over
// a cluster of blocks that has the heads of a group.
#pragma once
#include "convolve.cuh"
#include "mamba2.cuh"

namespace mamba2 {

// ---------------------------------------------------------------- clusters
__device__ __forceinline__ void cluster_started() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
// Into the shared memory of a block of the cluster.
__device__ __forceinline__ void store_remote(float* p, uint32_t rank, float v) {
  asm volatile("{\n .reg .b32 a;\n mapa.shared::cluster.u32 a, %0, %1;\n st.shared::cluster.f32 [a], %2;\n}" ::"r"(smem_addr(p)), "r"(rank), "f"(v) : "memory");
}

// ---------------------------------------------------------------- convolution
// The pieces of eight channels of a block: x of its heads, B and C of its group.
template <class C>
struct Pieces {
  static constexpr int X = C::HPC * C::P / 8, B = KEYS / 8, COUNT = X + 2 * B;
  const Mamba2& p;
  const int group, head0;
  __device__ int channel(int i) const {
    const int bc = i - X;
    return i < X ? head0 * C::P + i * 8 : p.inner() + (bc < B ? 0 : p.bc()) + group * KEYS + bc % B * 8;
  }
  // A convolved piece of token t into shared memory (plain: rows of C) and records. first: this block keeps the group's B and C.
  __device__ void keep(const ConvRow& r, int i, int t, const float (&y)[8], uint4 raw, bool first, uint32_t* plain, uint32_t* keys, uint8_t* xs) const {
    const uint4 v = make_uint4(pack_bf16(y[0], y[1]), pack_bf16(y[2], y[3]), pack_bf16(y[4], y[5]), pack_bf16(y[6], y[7]));
    if (i < X) {
      *reinterpret_cast<uint4*>(xs + (C::W + t) * C::X_ROW + i * 16) = v;
      *reinterpret_cast<uint4*>(r.record<bf16>(p.state, p.state.x, t, p.inner()) + channel(i)) = v;
    } else if (i < X + B) {
      store_key_piece(keys, C::W + t, i - X, v);
      if (first) *reinterpret_cast<uint4*>(r.record<bf16>(p.state, p.state.b, t, p.bc()) + channel(i) - p.inner()) = v;
    } else {
      *reinterpret_cast<uint4*>(plain + t * KEY_WORDS + (i - X - B) * 4) = v;
    }
    if (i < X || first) *r.raw(p.state, t, p.conv(), channel(i)) = raw;
  }
};

// ---------------------------------------------------------------- gated norm
// Outputs of tokens from `from` of the block's heads become zero.
template <class C>
__device__ __forceinline__ void clear_row(const Mamba2& p, int row, int from, int head0) {
  constexpr int PIECES = C::HPC * C::P / 8;
  for (int i = threadIdx.x; i < (p.rows.t - from) * PIECES; i += C::THREADS)
    *reinterpret_cast<uint4*>(row_of<bf16>(p.out, p.rows.first + row * p.rows.t + from + i / PIECES) + head0 * C::P + i % PIECES * 8) = make_uint4(0, 0, 0, 0);
}

// The norm, over the cluster, of y silu(z); y lies in the new rows of xs. A warp has a token, a lane eight columns of it.
template <class C>
__device__ void block_norm(const Mamba2& p, const uint8_t* xs, const uint32_t* gates, float* sums, int row, int n, int head0) {
  constexpr int PIECES = C::HPC * C::P / 8, PER_LANE = (PIECES + 31) / 32, TOKENS = (C::T + C::WARPS - 1) / C::WARPS;
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, ranks = gridDim.x, size = p.inner() / p.groups;
  float y[TOKENS][PER_LANE][8], w[PER_LANE][8];
  __syncthreads();
  cluster_wait();  // all blocks of the cluster have started
#pragma unroll
  for (int i = 0; i < TOKENS; i++) {
    const int t = warp + i * C::WARPS;
    if (t >= n) break;
    float sum = 0.f;
#pragma unroll
    for (int j = 0; j < PER_LANE; j++) {
      const int piece = lane + 32 * j;
      if (piece >= PIECES) break;
      float z[8];
      load8(reinterpret_cast<const bf16*>(xs + (C::W + t) * C::X_ROW) + piece * 8, y[i][j]);
      load8(reinterpret_cast<const bf16*>(gates) + (t * PIECES + piece) * 8, z);
#pragma unroll
      for (int e = 0; e < 8; e++) y[i][j][e] *= quick_silu(z[e]), sum = fmaf(y[i][j][e], y[i][j][e], sum);
    }
    sum = warp_sum(sum);
    if (lane < ranks) store_remote(sums + cluster_rank() * 8 + t, lane, sum);
  }
#pragma unroll
  for (int j = 0; j < PER_LANE; j++)
    if (lane + 32 * j < PIECES) load8(at<const float>(p.norm_w) + head0 * C::P + (lane + 32 * j) * 8, w[j]);
  cluster_arrive();
  cluster_wait();
#pragma unroll
  for (int i = 0; i < TOKENS; i++) {
    const int t = warp + i * C::WARPS;
    if (t >= n) break;
    const float scale = rsqrtf(warp_sum(lane < ranks ? sums[lane * 8 + t] : 0.f) / size + p.eps);
    bf16* const out = row_of<bf16>(p.out, p.rows.first + row * p.rows.t + t) + head0 * C::P;
#pragma unroll
    for (int j = 0; j < PER_LANE; j++) {
      if (lane + 32 * j >= PIECES) break;
#pragma unroll
      for (int e = 0; e < 8; e++) y[i][j][e] *= scale * w[j][e];
      store8(out + (lane + 32 * j) * 8, y[i][j]);
    }
  }
  clear_row<C>(p, row, n, head0);
}

}  // namespace mamba2
