// One token of a Gated DeltaNet row that does not flush, from a checkpoint below float32: its correction and output.
#pragma once
#include "replay_low.cuh"

namespace delta {

// What the warps of a block that has one token make for each other.
template <class C>
struct OneToken {
  static constexpr int M = C::W / 16;
  uint32_t query[2][64];           // the key and the query in float16
  float down[2];                   // what undoes their scales
  float2 sums[C::HPC];             // decay of a head's checkpoint; q . k of the token
  uint2 weights[C::HPC][M][2][8];  // of records, as RecordWeights has them; by lanes 0 .. 7
};

// Weights of records of one head, as B operands of the tensor cores: even columns are the key's, odd ones the query's; 16
// records by two float16 terms.
template <class C>
struct RecordWeights {
  static constexpr int M = C::W / 16;
  uint2 w[M][2];
  float2 sums;  // as in OneToken
  __device__ __forceinline__ void make(const uint32_t* keys, const uint32_t* plain, const float* gs, float scale, int h, int hd, int lane) {
    const int g = lane >> 2, c = lane & 3;
    float gt[M][4], after, total;
    key_products<M>(gt, keys + h * KEY_WORDS, plain, keys, h, lane);
    sum_decays<C::W>(lane <= h ? gs[lane * C::HPC + hd] : 0.f, after, total, lane);
    const float decayed = lane < h ? expf(after) : 0.f, with_key = product_of_lane<M>(gt, false, lane), with_query = product_of_lane<M>(gt, true, lane) * scale;
    const float weight[2] = {lane < h ? with_key * decayed : 0.f, lane < h ? with_query * decayed : 0.f};
    sums = make_float2(expf(total), __shfl_sync(~0u, with_query, h));
#pragma unroll
    for (int m = 0; m < M; m++) {
      uint32_t term[2][2];
#pragma unroll
      for (int r = 0; r < 2; r++) {
        float v[2];
#pragma unroll
        for (int e = 0; e < 2; e++) {
          const int j = 16 * m + 8 * r + 2 * c + e;
          const float of_key = __shfl_sync(~0u, weight[0], j), of_query = __shfl_sync(~0u, weight[1], j);
          v[e] = g & 1 ? of_query : of_key;
        }
        split2_f16(v[0], v[1], term[0][r], term[1][r]);
      }
#pragma unroll
      for (int t = 0; t < 2; t++) w[m][t] = make_uint2(term[t][0], term[t][1]);
    }
  }
  __device__ __forceinline__ void store(OneToken<C>& shared, int hd, int lane) const {
    if (lane == 0) shared.sums[hd] = sums;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
      for (int t = 0; t < 2; t++)
        if (lane < 8) shared.weights[hd][m][t][lane] = w[m][t];
  }
  __device__ __forceinline__ void load(const OneToken<C>& shared, int hd, int lane) {
    sums = shared.sums[hd];
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
      for (int t = 0; t < 2; t++) w[m][t] = shared.weights[hd][m][t][lane & 7];
  }
};

// One token that does not flush: keys and decays of records 0 .. h, the new one last, lie in rows 0 .. h of shared memory.
// Even columns of the tensor-core products are the key's, odd ones the query's. row_u: where the correction belongs.
template <class C>
__device__ __forceinline__ void one_token(const Reads<C>& reads, uint8_t* us, __half* row_u, const uint32_t* keys, const uint32_t* plain, const float* gs,
                                          const uint8_t* scales, uint8_t* scratch, float scale, int h, int hd, int sub, int lane) {
  constexpr int P = C::P, W = C::W, M = W / 16;
  constexpr bool BF = Low<C::FORMAT>::BF, ALONE = C::WPH == 1;  // ALONE: no other warp has the head
  constexpr bool PARTED = C::FORMAT == STATE_NVFP4;             // pairs of columns have a term of weights each
  static_assert(sizeof(OneToken<C>) <= C::WARPS * C::WORDS * 4 && C::HPC == 2 && C::WPH <= 2);
  const int g = lane >> 2, c = lane & 3;
  OneToken<C>& shared = *reinterpret_cast<OneToken<C>*>(scratch);
  const uint8_t* const whole = scales;
  RecordWeights<C> weights;
  if (!BF && sub == C::WPH - 1) {
    const float down = convert_query<C::FORMAT>(shared.query[hd], hd ? plain : keys + h * KEY_WORDS, lane);
    if (lane == 0) shared.down[hd] = down;
  }
  if (!ALONE && sub == 0) {
    weights.make(keys, plain, gs, scale, h, hd, lane);
    weights.store(shared, hd, lane);
  }
  if (!BF || !ALONE) __syncthreads();
  uint32_t q[1][16];
  load_lane_words<C::FORMAT>(q[0], BF ? (g & 1 ? plain : keys + h * KEY_WORDS) : shared.query[g & 1], lane);
  if constexpr (PARTED) part_query(q[0], lane);
  const int first = hd * P + sub * C::TILES * TILE_ROWS;  // value row in the block
  scales += first * Low<C::FORMAT>::SCALES;
  // What tile i gives.
  auto pass = [&](int i, float (&acc)[1][4]) {
    const uint8_t* const tile_scales = scales + i * TILE_ROWS * Low<C::FORMAT>::SCALES;
    if constexpr (PARTED)
      parted_pass(reads.wait(i), tile_scales, q[0], acc[0], lane);
    else
      low_pass<C::FORMAT, 1>(reads.wait(i), tile_scales, q, acc, lane);
    reads.refill(i, lane);
  };
  // Lanes of odd c have rows g + 8.
  auto mine = [&](const float (&acc)[4]) { return c & 1 ? make_float2(acc[2], acc[3]) : make_float2(acc[0], acc[1]); };
  // The first tiles give way to those behind them before the weights are made.
  constexpr int AHEAD = Reads<C>::ONCE || !ALONE || PARTED ? 0 : C::STAGES;
  float2 ahead[AHEAD + 1];
  reads.begin();
#pragma unroll
  for (int i = 0; i < AHEAD; i++) {
    float acc[1][4];
    pass(i, acc);
    ahead[i] = mine(acc[0]);
  }
  if (ALONE)
    weights.make(keys, plain, gs, scale, h, hd, lane);
  else
    weights.load(shared, hd, lane);
  if constexpr (PARTED)
#pragma unroll
    for (int m = 0; m < M; m++) weights.w[m][0] = g < 2 ? weights.w[m][0] : g < 4 ? weights.w[m][1] : make_uint2(0, 0);
  const float down[2] = {BF ? 1.f : shared.down[0], BF ? 1.f : shared.down[1]};
  const float decay = weights.sums.x * head_scale<C>(whole, hd), factor[2] = {decay * down[0], decay * scale * down[1]};
  const float own = weights.sums.y, strength = gs[C::HPC * (W + 8) + hd];  // q . k of the token, its beta
  uint32_t u_lane[M];
#pragma unroll
  for (int m = 0; m < M; m++) u_lane[m] = once(smem_addr(us + first * 2) + min(16 * m + (lane >> 4) * 8 + (lane & 7), max(h - 1, 0)) * C::U_ROW + (lane >> 3 & 1) * 16);
  // What the records give to tile i.
  auto add = [&](int i, float (&sum)[4]) {
#pragma unroll
    for (int e = 0; e < 4; e++) sum[e] = 0.f;
#pragma unroll
    for (int m = 0; m < M; m++) {
      if (m * 16 >= h) break;
      uint32_t u[4];
      ldmatrix_x4_trans(u, u_lane[m] + i * TILE_ROWS * 2);
#pragma unroll
      for (int t = PARTED ? 0 : 1; t >= 0; t--) mma_f16(sum, u, weights.w[m][t].x, weights.w[m][t].y);
    }
  };
  // What the record holds is what is used; the output takes the place of v, for the norm.
  auto correct = [&](__half v, float known) { return __float2half_rn(saturate_f16(strength * (__half2float(v) - known))); };
  auto output = [&](__half u, float read) { return narrow<bf16>(fmaf(__half2float(u), own, read)); };
  __half* const values = reinterpret_cast<__half*>(us + W * C::U_ROW) + first;
  row_u += first;
  if constexpr (PARTED) {
    static_assert(C::TILES % 4 == 0);
#pragma unroll 1
    for (int i = 0; i < C::TILES; i += 4) {
      float acc[4][1][4], sums[4];
#pragma unroll
      for (int k = 0; k < 4; k++) {
        float of_records[4];
        pass(i + k, acc[k]);
        add(i + k, of_records);
#pragma unroll
        for (int e = 0; e < 4; e++) acc[k][0][e] = fmaf(acc[k][0][e], factor[e & 1], of_records[e]);
      }
      sum_of_tiles(sums, acc, lane);
      const int at = (i + c) * TILE_ROWS;
      const __half u0 = correct(values[at + g], sums[0]), u1 = correct(values[at + g + 8], sums[2]);
      // Of a pair of lanes one takes both elements of rows below 8, the other those of rows above.
      const bool odd = g & 1;
      const uint32_t both0 = join(u0, output(u0, sums[1])), both1 = join(u1, output(u1, sums[3]));
      const uint32_t other = __shfl_xor_sync(~0u, odd ? both0 : both1, 4);
      const uint32_t low = odd ? other : both0, high = odd ? both1 : other;
      const int to = at + (g & 6) + (odd ? 8 : 0);
      __syncwarp();
      *reinterpret_cast<uint32_t*>(row_u + to) = __byte_perm(low, high, 0x5410);
      *reinterpret_cast<uint32_t*>(values + to) = __byte_perm(low, high, 0x7632);
    }
  } else {
    auto finish = [&](int i, float2 of_state) {
      float sum[4];
      add(i, sum);
      const float2 of_records = mine(sum);
      const int at = i * TILE_ROWS + (c & 1) * 8 + g;
      const __half u = correct(values[at], fmaf(of_state.x, factor[0], of_records.x));
      __syncwarp();
      if (c < 2) {
        row_u[at] = u;
        reinterpret_cast<bf16*>(values)[at] = output(u, fmaf(of_state.y, factor[1], of_records.y));
      }
    };
#pragma unroll
    for (int i = 0; i < AHEAD; i++) finish(i, ahead[i]);
#pragma unroll 1
    for (int i = AHEAD; i < C::TILES; i++) {
      float acc[1][4];
      pass(i, acc);
      finish(i, mine(acc[0]));
    }
  }
}

}  // namespace delta
