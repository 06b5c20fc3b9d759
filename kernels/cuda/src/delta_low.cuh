// The step of a Gated DeltaNet layer with heads of 128 x 128 in bfloat16 from checkpoints below float32: corrections, outputs,
// flushes and the gated norm, behind the convolution of delta_convolve.cuh.
#pragma once
#include "delta_anew.cuh"
#include "delta_step.cuh"
#include "delta_token.cuh"

namespace delta {

// Block = (row, key head, HPC of its value heads). Queries and corrections as in delta_step.cuh.
// T_: most tokens a row. FORMAT: what rows read that do not flush. MIX: the convolution of one token is in the kernel, and the
// state has one precision.
template <int T_, int W_, int WARPS_, int STAGES_, int FORMAT_, bool MIX_, Role ROLE_>
struct LowConfig {
  static constexpr bool MIX = MIX_;
  static constexpr Role ROLE = ROLE_;
  static constexpr int FORMAT = FORMAT_, T = T_, W = W_, HPC = 2, WARPS = WARPS_, WPH = WARPS / HPC, STAGES = STAGES_, P = KEYS;
  static constexpr int TILES = P / TILE_ROWS / WPH;  // of a warp
  static constexpr int STAGE = Low<FORMAT>::TILE, RING = MIX || ROLE == READS ? STAGES * STAGE : T > 1 ? TILE_BYTES : 0;  // bytes
  static_assert(STAGES * STAGE <= TILE_BYTES);
  static constexpr int THREADS = WARPS * 32;
  static constexpr int NT = T > 4 ? 2 : 1;  // query operands
  static constexpr int U_ROW = HPC * P * 2 + 16;
  // shared memory behind the rings; what depends on the number of records comes last
  static constexpr int WORDS = 128;  // of scratch a warp
  static constexpr int SCRATCH = 0;  // a warp: 8x8 couplings, 8x8 inverse; reused as output staging
  static constexpr int BARS = SCRATCH + WARPS * WORDS * 4;
  static constexpr int GS = BARS + WARPS * STAGES * 8;  // log decays [W + 8][HPC], beta [8][HPC]
  static constexpr int SCALES = (GS + HPC * (W + 16) * 4 + 15) / 16 * 16;  // of the value rows, then of the heads
  static constexpr int WHOLE = HPC * P * Low<FORMAT>::SCALES;
  static constexpr int US = SCALES + (WHOLE + HPC * 4 + 15) / 16 * 16;
  static_assert(W * HPC <= THREADS);
};

// z of a token's head, four columns a lane.
__device__ __forceinline__ uint2 load_gate(const Delta& p, int64_t token, int head, int lane) { return *reinterpret_cast<const uint2*>(row_of<bf16>(p.z, token) + head * KEYS + lane * 4); }
// o / rms(o) w silu(z)
__device__ __forceinline__ uint2 gate(uint2 o, uint2 z, float4 w, float eps) {
  const float o0 = bf_lo(o.x), o1 = bf_hi(o.x), o2 = bf_lo(o.y), o3 = bf_hi(o.y);
  const float f = rsqrtf(warp_sum(o0 * o0 + o1 * o1 + o2 * o2 + o3 * o3) * (1.f / KEYS) + eps);
  return make_uint2(pack_bf16(o0 * f * w.x * quick_silu(bf_lo(z.x)), o1 * f * w.y * quick_silu(bf_hi(z.x))),
                    pack_bf16(o2 * f * w.z * quick_silu(bf_lo(z.y)), o3 * f * w.w * quick_silu(bf_hi(z.y))));
}
template <class C>
__device__ __forceinline__ uint2 output_of(const uint8_t* us, int t, int hd, int lane) {
  return *reinterpret_cast<const uint2*>(us + (C::W + t) * C::U_ROW + hd * C::P * 2 + lane * 8);
}

// The gated norm, one warp a (head, token); outputs are in the rows of new tokens.
template <class C>
__device__ __forceinline__ void gated_norm(const Delta& p, const uint8_t* us, int64_t token0, int n, int head0, int warp, int lane) {
  const float4 w = *reinterpret_cast<const float4*>(at<float>(p.norm_w) + lane * 4);
  __syncthreads();
  for (int r = warp; r < C::HPC * p.rows.t; r += C::WARPS) {
    const int hd = r % C::HPC, t = r / C::HPC;
    const uint2 y = t < n ? gate(output_of<C>(us, t, hd, lane), load_gate(p, token0 + t, head0 + hd, lane), w, p.eps) : make_uint2(0, 0);
    *reinterpret_cast<uint2*>(row_of<bf16>(p.out, token0 + t) + (head0 + hd) * C::P + lane * 4) = y;
  }
}

// The token's convolved channels into shared memory and records, all by the block's threads; in front of it, the wait for the
// kernel in front. key: a plain row. first: this block keeps q and k of its key head.
template <class C>
__device__ __forceinline__ void convolve_token(const Delta& p, int row, int khead, int head0, bool first, uint32_t* plain, uint32_t* key, uint8_t* values) {
  const Pieces<C> pieces = {p, khead, head0};
  auto channel = [&](int i) { return pieces.channel(i); };
  BlockConv<C::THREADS, Pieces<C>::COUNT, 1, 1> conv = {ConvRow(p, row)};
  conv.load_old(p.state, p.conv_w, 0, p.conv(), channel);
  pdl_wait();
  pdl_trigger();
  conv.load_new(p.qkv, channel);
  conv.finish([&](int i, int t, float(&y)[8], uint4 raw) {
    const int vector = i / 16, piece = i % 16;
    if (vector < 2) {
      normalise(y);
      const uint4 rounded = pack_piece(y);
      *reinterpret_cast<uint4*>(plain + vector * KEY_WORDS + piece * 4) = rounded;
      if (vector == 1) *reinterpret_cast<uint4*>(key + piece * 4) = rounded;
      if (vector == 1 && first) *reinterpret_cast<uint4*>(conv.r.template record<bf16>(p.state, p.state.b, t, p.keys()) + channel(i) - p.keys()) = rounded;
    } else {
      *reinterpret_cast<uint4*>(values + (vector - 2) * KEYS * 2 + piece * 16) = pack_values(y);
    }
    if (vector >= 2 || first) *conv.r.raw(p.state, t, p.conv(), channel(i)) = raw;
  });
}

template <class C>
__device__ __forceinline__ void low_row(const Delta& p, int row) {
  constexpr int P = C::P, HPC = C::HPC, W = C::W, NT = C::NT, M = W / 16, MT = W / 8 + 1;
  extern __shared__ __align__(128) uint8_t smem[];
  uint8_t* const space = smem + C::WARPS * ring_bytes<C>(p.state);
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, c = lane & 3;
  const int khead = blockIdx.y, T = C::ROLE == EITHER ? p.rows.t : 1;
  const int vheads = p.value_heads, kheads = p.key_heads, values = p.values(), nkeys = p.keys();
  const int head0 = (khead * gridDim.x + blockIdx.x) * HPC;
  // The cursors and committed records are older than the kernel in front: they may be read before the wait.
  const StepRow found(p, row, C::ROLE != FLUSHES);
  if (C::ROLE == READS && found.flushes(p.state)) return;
  if (C::ROLE != FLUSHES && found.n == 0) {
    if (C::ROLE != READS) pdl_wait();
    clear_row(p, row, 0, head0 * P, HPC * P);
    return;
  }
  const int n = C::ROLE == EITHER ? found.n : 1, slot = found.slot;
  if (C::ROLE == EITHER && has_another(p, found, lane)) return pdl_wait();
  const RecordRows<W> rows = {found.h, n};
  const int h = rows.h, origin = found.origin, src = found.src, dst = found.dst, token0 = p.rows.first + row * T;
  const bool flush = C::ROLE == FLUSHES || C::ROLE == EITHER && h + n > p.state.window;

  // ---- start streaming: WPH warps have a head, each TILES one behind the other
  const int sub = warp % C::WPH, hd = warp / C::WPH, head = head0 + hd;
  const int64_t first = (int64_t)head * P + sub * C::TILES * TILE_ROWS;  // value row
  uint8_t* const us = space + C::US;                    // u of committed records, v of new tokens, later their outputs
  uint32_t* const keys = reinterpret_cast<uint32_t*>(us + (W + T) * C::U_ROW);
  uint32_t* const plain = keys + (W + T) * KEY_WORDS;  // q and k of the new tokens
  Solver<W>* const solvers = reinterpret_cast<Solver<W>*>(plain + 2 * T * KEY_WORDS);  // of two precisions
  uint8_t* const ring = smem + warp * ring_bytes<C>(p.state);
  uint64_t* const bars = reinterpret_cast<uint64_t*>(space + C::BARS) + warp * C::STAGES;
  const Reads<C> reads = {ring, bars, p.state.block(src) + p.state.lp.values + first * Low<C::FORMAT>::ROW_BYTES};
  Flush<C> fold = {p.state, p.state.block(src), p.state.block(dst), p.state.noise(origin + h), head, first, ring, bars};
  if (lane == 0) {
    for (int s = 0; s < barriers<C>(); s++) mbar_init(bars + s, 1);
    mbar_init_fence();
    if (flush)
      with_format<C::FORMAT, !C::MIX>(p.state.hp.format, [&](auto f) { fold.template start<decltype(f)::value>(); });
    else
      reads.start();
  }

  // ---- records into shared memory
  const int capacity = p.state.records, origin_at = (uint32_t)origin % (uint32_t)capacity;
  auto ring_at = [&](int i) { int at = origin_at + i; return at >= capacity ? at - capacity : at; };
  const uint64_t slot_ring = p.state.rings + (int64_t)slot * p.state.ring_stride;
  __half* const ring_u = reinterpret_cast<__half*>(slot_ring + p.state.x) + head0 * P;
  const bf16* const ring_k = reinterpret_cast<const bf16*>(slot_ring + p.state.b) + khead * KEYS;
  const float* const ring_g = reinterpret_cast<const float*>(slot_ring + p.state.decay) + head0;
  const int64_t local0 = (int64_t)(row - p.row0) * T;  // the row's first token in scratch
  float* const gs = reinterpret_cast<float*>(space + C::GS);
  float* const betas = gs + HPC * (W + 8);
  static_assert(HPC * P / 8 == 32);
  const int g_i = threadIdx.x / HPC, g_hd = threadIdx.x % HPC;  // this thread's gates: record g_i, and new record g_i
  // Not through L1: what is read before the wait must not bring in lines that the kernel in front is writing.
  float g_v[2], beta = 0.f;
  if (g_i < h) g_v[0] = __ldcg(ring_g + ring_at(g_i) * vheads + g_hd);
#pragma unroll 1
  for (int i = warp; i < h; i += C::WARPS) {  // a warp takes a record at a time
    const uint32_t at = ring_at(i);
    cp_async16(us + i * C::U_ROW + lane * 16, ring_u + (at * values + lane * 8));
    if (lane < 16) cp_async16(keys + i * KEY_WORDS + lane * 4, ring_k + (at * nkeys + lane * 8));
  }
  auto prefetch_gates = [&] {
    for (int idx = threadIdx.x; idx < n * HPC * 2; idx += C::THREADS) {
      prefetch_l2(row_of<bf16>(p.z, token0 + idx / (HPC * 2)) + head0 * P + idx % (HPC * 2) * 64);
      if (C::ROLE == READS) break;
    }
  };
  if constexpr (!C::MIX) prefetch_gates();  // the convolution lies between this kernel and the product
  if (!C::MIX && flush && p.state.two)  // the values that corrections are derived from
    for (int idx = threadIdx.x; idx < h * HPC * 2; idx += C::THREADS)
      prefetch_l2(at<bf16>(slot_ring + p.state.v) + (int64_t)ring_at(idx / (HPC * 2)) * values + head0 * P + idx % (HPC * 2) * 64);
  load_scales<C>(space + C::SCALES, flush ? p.state.hp : p.state.lp, p.state.block(src), head0);
  const bool alone = C::ROLE != FLUSHES && T == 1 && !flush;  // the new record's key and decay lie behind the others
  if constexpr (C::MIX) {
    convolve_token<C>(p, row, khead, head0, blockIdx.x == 0, plain, keys + (alone ? h : W) * KEY_WORDS, us + W * C::U_ROW);
    prefetch_gates();
    if (g_i < n) {
      const int gate = ring_at(h) * vheads + g_hd, of = head0 + g_hd;
      g_v[1] = log_decay(p, widen(row_of<bf16>(p.a, token0)[of]), of);
      beta = sigmoid(widen(row_of<bf16>(p.b, token0)[of]));
      at<float>(slot_ring + p.state.decay)[gate + head0] = g_v[1];
    }
  } else {
    if (C::ROLE != READS) pdl_wait();
    pdl_trigger();
#pragma unroll 1
    for (int t = warp; t < n; t += C::WARPS) {
      const bf16* const key = ring_k + (int64_t)ring_at(h + t) * nkeys;
      if (lane < 16) cp_async16(keys + (alone ? h : W + t) * KEY_WORDS + lane * 4, key + lane * 8);
      cp_async16(us + (W + t) * C::U_ROW + lane * 16, reinterpret_cast<const __half*>(p.value) + (local0 + t) * values + head0 * P + lane * 8);
      cp_async16(plain + (lane < 16 ? t : T + t) * KEY_WORDS + (lane & 15) * 4, (lane < 16 ? reinterpret_cast<const bf16*>(p.query) + (local0 + t) * nkeys + khead * KEYS : key) + (lane & 15) * 8);
    }
    if (g_i < n) {
      g_v[1] = __ldcg(ring_g + ring_at(h + g_i) * vheads + g_hd);
      beta = __ldcg(at<float>(p.beta) + (local0 + g_i) * vheads + head0 + g_hd);
    }
  }
  if (g_i < n) gs[(alone ? h : W + g_i) * HPC + g_hd] = g_v[1];
  if (g_i < h) gs[g_i * HPC + g_hd] = g_v[0];
  if (g_i < 8) betas[g_i * HPC + g_hd] = beta;
  cp_async_wait_all();
  __syncthreads();
  const float scale = 0.08838834764831845f;  // 1 / sqrt(128)
  if constexpr (C::ROLE != FLUSHES)
    if (alone) {
      const uint2 z = load_gate(p, token0, head0 + warp % HPC, lane);  // on its way while tiles are read
      one_token<C>(reads, us, ring_u + (int64_t)ring_at(h) * values, keys, plain, gs, space + C::SCALES, space + C::SCRATCH, scale, h, hd, sub, lane);
      const float4 w = *reinterpret_cast<const float4*>(at<float>(p.norm_w) + lane * 4);
      __syncthreads();
      const uint2 o = output_of<C>(us, 0, warp % HPC, lane);
      if (warp < HPC) *reinterpret_cast<uint2*>(row_of<bf16>(p.out, token0) + (head0 + warp) * P + lane * 4) = gate(o, z, w, p.eps);
      return;
    }
  permute_keys<C>(keys, rows);
  // queries as fragments: lane (g, c) holds columns 16i+4c..+3 of query g
  const int t_row = NT == 2 ? g : g & 3;  // token of this lane's query
  const bool row_is_q = NT == 1 && g >= 4, counts = t_row < n;
  auto query = [&](int m, int t) { return plain + ((NT == 2 ? m == 0 : g < 4) ? T + t : t) * KEY_WORDS; };
  uint32_t q[NT][16];
#pragma unroll
  for (int m = 0; m < NT; m++)
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const uint2 v = counts ? *reinterpret_cast<const uint2*>(query(m, t_row) + i * 8 + c * 2) : make_uint2(0, 0);
      q[m][2 * i] = v.x, q[m][2 * i + 1] = v.y;
    }

