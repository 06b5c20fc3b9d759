// The step of a Mamba-2 layer of State 128 in bfloat16 from checkpoints below float32, behind the convolution of
// mamba2_step.cuh; the gated norm is mamba2.cu's.
#pragma once
#include "flush_low.cuh"
#include "mamba2_step.cuh"

namespace mamba2 {

// Block = (row, group, HPC of its heads), a warp a head; P: value rows a head. FORMAT: what rows read that do not flush.
template <int P_, int W_, int STAGES_, int FORMAT_>
struct LowConfig {
  static constexpr Role ROLE = EITHER;
  static constexpr int FORMAT = FORMAT_, P = P_, W = W_, HPC = 4, WARPS = 4, WPH = 1, STAGES = STAGES_;
  static constexpr int TILES = P / TILE_ROWS;                // of a head
  static constexpr int STAGE = Low<FORMAT>::TILE, RING = 0;  // bytes
  static_assert(STAGES * STAGE <= TILE_BYTES && P % TILE_ROWS == 0);
  static constexpr int THREADS = WARPS * 32;
  static constexpr int X_ROW = HPC * P * 2 + 16;  // bytes of one record's x in shared memory
  // shared memory behind the rings; what depends on the number of records comes last
  static constexpr int OUT = 0, WORDS = 64;           // of staging a warp
  static constexpr int DT = OUT + WARPS * WORDS * 4;  // of records [W + 8][HPC], then A and D
  static constexpr int BARS = DT + HPC * (W + 8 + 2) * 4;
  static constexpr int SCALES = (BARS + WARPS * STAGES * 8 + 15) / 16 * 16;  // of the value rows, then of the heads
  static constexpr int WHOLE = HPC * P * Low<FORMAT>::SCALES;
  static constexpr int XS = SCALES + (WHOLE + HPC * 4 + 15) / 16 * 16;
};

// What the warps of a block that has one token make for each other.
struct OneToken {
  uint32_t query[64];  // in float16
  float down;          // what undoes its scale
  float products[32];  // of the query with the keys of records
};

// One token that does not flush; records 0 .. h, the new one last, lie in rows 0 .. h of shared memory. All columns of the
// tensor-core products are the same.
template <class C>
__device__ __forceinline__ void one_token(const Mamba2& p, const Reads<C>& reads, const uint8_t* xs, const uint32_t* keys, const uint32_t* plain, const float* dts,
                                          const uint8_t* scales, uint8_t* scratch, int h, int head0, int row, int hd, int lane) {
  constexpr int P = C::P, W = C::W, M = W / 16;
  constexpr bool PARTED = C::FORMAT == STATE_NVFP4, BF = Low<C::FORMAT>::BF;
  constexpr int TERMS = PARTED ? 1 : 3;  // bf16 terms of weights; or pairs of columns have a term each
  static_assert(sizeof(OneToken) <= C::WARPS * C::WORDS * 4);
  const int g = lane >> 2, c = lane & 3;
  OneToken& shared = *reinterpret_cast<OneToken*>(scratch);
  auto products = [&] {
    float gt[M][4];
    key_products<M>(gt, plain, plain, keys, h, lane);
    return product_of_lane<M>(gt, false, lane);
  };
  auto decays = [&](float& decayed, float& total) {
    const float dt = lane <= h ? dts[lane * C::HPC + hd] : 0.f, a = dts[C::HPC * (W + 8) + hd];
    float after;
    sum_decays<W>(dt * a, after, total, lane);
    decayed = dt * expf(after);
  };
  const uint8_t* const head_scales = scales + hd * P * Low<C::FORMAT>::SCALES;
  // What tile t gives to rows g and g + 8.
  uint32_t q[1][16];
  auto pass = [&](int t, float2& y) {
    float acc[1][4];
    const uint8_t* const tile = reads.wait(t);
    const uint8_t* const tile_scales = head_scales + t * TILE_ROWS * Low<C::FORMAT>::SCALES;
    if constexpr (PARTED)
      parted_pass(tile, tile_scales, q[0], acc[0], lane);
    else
      low_pass<C::FORMAT, 1>(tile, tile_scales, q, acc, lane);
    reads.refill(t, lane);
    y = make_float2(acc[0][0], acc[0][2]);
  };
  // The first tiles give way to those behind them before the weights are made.
  constexpr int AHEAD = Reads<C>::ONCE ? 0 : C::STAGES;
  float2 ahead[AHEAD + 1];
  float product, decayed, total, down = 1.f;
  if constexpr (AHEAD > 0) {
    uint32_t* const words = reinterpret_cast<uint32_t*>(scratch) + hd * C::WORDS;
    if (!BF) down = convert_query<C::FORMAT>(words, plain, lane);
    __syncwarp();
    load_lane_words<C::FORMAT>(q[0], BF ? plain : words, lane);
    if constexpr (PARTED) part_query(q[0], lane);
    reads.begin();
#pragma unroll
    for (int t = 0; t < AHEAD; t++) pass(t, ahead[t]);
    product = products();
    decays(decayed, total);
  } else {
    if (hd == 0) shared.products[lane] = products();
    if (!BF && hd == 1) {
      const float d = convert_query<C::FORMAT>(shared.query, plain, lane);
      if (lane == 0) shared.down = d;
    }
    decays(decayed, total);
    __syncthreads();
    load_lane_words<C::FORMAT>(q[0], BF ? plain : shared.query, lane);
    if constexpr (PARTED) part_query(q[0], lane);
    product = shared.products[lane];
    if (!BF) down = shared.down;
    reads.begin();
  }
  const float skip = dts[C::HPC * (W + 8) + C::HPC + hd];
  const float weight = lane > h ? 0.f : product * decayed + (lane == h ? skip : 0.f);
  uint32_t w[M][TERMS][2];  // [16 records][..][B operand register]
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int j = 16 * m + 8 * r + 2 * c;
      uint32_t term[3];
      split3_bf16(__shfl_sync(~0u, weight, j), __shfl_sync(~0u, weight, j + 1), term[0], term[1], term[2]);
      if constexpr (PARTED)
        w[m][0][r] = g < 2 ? term[0] : g < 4 ? term[1] : g < 6 ? term[2] : 0;
      else
#pragma unroll
        for (int i = 0; i < 3; i++) w[m][i][r] = term[i];
    }
  const float decay = expf(total) * down * head_scale<C>(scales, hd);
  uint32_t x_lane[M];
#pragma unroll
  for (int m = 0; m < M; m++) x_lane[m] = once(smem_addr(xs + hd * P * 2) + min(16 * m + (lane >> 4) * 8 + (lane & 7), h) * C::X_ROW + (lane >> 3 & 1) * 16);
  bf16* out = row_of<bf16>(p.out, p.rows.first + row) + ((head0 + hd) * P + g + c * 8);
  asm volatile("" : "+l"(out));
  auto finish = [&](float2 of_state) {
    float sum[4] = {};
#pragma unroll
    for (int m = 0; m < M; m++) {
      if (m * 16 > h) break;
      uint32_t x[4];
      ldmatrix_x4_trans(x, x_lane[m]);
      x_lane[m] += TILE_ROWS * 2;
#pragma unroll
      for (int i = TERMS - 1; i >= 0; i--) mma_bf16(sum, x, w[m][i][0], w[m][i][1]);
    }
    const float y0 = fmaf(of_state.x, decay, sum[0]), y1 = fmaf(of_state.y, decay, sum[2]);
    const float y = PARTED ? sum_of_lanes(y0, y1, lane) : c ? y1 : y0;
    if (c < 2) *out = narrow<bf16>(y);
    out += TILE_ROWS;
  };
#pragma unroll
  for (int t = 0; t < AHEAD; t++) finish(ahead[t]);
#pragma unroll 1
  for (int t = AHEAD; t < C::TILES; t++) {
    float2 y;
    pass(t, y);
    finish(y);
  }
}

