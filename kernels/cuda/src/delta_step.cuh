// The step of a Gated DeltaNet layer with heads of 128 x 128 in bfloat16 in one kernel: convolution, corrections, outputs,
// flushes and the gated norm.
#pragma once
#include "delta_convolve.cuh"
#include "flush_rows.cuh"

namespace delta {

// ---------------------------------------------------------------- state
// Block = (row, key head, HPC of its value heads). Streaming as for Mamba-2. One pass over the checkpoint gives S k_t and
// S q_t for all tokens; the corrections u of the new tokens then come from a triangular system that is the same for all
// value rows of a head, so its inverse is formed once a head and applied to every tile as a tensor-core product.
//
// Query order inside an n = 8 operand: up to 4 tokens: k_0..k_3, q_0..q_3 (one operand); up to 8: k_0..k_7 | q_0..q_7 (two).
// T_: most tokens a row. SPAN: the tokens that a thread convolves; every block makes its key head's q and k itself.
template <int T_, int W_, int HPC_, int WARPS_, int STAGES_, int SPAN_>
struct Config {
  static constexpr int SPAN = SPAN_;
  static constexpr int RING = STAGES_ * TILE_BYTES;  // of a warp
  static constexpr int T = T_, W = W_, HPC = HPC_, WARPS = WARPS_, STAGES = STAGES_, P = KEYS;
  static constexpr int THREADS = WARPS * 32;
  static constexpr int NT = T > 4 ? 2 : 1;  // query operands
  static constexpr int TPH = P / TILE_ROWS;
  static constexpr int WPH = WARPS / HPC;  // warps a head
  static constexpr int TILES = TPH / WPH;  // of a warp
  static constexpr int U_ROW = HPC * P * 2 + 16;
  // shared memory; what depends on the number of records comes last
  static constexpr int WORDS = 128;  // of scratch a warp
  static constexpr int SCRATCH = WARPS * RING;  // a warp: 8x8 couplings, 8x8 inverse; reused as output staging
  static constexpr int BARS = SCRATCH + WARPS * 512;
  static constexpr int GS = BARS + WARPS * STAGES * 8;  // of new tokens: log decays [HPC][8], beta [HPC][8]
  static constexpr int NORM = GS + HPC * 16 * 4;  // weights of the norm
  static constexpr int US = (NORM + P * 4 + 15) / 16 * 16;
  static_assert(WARPS % HPC == 0 && TPH % WPH == 0 && NORM % 16 == 0 && 8 * HPC <= THREADS && P / 4 <= THREADS);
};

__device__ __forceinline__ void clear_row(const Delta& p, int row, int from, int column, int columns) {
  int pieces = columns / 8;
  for (int idx = threadIdx.x; idx < (p.rows.t - from) * pieces; idx += blockDim.x)
    *reinterpret_cast<uint4*>(row_of<bf16>(p.out, p.rows.first + row * p.rows.t + from + idx / pieces) + column + idx % pieces * 8) = make_uint4(0, 0, 0, 0);
}

// o / rms(o) w silu(z) of the block's heads; o lies in the new rows of us. A half warp has a head of a token.
template <class C>
__device__ __forceinline__ void block_norm(const Delta& p, const uint8_t* us, const uint32_t* gates, const float* weights, int token0, int n,
                                           int head0) {
  constexpr int HALVES = C::THREADS / 16, ROUNDS = (C::T * C::HPC + HALVES - 1) / HALVES;
  const int lane = threadIdx.x & 15;
  __syncthreads();
  float w[8];
  load8(weights + lane * 8, w);
#pragma unroll
  for (int i = 0; i < ROUNDS; i++) {
    const int at = (threadIdx.x >> 4) + i * HALVES, t = at / C::HPC, hd = at % C::HPC;
    if (t >= p.rows.t) break;
    float o[8] = {}, z[8], sum = 0.f;
    if (t < n) {
      load8(reinterpret_cast<const bf16*>(us + (C::W + t) * C::U_ROW) + hd * C::P + lane * 8, o);
      load8(reinterpret_cast<const bf16*>(gates) + at * C::P + lane * 8, z);
#pragma unroll
      for (int e = 0; e < 8; e++) sum = fmaf(o[e], o[e], sum);
#pragma unroll
      for (int s = 8; s > 0; s >>= 1) sum += __shfl_xor_sync(0xffffu << (threadIdx.x & 16), sum, s);
      const float f = rsqrtf(sum * (1.f / C::P) + p.eps);
#pragma unroll
      for (int e = 0; e < 8; e++) o[e] *= f * w[e] * quick_silu(z[e]);
    }
    store8(row_of<bf16>(p.out, token0 + t) + (head0 + hd) * C::P + lane * 8, o);
  }
}

// acc, what the checkpoint gave, decays and gets the part of committed records: their corrections u times weights wc.
template <int NT, int M>
__device__ __forceinline__ void add_records(float (&acc)[NT][4], const float (&decay)[NT][2], const uint32_t (&u)[M][4], const uint32_t (&wc)[NT][M][2][2], int h) {
#pragma unroll
  for (int o = 0; o < NT; o++) {
#pragma unroll
    for (int e = 0; e < 4; e++) acc[o][e] *= decay[o][e & 1];
#pragma unroll
    for (int m = 0; m < M; m++)
      if (m * 16 < h) {
        mma_f16(acc[o], u[m], wc[o][m][1][0], wc[o][m][1][1]);
        mma_f16(acc[o], u[m], wc[o][m][0][0], wc[o][m][0][1]);
      }
  }
}

// Couplings among the new tokens, from this lane's products gt of query t_row and the new keys: those of keys, kk[t][j] (j < t),
// into coup; those of queries, wq[j][t] (j <= t), as a B operand: [tf32 term][register], rows j = 2c, 2c+1, column = query.
template <int NT>
__device__ __forceinline__ void couple_new(float* coup, uint32_t (&wq)[2][2], const float (&gt)[4], const Decays& decays, float until_query, int t_row, bool row_is_q, bool counts, float scale, int c) {
#pragma unroll
  for (int e = 0; e < 2; e++) {
    int j = 2 * c + e;
    float until = __shfl_sync(~0u, decays.until, j);
    float dec = j <= t_row && counts ? expf(until_query - until) : 0.f;
    float kk = gt[e] * dec, qk = NT == 2 ? gt[2 + e] * dec * scale : (row_is_q ? kk * scale : 0.f);
    if (!row_is_q) coup[t_row * 8 + j] = j < t_row ? kk : 0.f;
    wq[0][e] = bits(tf32_hi(qk));
    wq[1][e] = bits(qk - tf32_hi(qk));
  }
}

// The inverse as a B operand: [tf32 term][register].
__device__ __forceinline__ void load_inverse(uint32_t (&mi)[2][2], const float* inv, int g, int c) {
#pragma unroll
  for (int e = 0; e < 2; e++) {
    float x = inv[(2 * c + e) * 8 + g];
    mi[0][e] = bits(tf32_hi(x));
    mi[1][e] = bits(x - tf32_hi(x));
  }
}

template <class C>
__device__ void step(const Delta& p) {
  constexpr int P = C::P, HPC = C::HPC, W = C::W, STAGES = C::STAGES, NT = C::NT, M = W / 16, MT = W / 8 + 1;
  extern __shared__ __align__(128) uint8_t smem[];
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, c = lane & 3;
  const int khead = blockIdx.y, T = p.rows.t;
  const int vheads = p.value_heads, kheads = p.key_heads, values = p.values(), nkeys = p.keys();
  const int head0 = khead * (vheads / kheads) + blockIdx.x * HPC;
  // The cursors and committed records are older than the kernel in front: they may be read before the wait.
  if (!p.calm) pdl_wait();
  const int row = row_from_last(p, lane);
  if (row < 0) return pdl_wait();
  const StepRow found(p, row, false);
  const int n = found.n, slot = found.slot;
  if (n == 0) {
    pdl_wait();
    clear_row(p, row, 0, head0 * P, HPC * P);
    return;
  }
  if (has_first(p) && has_another(p, found, lane)) return pdl_wait();
  const RecordRows<W> rows = {found.h, n};
  const int h = rows.h, origin = found.origin, src = found.src, dst = found.dst, token0 = p.rows.first + row * T;
  const bool flush = found.flushes(p.state);
  BlockConv<C::THREADS, Pieces<C>::COUNT, C::T, C::SPAN> conv = {ConvRow(p, row)};

  // ---- the warp's part of the checkpoint
  const int hd = warp / C::WPH, sub = warp % C::WPH;  // this warp's head and its share of its tiles
  constexpr int tiles = C::TILES;
  const int64_t first = ((int64_t)(head0 + hd) * P + sub * TILE_ROWS) * KEYS;  // element of the warp's first tile
  uint8_t* const stages = smem + warp * C::RING;
  uint64_t* const bars = reinterpret_cast<uint64_t*>(smem + C::BARS) + warp * STAGES;
  auto tile_at = [&](int i) { return i * C::WPH * TILE_ROWS * KEYS; };  // elements from `first`
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
  __half* const ring_u = reinterpret_cast<__half*>(slot_ring + p.state.x) + head0 * P;
  const bf16* const ring_k = reinterpret_cast<const bf16*>(slot_ring + p.state.b) + khead * KEYS;
  const float* const ring_g = reinterpret_cast<const float*>(slot_ring + p.state.decay) + head0;
  uint8_t* const us = smem + C::US;                    // u of committed records, v of new tokens, later their outputs
  uint32_t* const keys = reinterpret_cast<uint32_t*>(us + (W + T) * C::U_ROW);
  float* const gs = reinterpret_cast<float*>(smem + C::GS);
  float* const betas = gs + HPC * 8;
  float* const norm = reinterpret_cast<float*>(smem + C::NORM);
  constexpr int UP = HPC * P / 8;  // 16-byte pieces of one record's u
  constexpr int KP = (W * 16 + C::THREADS - 1) / C::THREADS;
  // Not through L1: what is read before the wait must not bring in lines that the kernel in front is writing.
  auto key_piece = [&](int i, int piece) { return __ldcg(reinterpret_cast<const uint4*>(ring_k + ring_at(i) * nkeys + piece * 8)); };
  static_assert(C::THREADS % UP == 0);
  const int u_i = threadIdx.x / UP, u_piece = threadIdx.x % UP;
  for (int i = u_i; i < h; i += C::THREADS / UP) cp_async16(us + i * C::U_ROW + u_piece * 16, ring_u + ring_at(i) * values + u_piece * 8);
  if (threadIdx.x < P / 4) cp_async16(norm + threadIdx.x * 4, at<float>(p.norm_w) + threadIdx.x * 4);
  const int g_i = (C::THREADS - 1 - threadIdx.x) / HPC, g_hd = threadIdx.x % HPC;  // this thread's gates, of new record g_i
  float g_v = 0.f, beta = 0.f, decay_a = 0.f, dt_bias = 0.f;
  if (g_i < n) decay_a = at<float>(p.decay_a)[head0 + g_hd], dt_bias = at<float>(p.dt_bias)[head0 + g_hd];
  const float old_decay = lane < h ? __ldcg(ring_g + ring_at(lane) * vheads + hd) : 0.f;
  uint4 kv[KP];
#pragma unroll
  for (int u = 0; u < KP; u++) {
    int idx = threadIdx.x + u * C::THREADS;
    if (idx >> 4 < h) kv[u] = key_piece(idx >> 4, idx & 15);
  }
  uint32_t* const gates = keys + (W + T) * KEY_WORDS;  // z of the new tokens, [T][HPC * P]
  uint32_t* const plain = gates + T * HPC * P / 2;     // q and k of the new tokens
  const Pieces<C> pieces = {p, khead, head0};
  auto channel = [&](int i) { return pieces.channel(i); };
  conv.load_old(p.state, p.conv_w, 0, p.conv(), channel);
  if (lane == 0)  // behind all that is small: the first pass waits for it too
    for (int s = 0; s < STAGES && s < tiles; s++) request(s);
  pdl_wait();
  pdl_trigger();
  conv.load_new(p.qkv, channel);
  load_gates<C>(p, gates, token0, n, head0);
  if (g_i < n)
    g_v = widen(row_of<bf16>(p.a, token0 + g_i)[head0 + g_hd]), beta = widen(row_of<bf16>(p.b, token0 + g_i)[head0 + g_hd]);
  Decays decays(old_decay, lane);
  const float gamma = expf(decays.total);
  const float fold_w = lane < h ? expf(decays.after) : 0.f;  // weight of record `lane` in the new checkpoint
  conv.finish([&](int i, int t, float(&y)[8], uint4 raw) { pieces.keep(conv.r, i, t, y, raw, blockIdx.x == 0, plain, keys, us); });
  if (g_i < n) {
    g_v = decay_a * softplus(g_v + dt_bias), beta = sigmoid(beta);
    conv.r.template record<float>(p.state, p.state.decay, g_i, vheads)[head0 + g_hd] = g_v;
  }
#pragma unroll
  for (int u = 0; u < KP; u++) {
    int idx = threadIdx.x + u * C::THREADS;
    if (idx >> 4 < h) store_key_piece(keys, idx >> 4, idx & 15, kv[u]);
  }
  if (g_i < 8) gs[g_hd * 8 + g_i] = g_v, betas[g_hd * 8 + g_i] = beta;
  cp_async_wait_all();
  __syncthreads();
  // queries as fragments: lane (g, c) holds columns 16i+4c..+3 of query g
  const int t_row = NT == 2 ? g : g & 3;  // token of this lane's query
  const bool row_is_q = NT == 1 && g >= 4, counts = t_row < n;
  uint32_t q[NT][16];
#pragma unroll
  for (int m = 0; m < NT; m++) {
    const uint32_t* const from = plain + (((NT == 2 ? m == 1 : g >= 4) ? 0 : T) + t_row) * KEY_WORDS + c * 2;
#pragma unroll
    for (int i = 0; i < 8; i++) {
      uint2 v = make_uint2(0, 0);
      if (counts) v = *reinterpret_cast<const uint2*>(from + i * 8);
      q[m][2 * i] = v.x, q[m][2 * i + 1] = v.y;
    }
  }

  float fw[M][4];
  spread_weights(fw, fold_w, lane);
  uint32_t key_lane[M];
#pragma unroll
  for (int m = 0; m < M; m++) key_lane[m] = key_address<W>(keys, lane, m, rows);
  float* const coup = reinterpret_cast<float*>(smem + C::SCRATCH + warp * 512);
  float* const inv = coup + 64;
  const float scale = 0.08838834764831845f;  // 1 / sqrt(128)

  const uint32_t cut = TF32_CUT | p.state.window >> 31;  // the window is positive
  // What this lane stores of a tile: half a row of u or o.
  const int out_line = lane >> 1, out_t = NT == 2 ? out_line & 7 : out_line & 3;
  const bool out_is_o = NT == 2 ? out_line >= 8 : out_line >= 4, out_counts = out_t < n && out_line < 8 * NT;
  __half* const out_u = ring_u + (int64_t)ring_at(h + out_t) * values + (lane & 1) * 8;
  const int out_o = (W + out_t) * C::U_ROW + (lane & 1) * 16;
  // ---- weights, made behind the first pass, which gives way to the next tile
  uint32_t wc[NT][M][2][2];  // of committed records: [operand][16 records][fp16 term][B register]
  uint32_t wq[2][2], mi[2][2];
  float decay[NT][2];  // of the checkpoint for this lane's output columns 2c, 2c+1 of each operand
  auto make_weights = [&] {
    float gt[MT][4];  // inner products of new queries and keys with all records
    int key_rows[MT];
    query_key_rows<W>(key_rows, lane, rows);
    query_key<NT, MT>(gt, q, keys, lane, key_rows);
    decays.extend(lane < n ? gs[hd * 8 + lane] : 0.f, lane);
    const float e_until = expf(decays.until), until_query = __shfl_sync(~0u, decays.until, t_row), e_query = __shfl_sync(~0u, e_until, t_row);
#pragma unroll
    for (int m = 0; m < MT - 1; m++) {
      float dec[2];
#pragma unroll
      for (int e = 0; e < 2; e++) dec[e] = counts ? fw[m >> 1][(m & 1) * 2 + e] * e_query : 0.f;
#pragma unroll
      for (int o = 0; o < NT; o++) {
        const float f = (NT == 2 ? o == 1 : row_is_q) ? scale : 1.f;
        split2_f16(gt[m][o * 2] * dec[0] * f, gt[m][o * 2 + 1] * dec[1] * f, wc[o][m >> 1][0][m & 1], wc[o][m >> 1][1][m & 1]);
      }
    }
    couple_new<NT>(coup, wq, gt[MT - 1], decays, until_query, t_row, row_is_q, counts, scale, c);
    inv[lane] = inv[lane + 32] = 0.f;
    __syncwarp();
    if (lane < C::T) {  // row `lane` of the inverse: u_t = sum_i r_i inv[i][t]
      float m[C::T];
#pragma unroll
      for (int t = 0; t < C::T; t++) {
        float x = t == lane ? 1.f : 0.f, row[8];
        *reinterpret_cast<float4*>(row) = *reinterpret_cast<const float4*>(coup + t * 8);
        if (t > 4) *reinterpret_cast<float4*>(row + 4) = *reinterpret_cast<const float4*>(coup + t * 8 + 4);
#pragma unroll
        for (int j = 0; j < t; j++) x -= row[j] * m[j];
        m[t] = x * betas[hd * 8 + t];
        inv[lane * 8 + t] = m[t];
      }
    }
    __syncwarp();
    load_inverse(mi, inv, g, c);
    __syncwarp();
#pragma unroll
    for (int e = 0; e < 2; e++) {
      int column = 2 * c + e, t = NT == 2 ? column : column & 3;
      float d = gamma * __shfl_sync(~0u, e_until, t);
#pragma unroll
      for (int o = 0; o < NT; o++) {
        decay[o][e] = d * ((NT == 2 ? o == 1 : c >= 2) ? scale : 1.f);
      }
    }
  };

#pragma unroll 1
  for (int it = 0; it < tiles; it++) {
    const int tile = sub + it * C::WPH;
    uint8_t* const data = stages + it % STAGES * TILE_BYTES;
    mbar_wait(bars + it % STAGES, it / STAGES & 1);
    uint8_t* const tile_us = us + (hd * P + tile * TILE_ROWS) * 2;
    uint32_t u[M][4];  // corrections of committed records
    auto load_u = [&] {
#pragma unroll
      for (int m = 0; m < M; m++) {
        u[m][0] = u[m][1] = u[m][2] = u[m][3] = 0;
        if (m * 16 < h) ldmatrix_x4_trans(u[m], value_address<W>(tile_us, C::U_ROW, lane, m, rows));
      }
    };
    float acc[NT][4];
    uint32_t wv[M][3][4];
    if (flush) {
      load_u();
#pragma unroll
      for (int m = 0; m < M; m++)
#pragma unroll
        for (int r = 0; r < 4; r++) {  // weighted corrections
          const float2 v = unpack_f16(u[m][r]);
          split3_bf16(v.x * fw[m][(r >> 1) * 2], v.y * fw[m][(r >> 1) * 2 + 1], wv[m][0][r], wv[m][1][r], wv[m][2][r]);
        }
      tile_pass<NT, M, true>(data, q, acc, lane, cut, at<float>(p.state.block(dst)) + first + tile_at(it), gamma, wv, key_lane);
    } else {
      tile_pass<NT, M, false>(data, q, acc, lane, cut, nullptr, gamma, wv, key_lane);
    }
    __syncwarp();
    if (lane == 0 && it + STAGES < tiles) request(it + STAGES);
    if (it == 0) make_weights();
    // ---- committed records
    load_u();
    add_records(acc, decay, u, wc, h);
    // ---- residuals r = v - (known part) of the key columns; element e: row g + 8 (e >> 1), column 2c + (e & 1)
    uint32_t v[2];
    ldmatrix_x2_trans(v, fresh_address<W>(tile_us, C::U_ROW, lane, rows));
    const float2 v0 = unpack_f16(v[0]), v1 = unpack_f16(v[1]);
    const float r[4] = {2 * c < n ? v0.x - acc[0][0] : 0.f, 2 * c + 1 < n ? v0.y - acc[0][1] : 0.f, 2 * c < n ? v1.x - acc[0][2] : 0.f,
                        2 * c + 1 < n ? v1.y - acc[0][3] : 0.f};
    // ---- corrections u = r inv, then outputs += u wq. A fragments: k-slot c = column 2c, k-slot c+4 = column 2c+1
    float rh[4], un[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
    for (int e = 0; e < 4; e++) rh[e] = tf32_hi(r[e]);
    mma_tf32(un, bits(r[0] - rh[0]), bits(r[2] - rh[2]), bits(r[1] - rh[1]), bits(r[3] - rh[3]), mi[0][0], mi[0][1]);
    mma_tf32(un, bits(rh[0]), bits(rh[2]), bits(rh[1]), bits(rh[3]), mi[1][0], mi[1][1]);
    mma_tf32(un, bits(rh[0]), bits(rh[2]), bits(rh[1]), bits(rh[3]), mi[0][0], mi[0][1]);
    // what the record holds is what is used
    const uint32_t u01 = pack_f16(saturate_f16(un[0]), saturate_f16(un[1])), u23 = pack_f16(saturate_f16(un[2]), saturate_f16(un[3]));
    const float2 x01 = unpack_f16(u01), x23 = unpack_f16(u23);
    float(&out)[4] = acc[NT - 1];
    mma_tf32(out, bits(x01.x), bits(x23.x), bits(x01.y), bits(x23.y), wq[1][0], wq[1][1]);
    mma_tf32(out, bits(x01.x), bits(x23.x), bits(x01.y), bits(x23.y), wq[0][0], wq[0][1]);
    // ---- store u, keep o: 16-bit rows of 16 values through the staging buffer; one operand: rows 0..3 u, 4..7 o
    const uint32_t stage_addr = smem_addr(coup) + (lane & 7) * 32 + (lane >> 3 & 1) * 16;
    const uint32_t o01 = pack_bf16(out[0], out[1]), o23 = pack_bf16(out[2], out[3]);
    __syncwarp();
    if constexpr (NT == 1) {
      stmatrix_x2_trans(stage_addr, c < 2 ? u01 : o01, c < 2 ? u23 : o23);
    } else {
      stmatrix_x2_trans(stage_addr, u01, u23);
      stmatrix_x2_trans(stage_addr + 256, o01, o23);
    }
    __syncwarp();
    if (out_counts) {
      uint4 v = *reinterpret_cast<const uint4*>(reinterpret_cast<const uint8_t*>(coup) + lane * 16);
      if (out_is_o)  // in the place of v, for the norm
        *reinterpret_cast<uint4*>(tile_us + out_o) = v;
      else
        *reinterpret_cast<uint4*>(out_u + hd * P + tile * TILE_ROWS) = v;
    }
  }
  block_norm<C>(p, us, gates, norm, token0, n, head0);
}

}  // namespace delta
