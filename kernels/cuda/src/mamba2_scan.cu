// Prefill of a Mamba-2 layer of State 128 in bfloat16 by chunks of 64 tokens (SSD): a convolution over packed rows into
// scratch memory, then a warpgroup for a row, head and NP value columns that goes through the chunks with the state in
// registers; then the gated norm.
//
// Of a chunk, with L the running sum of the log decays dt A:
//   Y = exp(L_i) (C S) + tril((C_i . B_j) exp(L_i - L_j) dt_j) X + D X,   S' = exp(L_63) S + sum over j of exp(L_63 - L_j) dt_j B_j X_j^T
// Convolved x, B and C are bf16. Products of C take float16 operands, which hold those B and C and 11 bits of the state; of
// X bf16 ones. Where the weighted B becomes the state, it is split in two terms (17 bits). The state itself is float32 and
// grows by one rounded fma a chunk.
//
// Floor of 96 heads x 80 (8 groups), 2,048 tokens: 40 MB x, B, C and 31 MB y, 17 us at 4.1 TB/s; 17 GFLOP as issued (both
// terms, all pairs), 22 us at 788 TFLOP/s.
#include "mamba2.cuh"
#include "pieces.cuh"
#include "scan.cuh"

namespace {

// What the recurrence needs of a chunk's time steps: L in units of log 2, the same less the logarithm of dt, dt times the
// decay behind it, and exp(L).
struct Times {
  float until[CHUNK], from[CHUNK], weight[CHUNK], since[CHUNK];
};

// NP value columns a warpgroup. Places in shared memory: C, B, x and times of two chunks, the state as products read it.
template <int NP_>
struct Shape {
  static constexpr int NP = NP_, NT = NP / 8, ROW = pitch(NP);
  static constexpr int STATES = KEYS * 16;  // from piece to piece of the state
  static constexpr int KEY = KEYS / 8 * PIECE, VALUE = NT * PIECE;
  static constexpr int C = 0, B = KEY, X = B + KEY, TIMES = X + VALUE, STAGE = TIMES + sizeof(Times);
  static constexpr int STATE = 2 * STAGE, BARRIERS = STATE + NT * STATES;
};
static_assert(CHUNK * pitch(80) <= 10 * KEYS * 16, "outputs fit where the state lies");

// A tile in scratch memory: its pieces, then the times of its heads.
__device__ __forceinline__ int tile_bytes(const Mamba2& p) { return p.conv() / 8 * PIECE + p.heads * (int)sizeof(Times); }
__device__ __forceinline__ uint8_t* piece_of(const Mamba2& p, int tile, int channel) { return at<uint8_t>(p.query) + (int64_t)tile * tile_bytes(p) + channel / 8 * PIECE; }
__device__ __forceinline__ Times* times_of(const Mamba2& p, int tile, int head) { return reinterpret_cast<Times*>(piece_of(p, tile, p.conv())) + head; }

// One warp: the times of n tokens from token of the batch on.
__device__ __forceinline__ void make_times(const Mamba2& p, Times* times, int token, int n, int head, int lane) {
  const float a = at<float>(p.a)[head] * LOG2E;
  float dt[2];
#pragma unroll
  for (int e = 0; e < 2; e++) dt[e] = 2 * lane + e < n ? step_size(p, widen(row_of<bf16>(p.dt, token + 2 * lane + e)[head]), head) : 0.f;
  Sums sums(dt[0] * a, dt[1] * a, lane);
  auto put = [&](float* to, float x, float y) { reinterpret_cast<float2*>(to)[lane] = make_float2(x, y); };
  put(times->until, sums.until[0], sums.until[1]);
  put(times->from, sums.until[0] - log2f(dt[0]), sums.until[1] - log2f(dt[1]));
  put(times->weight, dt[0] * exp2f(sums.after[0]), dt[1] * exp2f(sums.after[1]));
  put(times->since, exp2f(sums.until[0]), exp2f(sums.until[1]));
}

// Blocks behind those of the convolution: the times of a tile, two heads a warp.
template <bool CUTS>
__device__ __forceinline__ void time_steps(const WithCuts<Mamba2>& p, int block) {
  pdl_begin();
  const Share k = tile_share<CUTS>(p.rows, p.cursors, p.cuts, blockIdx.y / 2, p.row0, p.row1);
  if (k.from >= k.to) return;
  const int head0 = block * 16 + blockIdx.y % 2 * 8 + threadIdx.x / 32 * 2;
  for (int head = head0; head < min(head0 + 2, p.heads); head++)
    make_times(p, times_of(p, blockIdx.y / 2, head), k.s.first + k.from, k.to - k.from, head, threadIdx.x & 31);
}

template <bool CUTS>
__device__ __forceinline__ void convolve_scan(const WithCuts<Mamba2>& p) {
  const int blocks = (p.conv() / 8 + CONV_THREADS - 1) / CONV_THREADS;
  if ((int)blockIdx.x >= blocks) return time_steps<CUTS>(p, blockIdx.x - blocks);
  convolve_tile<CUTS>(
      p.rows, p.cursors, p.cuts, p.state, p.xbc, p.conv(), p.conv_w, p.conv_b, p.row0, p.row1,
      [&](int channel, const float(&y)[8]) {
        uint32_t v[4];
#pragma unroll
        for (int e = 0; e < 4; e++) {
          v[e] = pack_bf16(y[2 * e], y[2 * e + 1]);
          if (channel >= p.inner()) v[e] = saturated(bf_lo(v[e]), bf_hi(v[e]));  // of B and C
        }
        return make_uint4(v[0], v[1], v[2], v[3]);
      },
      [&](int tile, int channel) { return piece_of(p, tile, channel); });
}

// The state in registers: keys 64m + 16w + g (+ 8) of warp w by columns 8t + 2c (+ 1).
template <class H>
struct State {
  float s[2][H::NT][4];

