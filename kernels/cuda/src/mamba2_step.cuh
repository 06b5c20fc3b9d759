// The step of a Mamba-2 layer of State 128 in bfloat16: a convolution that appends the records, then the outputs and
// flushes, then the gated norm (mamba2.cu); or all of it in one kernel (mamba2_whole.cuh).
#pragma once
#include "flush_rows.cuh"
#include "mamba2_whole.cuh"

namespace mamba2 {

// ---------------------------------------------------------------- convolution
// A thread has N channels, or one head's dt, of SPAN tokens of the rows of its block (ONE: of the only one).
template <int SPAN, bool ONE>
__device__ void convolve_step(const Mamba2& p) {
  constexpr int N = CONV_CHANNELS<ONE>;
  const int channel = (blockIdx.x * CONV_THREADS + threadIdx.x) * N, head = (channel - p.conv()) / N, inner = p.inner(), bc = p.bc();
  if (channel < p.conv())
    convolve_share<SPAN, ONE>(p, p.xbc, p.conv_b, channel, [&](int row, const ConvRow& r, int t, const float(&y)[N]) {
      bf16* dst = channel < inner        ? r.record<bf16>(p.state, p.state.x, t, inner) + channel
                  : channel < inner + bc ? r.record<bf16>(p.state, p.state.b, t, bc) + channel - inner
                                         : at<bf16>(p.query) + (int64_t)((row - p.row0) * p.rows.t + t) * bc + channel - inner - bc;
      *reinterpret_cast<Raw<N>*>(dst) = pack_piece(y);
    });
  else if (head < p.heads)
    narrow_share<SPAN, ONE>(
        p, [&](int token) { return row_of<bf16>(p.dt, token)[head]; },
        [&](int, const ConvRow& r, int t, bf16 dt) {
          r.record<float>(p.state, p.state.decay, t, p.heads)[head] = step_size(p, widen(dt), head);
        });
}

// ---------------------------------------------------------------- state
// Block = (row, group, HPC of its heads). Each warp streams its own tiles of the checkpoint through a private ring of
// STAGES tiles (bulk copies + mbarriers) and never waits for another warp, apart from one barrier after the records are in
// shared memory. P: value rows a head.
// T: 0, or most tokens a row of a kernel that does it all (MIX): a thread convolves SPAN of them, and the blocks of a group
// are a cluster.
template <int P_, int W_, int HPC_, int WARPS_, int STAGES_, int T_ = 0, int SPAN_ = 1>
struct Config {
  static constexpr int T = T_, SPAN = SPAN_;
  static constexpr bool MIX = T > 0;
  static constexpr int RING = STAGES_ * TILE_BYTES;  // of a warp
  static constexpr int P = P_, W = W_, HPC = HPC_, WARPS = WARPS_, STAGES = STAGES_;
  static constexpr int THREADS = WARPS * 32;
  static constexpr int TPH = P / TILE_ROWS;                  // tiles a head
  static constexpr int WPH = WARPS > HPC ? WARPS / HPC : 1;  // warps a head
  static constexpr int HPW = HPC > WARPS ? HPC / WARPS : 1;  // heads a warp
  static constexpr int X_ROW = HPC * P * 2 + 16;             // bytes of one record's x in shared memory
  static constexpr int HEAD = W + 8 + 2;                     // dt of committed and new records, A, D
  // shared memory; what depends on the number of records comes last
  static constexpr int OUT = WARPS * RING, WORDS = 64;  // of staging a warp
  static constexpr int BARS = OUT + WARPS * WORDS * 4;
  static constexpr int DT = BARS + WARPS * STAGES * 8;
  static constexpr int SUMS = (DT + HPC * HEAD * 4 + 15) / 16 * 16;  // of squares, [blocks][8]
  static constexpr int XS = SUMS + (MIX ? 16 * 8 * 4 : 0);
  static_assert(P % TILE_ROWS == 0 && (WARPS % HPC == 0 || HPC % WARPS == 0));
};

// wv: x of committed records times their weights, three bf16 terms.
template <int M>
__device__ __forceinline__ void weigh_records(uint32_t (&wv)[M][3][4], const uint32_t (&x)[M][4], const float (&fw)[M][4]) {
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int r = 0; r < 4; r++)
      split3_bf16(bf_lo(x[m][r]) * fw[m][(r >> 1) * 2], bf_hi(x[m][r]) * fw[m][(r >> 1) * 2 + 1], wv[m][0][r], wv[m][1][r], wv[m][2][r]);
}