  // ---- inner products of new queries and keys with all records, once for all heads of the warp
  float gt[MT][4];
  int key_rows[MT];
  query_key_rows<W>(key_rows, lane, rows);
  query_key<NT, MT>(gt, q, keys, lane, key_rows);
  uint32_t key_lane[M];
#pragma unroll
  for (int m = 0; m < M; m++) key_lane[m] = key_address<W>(keys, lane, m, rows);
  float* const coup = reinterpret_cast<float*>(space + C::SCRATCH + warp * 512);
  float* const inv = coup + 64;
  float down[NT];
  if (!flush)
#pragma unroll
    for (int m = 0; m < NT; m++) down[m] = load_low_query<C::FORMAT>(q[m], query(m, t_row), counts, lane) * head_scale<C>(space + C::SCALES, hd);

  const Decays decays(lane < h ? gs[lane * HPC + hd] : 0.f, lane < n ? gs[(W + lane) * HPC + hd] : 0.f, lane);
  const float until_query = __shfl_sync(~0u, decays.until, t_row);
  // ---- weights of committed records: [operand][16 records][fp16 term][B register]
  uint32_t wc[NT][M][2][2];
#pragma unroll
  for (int m = 0; m < MT - 1; m++) {
    float dec[2];
#pragma unroll
    for (int e = 0; e < 2; e++) {
      int j = m * 8 + 2 * c + e;
      float after = __shfl_sync(~0u, decays.after, j);
      dec[e] = j < h && counts ? expf(after + until_query) : 0.f;
    }
#pragma unroll
    for (int o = 0; o < NT; o++) {
      const float f = (NT == 2 ? o == 1 : row_is_q) ? scale : 1.f;
      split2_f16(gt[m][o * 2] * dec[0] * f, gt[m][o * 2 + 1] * dec[1] * f, wc[o][m >> 1][0][m & 1], wc[o][m >> 1][1][m & 1]);
    }
  }
  uint32_t wq[2][2];
  __syncwarp();  // scratch free (output staging of the previous head)
  couple_new<NT>(coup, wq, gt[MT - 1], decays, until_query, t_row, row_is_q, counts, scale, c);
  inv[lane] = inv[lane + 32] = 0.f;
  __syncwarp();
  if (lane < C::T) {  // row `lane` of the inverse: u_t = sum_i r_i inv[i][t]
    float m[C::T];
#pragma unroll
    for (int t = 0; t < C::T; t++) {
      float x = t == lane ? 1.f : 0.f;
#pragma unroll
      for (int j = 0; j < t; j++) x -= coup[t * 8 + j] * m[j];
      m[t] = x * betas[t * HPC + hd];
      inv[lane * 8 + t] = m[t];
    }
  }
  __syncwarp();
  uint32_t mi[2][2];
  load_inverse(mi, inv, g, c);
  __syncwarp();
  // decay of the checkpoint for this lane's output columns 2c, 2c+1 of each operand
  float decay[NT][2];
#pragma unroll
  for (int e = 0; e < 2; e++) {
    int column = 2 * c + e, t = NT == 2 ? column : column & 3;
    float d = expf(decays.total + __shfl_sync(~0u, decays.until, t));
#pragma unroll
    for (int o = 0; o < NT; o++) {
      decay[o][e] = d * ((NT == 2 ? o == 1 : c >= 2) ? scale : 1.f);
      if (!flush) decay[o][e] *= __shfl_sync(~0u, down[o], column * 4);
    }
  }