  // use(number of the block, element) for all; block is the head's state at the lane's first key and column.
  template <class Use>
  __device__ __forceinline__ void each(Use use) {
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
      for (int t = 0; t < H::NT; t++)
#pragma unroll
        for (int e = 0; e < 4; e++) use((8 * t + (e & 1)) * KEYS + 64 * m + (e >> 1) * 8, s[m][t][e]);
  }
  __device__ __forceinline__ void store(float* block) {
    each([&](int i, float& x) { block[i] = x; });
  }
  // Into shared memory, pieces of columns; at is the lane's address for stmatrix.
  __device__ __forceinline__ void publish(uint32_t at) const {
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
      for (int t = 0; t < H::NT; t += 2) {
        const float(&x)[4] = s[m][t], (&y)[4] = s[m][t + 1];
        const uint32_t r[4] = {saturated(x[0], x[1]), saturated(x[2], x[3]), saturated(y[0], y[1]), saturated(y[2], y[3])};
        stmatrix_x4(at + t * H::STATES + m * 64 * 16, r);
      }
  }
};

// The C of a warp's 16 tokens as A operands; it meets three matrices, and shared memory is what products wait for.
__device__ __forceinline__ void load_queries(uint32_t (&query)[KEYS / 16][4], uint32_t c, int rows, int lane) {
#pragma unroll
  for (int k = 0; k < KEYS / 16; k++) ldmatrix_x4(query[k], c + (2 * k + (lane >> 4)) * PIECE + (rows + (lane & 15)) * 16);
}
// C . B of all pairs of a chunk, rows are the later tokens.
__device__ __forceinline__ void pair(float (&pairs)[CHUNK / 8][4], const uint32_t (&query)[KEYS / 16][4], uint32_t b) {
#pragma unroll
  for (int k = 0; k < KEYS / 16; k++) group_f16<OVER_COLUMNS>(pairs, query[k], over_columns(b + 2 * k * PIECE, PIECE), k > 0);
}
// C S.
template <class H>
__device__ __forceinline__ void read_state(float (&y)[H::NT][4], const uint32_t (&query)[KEYS / 16][4], uint32_t state) {
#pragma unroll
  for (int k = 0; k < KEYS / 16; k++) group_f16<OVER_ROWS>(y, query[k], over_rows(state + k * 256, H::STATES), k > 0);
}
// 16 keys of a warp, of B^T times the weights of its tokens, in two terms; at is the lane's address for ldmatrix.
struct Weighed {
  uint32_t high[CHUNK / 16][4], low[CHUNK / 16][4];
  __device__ __forceinline__ void load(uint32_t at, const Times& times, int c) {
#pragma unroll
    for (int k = 0; k < CHUNK / 16; k++) {
      const float2 w[2] = {*reinterpret_cast<const float2*>(times.weight + 16 * k + 2 * c), *reinterpret_cast<const float2*>(times.weight + 16 * k + 8 + 2 * c)};
      uint32_t b[4];
      ldmatrix_x4_trans(b, at + k * 256);
#pragma unroll
      for (int r = 0; r < 4; r++) {
        const float2 v = unpack_f16(b[r]);
        const float x = v.x * w[r / 2].x, y = v.y * w[r / 2].y;
        high[k][r] = pack_bf16(x, y), low[k][r] = pack_bf16(x - bf_lo(high[k][r]), y - bf_hi(high[k][r]));
      }
    }
  }
};
// d (+)= A x over the tokens of a chunk.
template <class H>
__device__ __forceinline__ void over_tokens(float (&d)[H::NT][4], const uint32_t (&a)[CHUNK / 16][4], uint32_t x, bool add) {
#pragma unroll
  for (int k = 0; k < CHUNK / 16; k++) group_bf16<OVER_ROWS>(d, a[k], over_rows(x + k * 256, PIECE), add || k > 0);
}

// The weights of pairs as the A operand: tril(pairs exp(L_i - L_j) dt_j). row: of the lane.
__device__ __forceinline__ void weigh_pairs(uint32_t (&w)[CHUNK / 16][4], const float (&pairs)[CHUNK / 8][4], const Times& times, int row, int c) {
  const float until[2] = {times.until[row], times.until[row + 8]};
#pragma unroll
  for (int t = 0; t < CHUNK / 8; t++) {
    const float2 from = *reinterpret_cast<const float2*>(times.from + 8 * t + 2 * c);
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int behind = row + 8 * half - 8 * t - 2 * c;  // tokens from the pair's first to this one
      const float x = pairs[t][2 * half] * quick_exp2(until[half] - from.x), y = pairs[t][2 * half + 1] * quick_exp2(until[half] - from.y);
      w[t / 2][t % 2 * 2 + half] = pack_bf16(behind >= 0 ? x : 0.f, behind >= 1 ? y : 0.f);
    }
  }
}