template <class C>
__device__ __forceinline__ void low_row(const Mamba2& p, int row) {
  constexpr int P = C::P, HPC = C::HPC, W = C::W, M = W / 16, MT = W / 8 + 1;
  extern __shared__ __align__(128) uint8_t smem[];
  uint8_t* const space = smem + C::WARPS * ring_bytes<C>(p.state);
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, c = lane & 3;
  const int group = blockIdx.y, T = p.rows.t;
  // The cursors and committed records are older than the kernel in front: they may be read before the wait.
  const StepRow found(p, row, true);
  const int n = found.n, slot = found.slot;
  if (n == 0 || has_another(p, found, lane)) return pdl_wait();
  const RecordRows<W> rows = {found.h, n};
  const int h = rows.h, origin = found.origin, src = found.src, dst = found.dst;
  const int head0 = (group * gridDim.x + blockIdx.x) * HPC;  // first head of the block
  const bool flush = h + n > p.state.window;

  // ---- start streaming: a warp has a head
  const int hd = warp, head = head0 + hd;
  const int64_t line = (int64_t)head * P;  // value row
  uint8_t* const xs = space + C::XS;
  uint32_t* const keys = reinterpret_cast<uint32_t*>(xs + (W + T) * C::X_ROW);
  uint32_t* const plain = keys + (W + T) * KEY_WORDS;  // the queries
  uint8_t* const ring = smem + warp * ring_bytes<C>(p.state);
  uint64_t* const bars = reinterpret_cast<uint64_t*>(space + C::BARS) + warp * C::STAGES;
  const Reads<C> reads = {ring, bars, p.state.block(src) + p.state.lp.values + line * Low<C::FORMAT>::ROW_BYTES};
  Flush<C> fold = {p.state, p.state.block(src), p.state.block(dst), p.state.noise(origin + h), head, line, ring, bars};
  if (lane == 0) {
    for (int s = 0; s < C::STAGES; s++) mbar_init(bars + s, 1);
    mbar_init_fence();
    if (flush)
      with_format<C::FORMAT, true>(p.state.hp.format, [&](auto f) { fold.template start<decltype(f)::value>(); });
    else
      reads.start();
  }

  // ---- records into shared memory
  const int capacity = p.state.records, origin_at = (uint32_t)origin % (uint32_t)capacity;
  auto ring_at = [&](int i) { int at = origin_at + i; return at >= capacity ? at - capacity : at; };
  const uint64_t slot_ring = p.state.rings + (int64_t)slot * p.state.ring_stride;
  const int inner = p.inner(), bc = p.bc();
  float* const dts = reinterpret_cast<float*>(space + C::DT);
  float* const as = dts + HPC * (W + 8);  // A and D of the block's heads
  // A warp takes a record at a time: a lane a piece of x and another of what else there is.
  const uint8_t* const ring_x = at<uint8_t>(slot_ring + p.state.x) + head0 * P * 2;
  constexpr int MORE = HPC * P / 8 - 32;  // pieces of x behind the first 32
  const int piece = lane - MORE;          // of the key, then dt
  const uint8_t* from = ring_x + (32 + lane) * 16;
  uint8_t* to = xs + (32 + lane) * 16;
  uint32_t from_row = inner * 2, to_row = C::X_ROW;
  if (piece >= 0) from = at<uint8_t>(slot_ring + p.state.b) + group * KEYS * 2 + piece * 16, from_row = bc * 2, to = reinterpret_cast<uint8_t*>(keys) + piece * 16, to_row = KEY_WORDS * 4;
  if (piece == 16) from = at<uint8_t>(slot_ring + p.state.decay) + head0 * 4, from_row = p.heads * 4, to = reinterpret_cast<uint8_t*>(dts), to_row = HPC * 4;
  auto load_record = [&](int i, int to_at) {
    const uint32_t at = ring_at(i);
    cp_async16(xs + to_at * C::X_ROW + lane * 16, ring_x + (at * inner * 2 + lane * 16));
    if (piece <= 16) cp_async16(to + to_at * to_row, from + at * from_row);
  };
#pragma unroll 1
  for (int i = warp; i < h; i += C::WARPS) load_record(i, i);
  if (threadIdx.x < HPC) cp_async4(as + threadIdx.x, at<float>(p.a) + head0 + threadIdx.x), cp_async4(as + HPC + threadIdx.x, at<float>(p.d) + head0 + threadIdx.x);
  load_scales<C>(space + C::SCALES, flush ? p.state.hp : p.state.lp, p.state.block(src), head0);
  pdl_wait();
  pdl_trigger();
  const bool alone = T == 1 && !flush;  // the new record lies behind the others
#pragma unroll 1
  for (int t = warp; t < n; t += C::WARPS) {
    load_record(h + t, alone ? h : W + t);
    if (lane < 16) cp_async16(plain + t * KEY_WORDS + lane * 4, at<bf16>(p.query) + (uint32_t)(((row - p.row0) * T + t) * bc + group * KEYS + lane * 8));
  }
  cp_async_wait_all();
  __syncthreads();
  if (alone) return one_token<C>(p, reads, xs, keys, plain, dts, space + C::SCALES, space + C::OUT, h, head0, row, warp, lane);
  permute_keys<C>(keys, rows);
  uint32_t q[1][16];  // lane (g, c) holds columns 16i+4c..+3 of token g
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const uint2 v = g < n ? *reinterpret_cast<const uint2*>(plain + g * KEY_WORDS + i * 8 + c * 2) : make_uint2(0, 0);
    q[0][2 * i] = v.x, q[0][2 * i + 1] = v.y;
  }

  // ---- B_j . C_t, once for all heads of the warp
  float gt[MT][4];
  int key_rows[MT];
  query_key_rows<W>(key_rows, lane, rows);
  query_key<1, MT>(gt, q, keys, lane, key_rows);
  uint32_t key_lane[M];