  // The corrections and outputs of a tile from what the state gave.
  auto values_at = [&](int i) { return us + (hd * P + (sub * C::TILES + i) * TILE_ROWS) * 2; };
  auto load_values = [&](uint32_t (&u)[M][4], int i) {
#pragma unroll
    for (int m = 0; m < M; m++) {
      u[m][0] = u[m][1] = u[m][2] = u[m][3] = 0;
      if (m * 16 < h) ldmatrix_x4_trans(u[m], value_address<W>(values_at(i), C::U_ROW, lane, m, rows));
    }
  };
  auto emit = [&](float (&acc)[NT][4], const uint32_t (&u)[M][4], int i) {
    uint8_t* const tile_us = values_at(i);
    // ---- committed records
    add_records(acc, decay, u, wc, h);
    // ---- residuals r = v - (known part) of the key columns; element e: row g + 8 (e >> 1), column 2c + (e & 1)
    float r[4];
#pragma unroll
    for (int e = 0; e < 4; e++) {
      int t = 2 * c + (e & 1);
      r[e] = t < n && (NT == 2 || c < 2) ? __half2float(*reinterpret_cast<const __half*>(tile_us + (W + t) * C::U_ROW + (g + (e >> 1) * 8) * 2)) - acc[0][e] : 0.f;
    }
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
    const int line = lane >> 1, t = NT == 2 ? line & 7 : line & 3;
    const bool is_o = NT == 2 ? line >= 8 : line >= 4;
    if (t < n && line < 8 * NT) {
      uint4 v = *reinterpret_cast<const uint4*>(reinterpret_cast<const uint8_t*>(coup) + lane * 16);
      if (is_o)  // in the place of v, for the norm
        *reinterpret_cast<uint4*>(tile_us + (W + t) * C::U_ROW + (lane & 1) * 16) = v;
      else
        *reinterpret_cast<uint4*>(ring_u + (int64_t)ring_at(h + t) * values + hd * P + (sub * C::TILES + i) * TILE_ROWS + (lane & 1) * 8) = v;
    }
  };
  const uint8_t* const scales = space + C::SCALES + (hd * P + sub * C::TILES * TILE_ROWS) * Low<C::FORMAT>::SCALES;
  if (!flush) {
    reads.begin();
    for (int i = 0; i < C::TILES; i++) {
      uint32_t u[M][4];
      float acc[NT][4];
      const uint8_t* const data = reads.wait(i);
      load_values(u, i);
      low_pass<C::FORMAT, NT>(data, scales + i * TILE_ROWS * Low<C::FORMAT>::SCALES, q, acc, lane);
      reads.refill(i, lane);
      emit(acc, u, i);
    }
  } else {
    if (!C::MIX && p.state.two) {
      const float strength = lane < h ? __ldcg(at<float>(slot_ring + p.state.beta) + (int64_t)ring_at(lane) * vheads + head) : 0.f;
      make_solvers<C>(solvers, keys, rows, lane < h ? gs[lane * HPC + hd] : 0.f, strength, warp, lane);
    }
    const float gamma = expf(decays.total);
    const float fold_w = lane < h ? expf(decays.after) : 0.f;
    float fw[M][4];
    spread_weights(fw, fold_w, lane);
    const uint32_t* queries[NT];
#pragma unroll
    for (int m = 0; m < NT; m++) queries[m] = query(m, min(t_row, n - 1)) + c * 2;
    const bf16* const ring_v = at<bf16>(slot_ring + p.state.v) + first;
    with_format<C::FORMAT, !C::MIX>(p.state.hp.format, [&](auto f) {
      constexpr int HP = decltype(f)::value;
      fold.scales = space + C::SCALES + (hd * P + sub * C::TILES * TILE_ROWS) * Stored<HP>::SCALES;
      fold.whole = reinterpret_cast<const float*>(space + C::SCALES + C::WHOLE)[hd];
      Folding<M> folding = {gamma, {}, key_lane};
      fold.template run<HP, NT>(
          reinterpret_cast<uint32_t*>(space + C::SCRATCH), warp, lane, folding,
          [&](const RawTile<HP>& tile, int i) {
            uint32_t u[M][4];
            float anew[W / 8][4];
            if constexpr (HP == C::FORMAT)
              load_values(u, i);
            else
              derive<W, HP>(anew, tile, solvers[hd], keys, rows, lane, [&](int j) { return ring_v + (int64_t)ring_at(j) * values + i * TILE_ROWS; });
#pragma unroll
            for (int m = 0; m < M; m++)
#pragma unroll
              for (int r = 0; r < 4; r++) {
                // weighted corrections
                float x[2];
                if constexpr (HP == C::FORMAT) {
                  const float2 v = unpack_f16(u[m][r]);
                  x[0] = v.x * fw[m][(r >> 1) * 2], x[1] = v.y * fw[m][(r >> 1) * 2 + 1];
                } else {
                  x[0] = anew[2 * m + (r >> 1)][(r & 1) * 2], x[1] = anew[2 * m + (r >> 1)][(r & 1) * 2 + 1];
                }
                split3_bf16(x[0], x[1], folding.wv[m][0][r], folding.wv[m][1][r], folding.wv[m][2][r]);
              }
          },
          [&](int m, int k) { return *reinterpret_cast<const uint2*>(queries[m] + k * 8); },
          [&](int i, float (&acc)[NT][4]) {
            uint32_t u[M][4];
            load_values(u, i);
            emit(acc, u, i);
          });
    });
  }
  gated_norm<C>(p, us, token0, n, head0, warp, lane);
  if (C::ROLE == FLUSHES && lane == 0)
    for (int s = 0; s < barriers<C>(); s++) mbar_end(bars + s);
}