// y + D x, packed; x is the lane's first place.
template <class H>
__device__ __forceinline__ void skipped(uint32_t (&packed)[H::NT][2], const float (&y)[H::NT][4], const uint8_t* x, float skip) {
#pragma unroll
  for (int t = 0; t < H::NT; t++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      uint32_t v = *reinterpret_cast<const uint32_t*>(x + t * PIECE + half * 128);
      packed[t][half] = pack_bf16(fmaf(skip, bf_lo(v), y[t][2 * half]), fmaf(skip, bf_hi(v), y[t][2 * half + 1]));
    }
}

// The 16 tokens of a warp by its NP columns from registers through its own place in shared memory to out, n of them.
template <class H>
__device__ __forceinline__ void store_outputs(const uint32_t (&packed)[H::NT][2], uint8_t* place, const Mat& out, int token, int column, int n, int lane) {
  const int g = lane >> 2, c = lane & 3;
#pragma unroll
  for (int t = 0; t < H::NT; t++)
#pragma unroll
    for (int half = 0; half < 2; half++) *reinterpret_cast<uint32_t*>(place + (g + 8 * half) * H::ROW + t * 16 + c * 4) = packed[t][half];
  __syncwarp();
  for (int idx = lane; idx < 16 * H::NT; idx += 32) {
    int i = idx / H::NT, piece = idx % H::NT;
    if (i < n) *reinterpret_cast<uint4*>(row_of<bf16>(out, token + i) + column + piece * 8) = *reinterpret_cast<const uint4*>(place + i * H::ROW + piece * 16);
  }
}


