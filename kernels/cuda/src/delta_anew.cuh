// Two precisions of Gated DeltaNet: the corrections that a flush derives anew (paper B.4).
//
//   u_j = beta_j (v_j - S_j k_j),  S_j = exp(g_1..g_j) S + sum of exp(g_i+1..g_j) u_i k_i over i < j
//
// is a triangular system in the residuals r_j = v_j - exp(g_1..g_j) S k_j. It is the same for all value rows of a head, so its
// inverse is made once, with the decay of u_j up to the last record in it; a tile then takes one pass for S k_j of all records
// and one product. |k| <= 1 (but for rounding to bf16), beta <= 1 and decays <= 1 bound its elements by about 1.
#pragma once
#include "delta.cuh"
#include "flush_low.cuh"

namespace delta {

// What solves for a head's corrections, in shared memory. The inverse is stored in blocks of 8 x 8, those on and under the
// diagonal, each as lanes want it for B: element (record n, residual k) of a block at n * 8 + k.
template <int W>
struct Solver {
  static constexpr int SIDE = W / 8, BLOCKS = SIDE * (SIDE + 1) / 2;
  float inverse[BLOCKS][64];
  float reach[W];  // exp(g_1..g_j)

  static __device__ constexpr int block(int n, int k) { return n * (n + 1) / 2 + k; }
};

// Inner products of the committed keys, [W][W]; by all warps of the block.
template <class C>
__device__ __forceinline__ void couple(float* couplings, const uint32_t* keys, RecordRows<C::W> rows, int warp, int lane) {
  constexpr int W = C::W, MT = W / 8;
  const int g = lane >> 2, c = lane & 3;
  for (int group = warp; group < MT; group += C::WARPS) {
    const uint32_t* const key = keys + rows.committed(group * 8 + g) * KEY_WORDS + c;
    uint32_t q[1][16];
#pragma unroll
    for (int i = 0; i < 8; i++) q[0][2 * i] = key[i * 8], q[0][2 * i + 1] = key[i * 8 + 4];
    int key_rows[MT];
#pragma unroll
    for (int m = 0; m < MT; m++) key_rows[m] = rows.committed(8 * m + g);
    float gt[MT][4];
    query_key<1, MT>(gt, q, keys, lane, key_rows);
#pragma unroll
    for (int m = 0; m < MT; m++) *reinterpret_cast<float2*>(couplings + (group * 8 + g) * W + 8 * m + 2 * c) = make_float2(gt[m][0], gt[m][1]);
  }
}

// Column `lane` of the inverse; decay, beta: of record `lane`, 1 and 0 behind the last.
template <int W>
__device__ __forceinline__ void invert(float (&column)[W], const float* couplings, float decay, float beta, int lane) {
#pragma unroll
  for (int t = 0; t < W; t++) {
    const float decay_t = __shfl_sync(~0u, decay, t), beta_t = __shfl_sync(~0u, beta, t);
    float x = t == lane ? 1.f : 0.f;
#pragma unroll
    for (int from = 0; from < t; from += 4) {
      const float4 v = *reinterpret_cast<const float4*>(couplings + t * W + from);
      const float row[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int e = 0; e < 4; e++)
        if (from + e < t) {
          column[from + e] *= decay_t;
          x = fmaf(-row[e], column[from + e], x);
        }
    }
    column[t] = x * beta_t;
  }
}

// Makes the solvers of the block's heads; by all warps, of which WPH have a head. gate, beta: record `lane`'s log decay and
// strength for the warp's head, 0 behind the last.
template <class C>
__device__ __forceinline__ void make_solvers(Solver<C::W>* solvers, const uint32_t* keys, RecordRows<C::W> rows, float gate, float beta, int warp, int lane) {
  constexpr int W = C::W;
  static_assert(C::HPC * sizeof(Solver<W>) >= W * W * 4);
  float* const couplings = reinterpret_cast<float*>(solvers);  // in their place
  couple<C>(couplings, keys, rows, warp, lane);
  __syncthreads();
  float column[W];
  if (warp % C::WPH == 0) invert<W>(column, couplings, expf(gate), beta, lane);
  __syncthreads();
  if (warp % C::WPH == 0 && lane < W) {
    Solver<W>& s = solvers[warp / C::WPH];
#pragma unroll
    for (int t = 0; t < W; t++)
      if (t / 8 >= lane / 8) s.inverse[Solver<W>::block(t / 8, lane / 8)][t % 8 * 8 + lane % 8] = column[t];
  }
  float reach = gate;
#pragma unroll
  for (int o = 1; o < W; o *= 2) {
    const float before = __shfl_up_sync(~0u, reach, o);
    if (lane >= o) reach += before;
  }
  if (warp % C::WPH == 0 && lane < W) solvers[warp / C::WPH].reach[lane] = expf(reach);
  __syncthreads();
}

// x = high + low to 23 bits, both as tensor cores take tf32.
__device__ __forceinline__ void split_tf32(float x, uint32_t& high, uint32_t& low) {
  high = bits(x) + 0x1000u & TF32_CUT;
  low = bits(x - __uint_as_float(high));
}

// The corrections of the committed records anew from a tile of the checkpoint that carries the recurrence, each decayed to the
// last record: u[m] has those of records 8m + 2c (+ 1) in rows g and g + 8. values(j): the first of record j's values that the
// tile's rows have.
template <int W, int HP, typename Values>
__device__ __forceinline__ void derive(float (&u)[W / 8][4], const RawTile<HP>& tile, const Solver<W>& solver, const uint32_t* keys, RecordRows<W> rows, int lane, Values values) {
  constexpr int M = W / 8;
  const int g = lane >> 2, c = lane & 3;
  float v[M][4], acc[M][4];
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int e = 0; e < 2; e++) {
      const int j = m * 8 + 2 * c + e;
      v[m][e] = v[m][2 + e] = acc[m][e] = acc[m][2 + e] = 0.f;
      if (j < rows.h) {
        const bf16* const from = values(j) + g;
        v[m][e] = widen(from[0]), v[m][2 + e] = widen(from[8]);
      }
    }
#pragma unroll 2
  for (int i = 0; i < 8; i++) {
    const float4 s0 = tile.load(lane, 0, i), s1 = tile.load(lane, 1, i);
#pragma unroll
    for (int m = 0; m < M; m++) {
      const uint32_t* k = keys + rows.committed(m * 8 + g) * KEY_WORDS + i * 8 + c;
      read_chunk<Stored<HP>::TF32>(acc[m], s0, s1, make_uint2(k[0], k[4]));
    }
  }
  const float unit[2] = {tile.unit(lane, 0), tile.unit(lane, 1)};
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int e = 0; e < 4; e++) u[m][e] = 0.f, acc[m][e] *= unit[e >> 1];
#pragma unroll
  for (int k = 0; k < M; k++) {
    const float2 reach = *reinterpret_cast<const float2*>(solver.reach + k * 8 + 2 * c);
    uint32_t high[4], low[4];  // residuals; those behind the last record are zero
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const float r = fmaf(e & 1 ? -reach.y : -reach.x, acc[k][e], v[k][e]);
      split_tf32(k * 8 + 2 * c + (e & 1) < rows.h ? r : 0.f, high[e], low[e]);
    }
#pragma unroll
    for (int m = k; m < M; m++) {
      const float2 n = *reinterpret_cast<const float2*>(solver.inverse[Solver<W>::block(m, k)] + lane * 2);
      uint32_t n_high[2], n_low[2];
      split_tf32(n.x, n_high[0], n_low[0]), split_tf32(n.y, n_high[1], n_low[1]);
      mma_tf32(u[m], low[0], low[2], low[1], low[3], n_high[0], n_high[1]);
      mma_tf32(u[m], high[0], high[2], high[1], high[3], n_low[0], n_low[1]);
      mma_tf32(u[m], high[0], high[2], high[1], high[3], n_high[0], n_high[1]);
    }
  }
}

}  // namespace delta