// acc, what the checkpoint gave, decays and gets the part of committed records x and of new ones xn, times weights w and wn.
template <int M>
__device__ __forceinline__ void add_records(float (&acc)[1][4], const float (&decay)[2], const uint32_t (&x)[M][4], const uint32_t (&w)[M][3][2], const uint32_t (&xn)[2], const uint32_t (&wn)[3], int h) {
#pragma unroll
  for (int e = 0; e < 4; e++) acc[0][e] *= decay[e & 1];
#pragma unroll
  for (int m = 0; m < M; m++)
    if (m * 16 < h)
#pragma unroll
      for (int t = 2; t >= 0; t--) mma_bf16(acc[0], x[m], w[m][t][0], w[m][t][1]);
#pragma unroll
  for (int t = 2; t >= 0; t--) mma_bf16_8(acc[0], xn, wn[t]);
}

template <class C>
__device__ void step(const Mamba2& p) {
  constexpr int P = C::P, HPC = C::HPC, W = C::W, STAGES = C::STAGES, M = W / 16, MT = W / 8 + 1;
  extern __shared__ __align__(128) uint8_t smem[];
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, c = lane & 3;
  const int split = blockIdx.x, group = blockIdx.y, T = p.rows.t;
  const int per = p.heads / p.groups, head0 = group * per + split * HPC;  // first head of the block
  // The cursors and committed records are older than the kernel in front: they may be read before the wait.
  if (C::MIX && !p.calm) pdl_wait();
  const int row = C::MIX ? p.row0 + (int)blockIdx.z : row_from_last(p, lane);
  if (row < 0) return pdl_wait();  // no launch may end before the one in front
  const StepRow found(p, row, false);
  const int n = found.n, slot = found.slot;
  if (n == 0) {
    pdl_wait();
    if constexpr (C::MIX) clear_row<C>(p, row, 0, head0);
    return;
  }
  if (!C::MIX && has_first(p) && has_another(p, found, lane)) return pdl_wait();
  if constexpr (C::MIX) cluster_started();
  const RecordRows<W> rows = {found.h, n};
  const int h = rows.h, origin = found.origin, src = found.src, dst = found.dst;
  const bool flush = found.flushes(p.state);
  BlockConv<C::THREADS, Pieces<C>::COUNT, C::T, C::SPAN> conv = {ConvRow(p, row)};

  // ---- the warp's part of the checkpoint
  const int sub = warp % C::WPH;  // this warp's share of a head's tiles
  const int whead0 = warp / C::WPH * C::HPW;
  const int tiles_per_head = C::TPH % C::WPH == 0 ? C::TPH / C::WPH : (C::TPH - sub + C::WPH - 1) / C::WPH;
  const int tiles = C::HPW * tiles_per_head;
  const int64_t first = ((int64_t)(head0 + whead0) * P + sub * TILE_ROWS) * KEYS;
  uint8_t* const stages = smem + warp * C::RING;
  uint64_t* const bars = reinterpret_cast<uint64_t*>(smem + C::BARS) + warp * STAGES;
  auto tile_at = [&](int i) {  // the warp's i-th tile, elements from `first`
    return (i / tiles_per_head * P + i % tiles_per_head * C::WPH * TILE_ROWS) * KEYS;
  };
  const float* const checkpoint = at<float>(p.state.block(src)) + first;
  auto request = [&](int i) {  // lane 0: tile i into its stage
    mbar_expect(bars + i % STAGES, TILE_BYTES);
    bulk_load(stages + i % STAGES * TILE_BYTES, checkpoint + tile_at(i), TILE_BYTES, bars + i % STAGES);
  };
  if (lane == 0) open_barriers(bars, STAGES);

  // ---- records into shared memory
  const int capacity = p.state.records, origin_at = origin % capacity;
  auto ring_at = [&](int i) { int at = origin_at + i; return at >= capacity ? at - capacity : at; };
  const uint64_t slot_ring = p.state.rings + (int64_t)slot * p.state.ring_stride;
  const bf16* const ring_x = reinterpret_cast<const bf16*>(slot_ring + p.state.x) + head0 * P;
  const bf16* const ring_b = reinterpret_cast<const bf16*>(slot_ring + p.state.b) + group * KEYS;
  const float* const ring_dt = reinterpret_cast<const float*>(slot_ring + p.state.decay) + head0;
  const int inner = p.inner(), bc = p.bc();
  uint8_t* const xs = smem + C::XS;
  uint32_t* const keys = reinterpret_cast<uint32_t*>(xs + (W + T) * C::X_ROW);
  float* const dts = reinterpret_cast<float*>(smem + C::DT);
  float* const as = dts + HPC * (W + 8);  // A and D of the block's heads
  uint32_t* const plain = keys + (W + T) * KEY_WORDS;  // MIX: the queries
  uint32_t* const gates = plain + T * KEY_WORDS;       // MIX: z, [T][HPC * P]
  constexpr int XP = HPC * P / 8;         // 16-byte pieces of one record's x
  constexpr int KP = (W * 16 + C::THREADS - 1) / C::THREADS, NP = (8 * 16 + C::THREADS - 1) / C::THREADS;
  auto load_x = [&](int from, int to) {
    for (int idx = threadIdx.x; idx < (to - from) * XP; idx += C::THREADS) {
      int i = from + idx / XP, piece = idx % XP;
      cp_async16(xs + rows.of(i) * C::X_ROW + piece * 16, ring_x + ring_at(i) * inner + piece * 8);
    }
  };
  // Not through L1: what is read before the wait must not bring in lines that the kernel in front is writing.
  auto key_piece = [&](int i, int piece) { return __ldcg(reinterpret_cast<const uint4*>(ring_b + ring_at(i) * bc + piece * 8)); };
  static_assert(W * HPC <= C::THREADS);
  const int dt_i = threadIdx.x / HPC, dt_hd = threadIdx.x % HPC;  // this thread's dt: record dt_i, and new record dt_i
  load_x(0, h);
  float dt_v[2];
  if (dt_i < h) dt_v[0] = __ldcg(ring_dt + ring_at(dt_i) * p.heads + dt_hd);
  if (threadIdx.x < HPC) cp_async4(as + threadIdx.x, at<float>(p.a) + head0 + threadIdx.x), cp_async4(as + HPC + threadIdx.x, at<float>(p.d) + head0 + threadIdx.x);
  uint4 kv[KP], nv[NP];
#pragma unroll
  for (int u = 0; u < KP; u++) {
    int idx = threadIdx.x + u * C::THREADS;
    if (idx >> 4 < h) kv[u] = key_piece(idx >> 4, idx & 15);
  }
  const Pieces<C> pieces = {p, group, head0};
  auto channel = [&](int i) { return pieces.channel(i); };
  if constexpr (C::MIX) conv.load_old(p.state, p.conv_w, p.conv_b, p.conv(), channel);
  if (lane == 0)  // behind all that is small: the first pass waits for it too
    for (int s = 0; s < STAGES && s < tiles; s++) request(s);
  pdl_wait();
  pdl_trigger();
  if constexpr (C::MIX) {
    conv.load_new(p.xbc, channel);
    load_gates<C>(p, gates, p.rows.first + row * T, n, head0);
    if (dt_i < n) {
      const int head = head0 + dt_hd;
      dt_v[1] = step_size(p, widen(row_of<bf16>(p.dt, p.rows.first + row * T + dt_i)[head]), head);
      conv.r.template record<float>(p.state, p.state.decay, dt_i, p.heads)[head] = dt_v[1];
    }
    conv.finish([&](int i, int t, const float(&y)[8], uint4 raw) { pieces.keep(conv.r, i, t, y, raw, split == 0, plain, keys, xs); });
  } else {
    load_x(h, h + n);
  }
  if constexpr (!C::MIX) {
    if (dt_i < n) dt_v[1] = __ldcg(ring_dt + ring_at(h + dt_i) * p.heads + dt_hd);
#pragma unroll
    for (int u = 0; u < NP; u++) {
      int idx = threadIdx.x + u * C::THREADS;
      if (idx >> 4 < n) nv[u] = key_piece(h + (idx >> 4), idx & 15);
    }
  }
  // queries as fragments: lane (g, c) holds columns 16i+4c..+3 of token g
  uint32_t q[1][16];
  auto load_queries = [&](auto load) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
      uint2 v = make_uint2(0, 0);
      if (g < n) v = load(i * 16 + c * 4);
      q[0][2 * i] = v.x, q[0][2 * i + 1] = v.y;
    }
  };
  if constexpr (!C::MIX) load_queries([&](int k) { return load_query(at<bf16>(p.query) + (int64_t)((row - p.row0) * T + g) * bc + group * KEYS + k); });