#pragma unroll
  for (int m = 0; m < M; m++) key_lane[m] = key_address<W>(keys, lane, m, rows);
  const float query_down = flush ? 1.f : load_low_query<C::FORMAT>(q[0], plain + g * KEY_WORDS, g < n, lane);

  // ---- weights of this head. W[j][t] = exp(sum of log decay over (j, t]) dt_j (B_j . C_t)
  const float down = flush ? 1.f : query_down * head_scale<C>(space + C::SCALES, hd);
  const float a = as[hd], skip = as[HPC + hd];
  const float dt_old = lane < h ? dts[lane * HPC + hd] : 0.f, dt_new = lane < n ? dts[(W + lane) * HPC + hd] : 0.f;
  const Decays decays(dt_old * a, dt_new * a, lane);
  const float until_query = __shfl_sync(~0u, decays.until, g);
  uint32_t w[M][3][2], wn[3];  // [16 records][bf16 term][B operand register]; new records
#pragma unroll
  for (int m = 0; m < MT - 1; m++) {
    float v[2];
#pragma unroll
    for (int e = 0; e < 2; e++) {
      int j = m * 8 + 2 * c + e;
      float after = __shfl_sync(~0u, decays.after, j), dt = __shfl_sync(~0u, dt_old, j);
      v[e] = g < n && j < h ? gt[m][e] * dt * expf(after + until_query) : 0.f;
    }
    split3_bf16(v[0], v[1], w[m >> 1][0][m & 1], w[m >> 1][1][m & 1], w[m >> 1][2][m & 1]);
  }
  float v[2], decay[2];  // decay: of the checkpoint, for tokens 2c and 2c+1