// Products of a chunk run while the next chunk is on its way and threads weigh pairs and keys and write outputs. Barriers:
// when the state is there for products; when they have read it; when outputs are written.
template <class H, bool CUTS>
__device__ __forceinline__ void scan(const WithCuts<Mamba2>& p) {
  extern __shared__ __align__(128) uint8_t smem[];
  pdl_begin();
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, c = lane & 3, rows = warp * 16;
  const int split = p.dim / H::NP, head = blockIdx.x / split, column = head * p.dim + blockIdx.x % split * H::NP;
  const Share k = share_of(p.rows, p.cursors, blockIdx.y, p.row0, p.row1);
  if (k.from >= k.to) return;
  const int keys = p.inner() + head / (p.heads / p.groups) * KEYS;
  const int64_t place = (int64_t)(column + 2 * c) * KEYS + rows + g;
  const float skip = at<float>(p.d)[head];
  const uint32_t space = smem_addr(smem), published = space + H::STATE + (lane >> 4) * H::STATES + (rows + (lane & 15)) * 16;
  const int keys_at = (2 * warp + (lane >> 3 & 1)) * PIECE + (lane >> 4) * 128 + (lane & 7) * 16;
  State<H> state;
  uint64_t* const barriers = reinterpret_cast<uint64_t*>(smem + H::BARRIERS);  // of the two chunks
  // Of the next request, for the thread that asks; of the first one with cuts.
  Chunks<CUTS, 1> chunks(p.rows, p.cuts, k, blockIdx.y, p.row0);
  auto request = [&](int chunk, int tile) {
    uint8_t* const stage = smem + (chunk & 1) * H::STAGE;
    uint64_t* const barrier = barriers + (chunk & 1);
    tile += chunks.first;
    mbar_expect(barrier, H::STAGE);
    bulk_load(stage + H::C, piece_of(p, tile, keys + p.bc()), H::KEY, barrier);
    bulk_load(stage + H::B, piece_of(p, tile, keys), H::KEY, barrier);
    bulk_load(stage + H::X, piece_of(p, tile, column), H::VALUE, barrier);
    bulk_load(stage + H::TIMES, times_of(p, tile, head), sizeof(Times), barrier);
  };

  if (threadIdx.x == 0) {
    mbar_init(barriers, 1), mbar_init(barriers + 1, 1), mbar_init_fence();
    request(0, 0);
  }
  const float* const before = block_of(p.state, k.from > 0 || k.s.h > 0 ? k.s.dst : k.s.src) + place;
  state.each([&](int i, float& x) { x = before[i]; });
  state.publish(published);
  for (int from = k.from, chunk = 0; from < k.to; chunks.step(from), chunk++) {
    const uint8_t* const stage = smem + (chunk & 1) * H::STAGE;
    const uint32_t b = smem_addr(stage) + H::B, x = smem_addr(stage) + H::X;
    const Times& time = *reinterpret_cast<const Times*>(stage + H::TIMES);
    async_proxy_fence();
    __syncthreads();
    if (threadIdx.x == 0 && chunks.more(from, 1)) request(chunk + 1, chunks.tile(chunk, 1));
    mbar_wait(barriers + (chunk & 1), chunk >> 1 & 1);
    uint32_t query[KEYS / 16][4], w[CHUNK / 16][4];
    float pairs[CHUNK / 8][4], y[H::NT][4], d[2][H::NT][4];
    Weighed weighed[2];
    load_queries(query, smem_addr(stage) + H::C, rows, lane);
    product_fence();
    pair(pairs, query, b);
    product_commit();
    read_state<H>(y, query, space + H::STATE);
    product_commit();
    product_wait<1>();
    pin(pairs);
    weigh_pairs(w, pairs, time, rows + g, c);
    product_wait<0>();
    pin(y), pin(query);
    const float since[2] = {time.since[rows + g], time.since[rows + g + 8]}, decay = time.since[CHUNK - 1];
#pragma unroll
    for (int t = 0; t < H::NT; t++)
#pragma unroll
      for (int e = 0; e < 4; e++) y[t][e] *= since[e >> 1];
    product_fence();
    over_tokens<H>(y, w, x, true);
    product_commit();
    auto grow = [&](int m) {
      weighed[m].load(b + keys_at + m * 8 * PIECE, time, c);
      product_fence();
      over_tokens<H>(d[m], weighed[m].low, x, false);
      over_tokens<H>(d[m], weighed[m].high, x, true);
      product_commit();
    };
    auto fold = [&](int m) {
      pin(d[m]), pin(weighed[m].high), pin(weighed[m].low);
#pragma unroll
      for (int t = 0; t < H::NT; t++)
#pragma unroll
        for (int e = 0; e < 4; e++) state.s[m][t][e] = fmaf(decay, state.s[m][t][e], d[m][t][e]);
    };
    grow(0);
    __syncthreads();
    product_wait<1>();
    pin(w), pin(y);
    uint32_t packed[H::NT][2];
    skipped<H>(packed, y, stage + H::X + (rows + g) * 16 + c * 4, skip);
    store_outputs<H>(packed, smem + H::STATE + rows * H::ROW, p.out, k.s.first + from + rows, column, chunks.end() - from - rows, lane);
    grow(1);
    product_wait<1>();
    fold(0);
    product_wait<0>();
    fold(1);
    __syncthreads();
    state.publish(published);
    if (const int block = chunks.block(); block >= 0) state.store(block_of(p.state, block) + place);
  }
  state.store(block_of(p.state, k.s.dst) + place);
}