template <class C>
__device__ void low_step(const Delta& p) {
  if (C::MIX && !p.calm) pdl_wait();
  for_rows<C>(p, threadIdx.x & 31, [&](int row) { low_row<C>(p, row); });
}

}  // namespace delta

// delta_step_T_W_HEADS_WARPS_STAGES_FORMAT: as in delta_step.cu; FORMAT is that of kernels.StateFormat. Of one token:
// delta_whole_.. with the convolution, in one precision; delta_reads_.. and delta_flushes_..
#define DELTA_LOW(NAME, ROLE, MIX, T, W, WARPS, STAGES, MINB, FORMAT)                                                             \
  extern "C" __global__ void __launch_bounds__(WARPS * 32, MINB) delta_##NAME##_##T##_##W##_2_##WARPS##_##STAGES##_##FORMAT(PARAMS(Delta, p)) { \
    delta::low_step<delta::LowConfig<T, W, WARPS, STAGES, FORMAT, MIX, ROLE>>(p);                                                 \
  }
#define DELTA_LOW_ALL(STAGES, FORMAT) \
  DELTA_LOW(step, EITHER, false, 4, 16, 4, STAGES, 4, FORMAT) \
  DELTA_LOW(step, EITHER, false, 4, 32, 4, STAGES, 3, FORMAT) \
  DELTA_LOW(step, EITHER, false, 8, 32, 4, STAGES, 2, FORMAT)
#define DELTA_LOW_WHOLE(MINB, FORMAT) DELTA_LOW(whole, EITHER, true, 1, 16, 2, 2, MINB, FORMAT)