#pragma unroll
  for (int e = 0; e < 2; e++) {
    int j = 2 * c + e;
    float until = __shfl_sync(~0u, decays.until, j), dt = __shfl_sync(~0u, dt_new, j);
    v[e] = g < n && j <= g ? gt[MT - 1][e] * dt * expf(until_query - until) : 0.f;
    if (g < n && j == g) v[e] += skip;
    decay[e] = expf(decays.total + until);
    decay[e] *= __shfl_sync(~0u, down, j * 4);
  }
  split3_bf16(v[0], v[1], wn[0], wn[1], wn[2]);

  // The outputs of a tile: the records' part, and what the state gave. Lane holds rows g, g+8, tokens 2c, 2c+1.
  auto values_at = [&](int tile) { return xs + (hd * P + tile * TILE_ROWS) * 2; };
  auto load_values = [&](uint32_t (&x)[M][4], int tile) {
#pragma unroll
    for (int m = 0; m < M; m++) ldmatrix_x4_trans(x[m], value_address<W>(values_at(tile), C::X_ROW, lane, m, rows));
  };
  auto emit = [&](float (&acc)[1][4], const uint32_t (&x)[M][4], int tile) {
    uint32_t xn[2];
    ldmatrix_x2_trans(xn, fresh_address<W>(values_at(tile), C::X_ROW, lane, rows));
    add_records(acc, decay, x, w, xn, wn, h);
    uint8_t* const out = space + C::OUT + warp * 256;
    __syncwarp();
    stmatrix_x2_trans(smem_addr(out) + (lane & 7) * 32 + (lane >> 3 & 1) * 16, pack_bf16(acc[0][0], acc[0][1]), pack_bf16(acc[0][2], acc[0][3]));
    __syncwarp();
    if (lane < 2 * n)
      *reinterpret_cast<uint4*>(row_of<bf16>(p.out, p.rows.first + row * T + (lane >> 1)) + line + tile * TILE_ROWS + (lane & 1) * 8) = *reinterpret_cast<uint4*>(out + lane * 16);
  };
  const uint8_t* const scales = space + C::SCALES + hd * P * Low<C::FORMAT>::SCALES;
  if (!flush) {
    reads.begin();
    for (int t = 0; t < C::TILES; t++) {
      uint32_t x[M][4];
      float acc[1][4];
      const uint8_t* const data = reads.wait(t);
      load_values(x, t);
      low_pass<C::FORMAT, 1>(data, scales + t * TILE_ROWS * Low<C::FORMAT>::SCALES, q, acc, lane);
      reads.refill(t, lane);
      emit(acc, x, t);
    }
    return;
  }

  // ---- flush
  const float gamma = expf(decays.total);
  const float fold_w = lane < h ? dt_old * expf(decays.after) : 0.f;  // weight of record `lane` in the new checkpoint
  float fw[M][4];
  spread_weights(fw, fold_w, lane);
  const uint32_t* const queries = plain + min(g, n - 1) * KEY_WORDS + c * 2;
  with_format<C::FORMAT, true>(p.state.hp.format, [&](auto f) {
    constexpr int HP = decltype(f)::value;
    fold.scales = space + C::SCALES + hd * P * Stored<HP>::SCALES;
    fold.whole = reinterpret_cast<const float*>(space + C::SCALES + C::WHOLE)[hd];
    Folding<M> folding = {gamma, {}, key_lane};
    fold.template run<HP, 1>(
        reinterpret_cast<uint32_t*>(space + C::OUT), warp, lane, folding,
        [&](const RawTile<HP>&, int i) {
          uint32_t x[M][4];
          load_values(x, i);
          weigh_records(folding.wv, x, fw);
        },
        [&](int, int i) { return *reinterpret_cast<const uint2*>(queries + i * 8); },
        [&](int i, float (&acc)[1][4]) {
          uint32_t x[M][4];
          load_values(x, i);
          emit(acc, x, i);
        });
  });
}