#pragma unroll
  for (int u = 0; u < KP; u++) {
    int idx = threadIdx.x + u * C::THREADS;
    if (idx >> 4 < h) store_key_piece(keys, idx >> 4, idx & 15, kv[u]);
  }
  if constexpr (!C::MIX)
#pragma unroll
    for (int u = 0; u < NP; u++) {
      int idx = threadIdx.x + u * C::THREADS;
      if (idx >> 4 < n) store_key_piece(keys, W + (idx >> 4), idx & 15, nv[u]);
    }
  if (dt_i < h) dts[dt_hd * (W + 8) + dt_i] = dt_v[0];
  if (dt_i < n) dts[dt_hd * (W + 8) + W + dt_i] = dt_v[1];
  cp_async_wait_all();
  __syncthreads();
  if constexpr (C::MIX) load_queries([&](int k) { return *reinterpret_cast<const uint2*>(plain + g * KEY_WORDS + k / 2); });

  // ---- B_j . C_t, once for all heads of the warp
  float gt[MT][4];
  int key_rows[MT];
  query_key_rows<W>(key_rows, lane, rows);
  query_key<1, MT>(gt, q, keys, lane, key_rows);
  uint32_t key_lane[M];
#pragma unroll
  for (int m = 0; m < M; m++) key_lane[m] = key_address<W>(keys, lane, m, rows);

  const uint32_t cut = TF32_CUT | p.state.window >> 31;  // the window is positive
  int it = 0;
  for (int hw = 0; hw < C::HPW; hw++) {
    const int hd = whead0 + hw;
    // ---- weights of this head. W[j][t] = exp(sum of log decay over (j, t]) dt_j (B_j . C_t)
    const float a = as[hd], skip = as[HPC + hd];
    const float dt_old = lane < h ? dts[hd * (W + 8) + lane] : 0.f, dt_new = lane < n ? dts[hd * (W + 8) + W + lane] : 0.f;
    const Decays decays(dt_old * a, dt_new * a, lane);
    const float e_until = expf(decays.until), until_query = __shfl_sync(~0u, decays.until, g), e_query = __shfl_sync(~0u, e_until, g);
    const float gamma = expf(decays.total);
    const float fold_w = lane < h ? dt_old * expf(decays.after) : 0.f;  // weight of record `lane` in the new checkpoint
    float fw[M][4];
    spread_weights(fw, fold_w, lane);
    uint32_t w[M][3][2], wn[3];  // [16 records][bf16 term][B operand register]; new records
#pragma unroll
    for (int m = 0; m < MT - 1; m++) {
      float v[2];
#pragma unroll
      for (int e = 0; e < 2; e++) v[e] = g < n ? gt[m][e] * (fw[m >> 1][(m & 1) * 2 + e] * e_query) : 0.f;
      split3_bf16(v[0], v[1], w[m >> 1][0][m & 1], w[m >> 1][1][m & 1], w[m >> 1][2][m & 1]);
    }
    float v[2], decay[2];  // decay: of the checkpoint, for tokens 2c and 2c+1
#pragma unroll
    for (int e = 0; e < 2; e++) {
      int j = 2 * c + e;
      float until = __shfl_sync(~0u, decays.until, j), dt = __shfl_sync(~0u, dt_new, j);
      v[e] = g < n && j <= g ? gt[MT - 1][e] * dt * expf(until_query - until) : 0.f;
      if (g < n && j == g) v[e] += skip;
      decay[e] = gamma * __shfl_sync(~0u, e_until, j);
    }
    split3_bf16(v[0], v[1], wn[0], wn[1], wn[2]);

    for (int tt = 0; tt < tiles_per_head; tt++, it++) {
      const int tile = sub + tt * C::WPH;
      uint8_t* const data = stages + it % STAGES * TILE_BYTES;
      mbar_wait(bars + it % STAGES, it / STAGES & 1);
      const uint8_t* const values = xs + (hd * P + tile * TILE_ROWS) * 2;
      uint32_t x[M][4], xn[2];
#pragma unroll
      for (int m = 0; m < M; m++) ldmatrix_x4_trans(x[m], value_address<W>(values, C::X_ROW, lane, m, rows));
      ldmatrix_x2_trans(xn, fresh_address<W>(values, C::X_ROW, lane, rows));
      float acc[1][4];
      const bool refill = it + STAGES < tiles;
      uint32_t wv[M][3][4];
      if (flush) {
        weigh_records(wv, x, fw);
        const int64_t line = (int64_t)(head0 + hd) * P + tile * TILE_ROWS;
        tile_pass<1, M, true>(data, q, acc, lane, cut, at<float>(p.state.block(dst)) + line * KEYS, gamma, wv, key_lane);
      } else {
        tile_pass<1, M, false>(data, q, acc, lane, cut, nullptr, gamma, wv, key_lane);
      }
      __syncwarp();
      if (lane == 0 && refill) request(it + STAGES);
      // ---- records' part of the outputs
      add_records(acc, decay, x, w, xn, wn, h);
      // ---- store: lane holds rows g, g+8, tokens 2c, 2c+1
      uint8_t* const out = smem + C::OUT + warp * 256;
      __syncwarp();
      stmatrix_x2_trans(smem_addr(out) + (lane & 7) * 32 + (lane >> 3 & 1) * 16, pack_bf16(acc[0][0], acc[0][1]), pack_bf16(acc[0][2], acc[0][3]));
      __syncwarp();
      if (lane < 2 * n) {
        const int t = lane >> 1, column = hd * P + tile * TILE_ROWS + (lane & 1) * 8;
        uint4* const to = C::MIX ? reinterpret_cast<uint4*>(xs + (W + t) * C::X_ROW + column * 2)  // in the place of x, for the norm
                                 : reinterpret_cast<uint4*>(row_of<bf16>(p.out, p.rows.first + row * T + t) + head0 * P + column);
        *to = *reinterpret_cast<uint4*>(out + lane * 16);
      }
    }
  }
  if constexpr (C::MIX) block_norm<C>(p, xs, gates, reinterpret_cast<float*>(smem + C::SUMS), row, n, head0);
}

}  // namespace mamba2
