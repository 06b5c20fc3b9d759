// Two precisions of Gated DeltaNet: the corrections that a flush derives anew (paper B.4).
#pragma once
#include "delta.cuh"
#include "flush_low.cuh"

namespace delta {

// A committed key as a query of query_key.
__device__ __forceinline__ void load_key_query(uint32_t (&q)[16], const uint32_t* keys, int row, int c) {
#pragma unroll
  for (int i = 0; i < 8; i++) q[2 * i] = keys[row * KEY_WORDS + i * 8 + c], q[2 * i + 1] = keys[row * KEY_WORDS + i * 8 + 4 + c];
}


// Inner products of the committed keys, [W][W]; by all warps of the block.
template <class C>
__device__ void couple(float* couplings, const uint32_t* keys, RecordRows<C::W> rows, int warp, int lane) {
  constexpr int W = C::W, MT = W / 8;
  const int g = lane >> 2, c = lane & 3;
  for (int group = warp; group < MT; group += C::WARPS) {
    uint32_t q[1][16];
    load_key_query(q[0], keys, rows.committed(group * 8 + g), c);
    int key_rows[MT];
#pragma unroll
    for (int m = 0; m < MT; m++) key_rows[m] = rows.committed(8 * m + g);
    float gt[MT][4];
    query_key<1, MT>(gt, q, keys, lane, key_rows);
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
      for (int e = 0; e < 2; e++) couplings[(group * 8 + g) * W + 8 * m + 2 * c + e] = gt[m][e];
  }
  __syncthreads();
}

// The corrections of the committed records anew from a tile of the checkpoint that carries the recurrence, each
// decayed to the last record, into space [W][16]. gate: record `lane`'s log decay; line: the tile's first value row.
//   u_j = beta_j (v_j - S_j k_j),  S_j = exp(g_1..g_j) S + sum of exp(g_i+1..g_j) u_i k_i over i < j
template <class C, int HP>
__device__ void derive(const Delta& p, const RawTile<HP>& tile, float* space, const float* couplings, const uint32_t* keys, RecordRows<C::W> rows, int lane, float gate,
                       uint64_t ring, int origin_at, int line) {
  constexpr int W = C::W;
  const int g = lane >> 2, c = lane & 3, h = rows.h, capacity = p.state.records, row = lane & 15, half = lane >> 4;
  if (lane >= h) gate = 0.f;
  float until = gate;  // sum up to record `lane`
#pragma unroll
  for (int o = 1; o < 32; o *= 2) {
    const float before = __shfl_up_sync(~0u, until, o);
    if (lane >= o) until += before;
  }
  auto ring_at = [&](int i) { const int at = origin_at + i; return at >= capacity ? at - capacity : at; };
  float beta = 0.f;
  if (lane < h) beta = __ldcg(at<float>(ring + p.state.beta) + (int64_t)ring_at(lane) * p.value_heads + line / C::P);
  for (int idx = lane; idx < h * TILE_ROWS; idx += 32)
    space[idx] = widen(at<const bf16>(ring + p.state.v)[(int64_t)ring_at(idx / TILE_ROWS) * p.values() + line + idx % TILE_ROWS]);
  __syncwarp();
  float acc[W / 8][4];
#pragma unroll
  for (int m = 0; m < W / 8; m++)
#pragma unroll
    for (int e = 0; e < 4; e++) acc[m][e] = 0.f;
#pragma unroll 2
  for (int i = 0; i < 8; i++) {
    const float4 s0 = tile.load(lane, 0, i), s1 = tile.load(lane, 1, i);
#pragma unroll
    for (int m = 0; m < W / 8; m++) {
      const uint32_t* k = keys + rows.committed(m * 8 + g) * KEY_WORDS + i * 8 + c;
      read_chunk<Stored<HP>::TF32>(acc[m], s0, s1, make_uint2(k[0], k[4]));
    }
  }
#pragma unroll
  for (int m = 0; m < W / 8; m++)
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const int j = m * 8 + 2 * c + (e & 1);
      const float decay = expf(__shfl_sync(~0u, until, j));
      if (j < h) space[j * TILE_ROWS + g + (e >> 1) * 8] -= decay * acc[m][e];
    }
  __syncwarp();
  // Record i belongs to lanes of half i % 2.
#pragma unroll 1
  for (int j = 0; j < h; j++) {
    const float decay = expf(__shfl_sync(~0u, gate, j)), strength = __shfl_sync(~0u, beta, j);
    float sum = 0.f;
#pragma unroll 4
    for (int i = half; i < j; i += 2) {
      const float x = space[i * TILE_ROWS + row] * decay;
      space[i * TILE_ROWS + row] = x;
      sum = fmaf(couplings[j * W + i], x, sum);
    }
    sum += __shfl_xor_sync(~0u, sum, 16);
    if (j % 2 == half) space[j * TILE_ROWS + row] = strength * (space[j * TILE_ROWS + row] - sum);
  }
  __syncwarp();
}

}  // namespace delta