template <class C>
__device__ void low_step(const Mamba2& p) {
  for_rows<C>(p, threadIdx.x & 31, [&](int row) { low_row<C>(p, row); });
}

}  // namespace mamba2

// mamba2_step_P_W_HEADS_WARPS_STAGES_FORMAT: as in mamba2_step.cu; FORMAT is that of kernels.StateFormat. mamba2_dense_..:
// of one token, more blocks a processor, for which flushes have to spill.
#define MAMBA2_LOW(NAME, P, W, STAGES, MINB, FORMAT)                                                                        \
  extern "C" __global__ void __launch_bounds__(128, MINB) mamba2_##NAME##_##P##_##W##_4_4_##STAGES##_##FORMAT(PARAMS(Mamba2, p)) { \
    mamba2::low_step<mamba2::LowConfig<P, W, STAGES, FORMAT>>(p);                                                           \
  }
#define MAMBA2_LOW_ALL(STAGES, FORMAT) \
  MAMBA2_LOW(step, 80, 16, STAGES, 4, FORMAT) \
  MAMBA2_LOW(step, 80, 32, STAGES, 3, FORMAT) \
  MAMBA2_LOW(step, 64, 16, STAGES, 4, FORMAT) \
  MAMBA2_LOW(step, 64, 32, STAGES, 3, FORMAT)