// The norm, by group, of y silu(z); y is in out. A warp a group of NORM_TOKENS tokens, lanes have up to NORM_HELD pieces.
constexpr int NORM_TOKENS = 4, NORM_HELD = 4, NORM_THREADS = 128;
__device__ void norm(const Mamba2& p) {
  const int lane = threadIdx.x & 31, size = p.inner() / p.groups, first = blockIdx.y * size + lane * 8, held = (size - lane * 8 + 255) / 256;
  const int token0 = (blockIdx.x * (NORM_THREADS / 32) + (threadIdx.x >> 5)) * NORM_TOKENS;
  float w[NORM_HELD][8];
#pragma unroll
  for (int i = 0; i < NORM_HELD; i++)
    if (i < held) load8(at<float>(p.norm_w) + first + i * 256, w[i]);
  pdl_begin();
  for (int token = token0; token < min(token0 + NORM_TOKENS, p.rows.tokens); token++) {
    bf16* out = row_of<bf16>(p.out, p.rows.first + token) + first;
    const bf16* z = row_of<bf16>(p.z, p.rows.first + token) + first;
    uint4 values[NORM_HELD], gates[NORM_HELD];
#pragma unroll
    for (int i = 0; i < NORM_HELD; i++)
      if (i < held) values[i] = *reinterpret_cast<const uint4*>(out + i * 256), gates[i] = *reinterpret_cast<const uint4*>(z + i * 256);
    float y[NORM_HELD][8], sum = 0.f;
#pragma unroll
    for (int i = 0; i < NORM_HELD; i++) {
      if (i >= held) break;
      const uint32_t v[4] = {values[i].x, values[i].y, values[i].z, values[i].w}, gate[4] = {gates[i].x, gates[i].y, gates[i].z, gates[i].w};
#pragma unroll
      for (int e = 0; e < 4; e++) {
        y[i][2 * e] = bf_lo(v[e]) * scan_silu(bf_lo(gate[e])), y[i][2 * e + 1] = bf_hi(v[e]) * scan_silu(bf_hi(gate[e]));
        sum = fmaf(y[i][2 * e], y[i][2 * e], fmaf(y[i][2 * e + 1], y[i][2 * e + 1], sum));
      }
    }
    const float scale = rsqrtf(warp_sum(sum) / size + p.eps);
#pragma unroll
    for (int i = 0; i < NORM_HELD; i++) {
      if (i >= held) break;
#pragma unroll
      for (int e = 0; e < 8; e++) y[i][e] *= scale * w[i][e];
      store8(out + i * 256, y[i]);
    }
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(CONV_THREADS, 4) mamba2_scan_convolve(PARAMS(WithCuts<Mamba2>, p)) { convolve_scan<false>(p); }
extern "C" __global__ void __launch_bounds__(CONV_THREADS, 4) mamba2_scan_convolve_cuts(PARAMS(WithCuts<Mamba2>, p)) { convolve_scan<true>(p); }
extern "C" __global__ void __launch_bounds__(128, 2) mamba2_scan_64(PARAMS(WithCuts<Mamba2>, p)) { scan<Shape<64>, false>(p); }
extern "C" __global__ void __launch_bounds__(128, 2) mamba2_scan_80(PARAMS(WithCuts<Mamba2>, p)) { scan<Shape<80>, false>(p); }
extern "C" __global__ void __launch_bounds__(128, 2) mamba2_scan_64_cuts(PARAMS(WithCuts<Mamba2>, p)) { scan<Shape<64>, true>(p); }
extern "C" __global__ void __launch_bounds__(128, 2) mamba2_scan_80_cuts(PARAMS(WithCuts<Mamba2>, p)) { scan<Shape<80>, true>(p); }
extern "C" __global__ void __launch_bounds__(NORM_THREADS) mamba2_scan_norm(PARAMS(Mamba2, p)) { norm(p); }
