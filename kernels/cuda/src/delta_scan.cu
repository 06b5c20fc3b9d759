// Prefill of a Gated DeltaNet layer of 128 x 128 heads with bfloat16 activations by chunks of 64 tokens (the chunked
// delta rule, WY form). Four launches: a convolution over packed rows; what a chunk needs that does not depend on the
// state (all chunks at once); a warpgroup for a row, head and 64 values that goes through the chunks with the state in
// registers; the gated norm.
//
// Of a chunk, with L the running sum of the log decays, u the corrections (one a token) and S the state in front:
//   A = tril(beta_i (k_i . k_j) exp(L_i - L_j), -1)    T = (I + A)^-1 diag(beta)    M = tril((q_i . k_j) exp(L_i - L_j))
//   U = T (V - exp(L_i) K S)      O = exp(L_i) Q S + M U      S' = exp(L_63) S + sum over j of exp(L_63 - L_j) k_j u_j^T
// The first line is float32 (the inverse by forward substitution of halves, joined by products of 22 bits) until T and M are
// stored. Products take float16 operands: q, k and the columns of T are at most 1 (products of contractions), values,
// corrections and the state saturate as records do. The state itself is float32.
//
// Floor of 16/32 heads of 128 (q4b), 2,048 tokens: 34 MB q, k, v, 17 MB T, M and L, 17 MB out, 17 us at 4.1 TB/s;
// 9 GFLOP as issued (all pairs), 11 us at 788 TFLOP/s.
#include "delta.cuh"
#include "pieces.cuh"
#include "scan.cuh"

namespace {

// What a chunk of a value head leaves for the recurrence: T^T and M, float16, pieces of 64 rows; and the decay up to and
// behind every token.
constexpr int MATRIX = CHUNK * CHUNK * 2, TILE = 2 * MATRIX, PAIR = 2 * PIECE;
struct Sum {
  float since[CHUNK], after[CHUNK];
};

__device__ __forceinline__ uint8_t* tile_of(const Delta& p, int tile, int head) { return at<uint8_t>(p.value) + ((int64_t)tile * p.value_heads + head) * TILE; }
__device__ __forceinline__ Sum* sum_of(const Delta& p, int tile, int head) { return at<Sum>(p.beta) + (int64_t)tile * p.value_heads + head; }

// Where the piece of a tile lies whose first channel this is. A piece of k lies in front of that of q.
__device__ __forceinline__ uint8_t* piece_of(const Delta& p, int tile, int channel) {
  uint8_t* const all = at<uint8_t>(p.query) + (int64_t)tile * (p.conv() / 8) * PIECE;
  if (channel >= 2 * p.keys()) return all + channel / 8 * PIECE;
  return channel >= p.keys() ? all + (channel - p.keys()) / 8 * PAIR : all + channel / 8 * PAIR + PIECE;
}

// ---------------------------------------------------------------- convolution
// q and k become unit vectors, k rounded as its record, q divided by sqrt(128). Sixteen lanes have a head.
template <bool CUTS>
__device__ __forceinline__ void convolve_scan(const WithCuts<Delta>& p) {
  auto pack = [&](int channel, float(&y)[8]) {
    const bool query = channel < p.keys(), key = !query && channel < 2 * p.keys();
    float f = 1.f;
    if (__any_sync(~0u, query || key)) {
      float sum = 0.f;
#pragma unroll
      for (int e = 0; e < 8; e++) sum = fmaf(y[e], y[e], sum);
#pragma unroll
      for (int o = 1; o < 16; o *= 2) sum += __shfl_xor_sync(~0u, sum, o);
      if (query || key) f = rsqrtf(sum + 1e-6f) * (query ? 0.08838834764831845f : 1.f);
    }
#pragma unroll
    for (int e = 0; e < 8; e++) y[e] *= f;
    if (key) {
#pragma unroll
      for (int e = 0; e < 8; e += 2) {
        const uint32_t v = pack_bf16(y[e], y[e + 1]);
        y[e] = bf_lo(v), y[e + 1] = bf_hi(v);
      }
    }
    uint32_t w[4];
#pragma unroll
    for (int e = 0; e < 4; e++) w[e] = saturated(y[2 * e], y[2 * e + 1]);
    return make_uint4(w[0], w[1], w[2], w[3]);
  };
  convolve_tile<CUTS>(p.rows, p.cursors, p.cuts, p.state, p.qkv, p.conv(), p.conv_w, 0, p.row0, p.row1, pack, [&](int tile, int channel) { return piece_of(p, tile, channel); });
}

// ---------------------------------------------------------------- chunks without the state
constexpr int PREPARE_THREADS = 128, HALF = CHUNK / 2, LINE = CHUNK + 8;  // floats of a row of A
struct Prepare {
  union {
    alignas(128) uint8_t keys[KEYS / 8 * PAIR];  // k and q
    float a[2][CHUNK * LINE];                    // when the pairs are in registers
  };
  uint64_t barrier;
  float until[2][CHUNK], beta[2][CHUNK];  // until: the running sum in units of log 2
};

// One warp: decays and betas of n tokens.
__device__ __forceinline__ void decays(const Delta& p, float* until, float* beta, Sum& sum, int token, int n, int head, int lane) {
  float g[2] = {};
#pragma unroll
  for (int e = 0; e < 2; e++) {
    int i = 2 * lane + e;
    beta[i] = 0.f;
    if (i >= n) continue;
    g[e] = at<float>(p.decay_a)[head] * LOG2E * softplus(widen(row_of<bf16>(p.a, token + i)[head]) + at<float>(p.dt_bias)[head]);
    beta[i] = sigmoid(widen(row_of<bf16>(p.b, token + i)[head]));
  }
  Sums sums(g[0], g[1], lane);
#pragma unroll
  for (int e = 0; e < 2; e++) {
    const int i = 2 * lane + e;
    until[i] = sums.until[e], sum.since[i] = exp2f(sums.until[e]), sum.after[i] = exp2f(sums.after[e]);
  }
}

// A column of the inverse of I + A, a strictly lower triangular of HALF rows in shared memory, by forward substitution.
__device__ __forceinline__ void substitute(const float* a, int column, float (&x)[HALF]) {
#pragma unroll
  for (int i = 0; i < HALF; i++) {
    float s[4] = {};
#pragma unroll
    for (int k = 0; k < i; k += 4) {
      const float4 v = *reinterpret_cast<const float4*>(a + i * LINE + k);
      s[0] = fmaf(v.x, x[k], s[0]);
      if (k + 1 < i) s[1] = fmaf(v.y, x[k + 1], s[1]);
      if (k + 2 < i) s[2] = fmaf(v.z, x[k + 2], s[2]);
      if (k + 3 < i) s[3] = fmaf(v.w, x[k + 3], s[3]);
    }
    x[i] = (i == column ? 1.f : 0.f) - ((s[0] + s[1]) + (s[2] + s[3]));
  }
}

// d += A B of float32 numbers: operands in two float16 terms.
struct Terms {
  uint32_t high[4], low[4];
  __device__ __forceinline__ void set(int r, float x, float y) { split2_f16(x, y, high[r], low[r]); }
};
__device__ __forceinline__ void mma_terms(float (&d)[4], const Terms& a, float2 b0, float2 b1) {
  uint32_t high[2], low[2];
  split2_f16(b0.x, b0.y, high[0], low[0]), split2_f16(b1.x, b1.y, high[1], low[1]);
  mma_f16(d, a.low, high[0], high[1]), mma_f16(d, a.high, low[0], low[1]), mma_f16(d, a.high, high[0], high[1]);
}

// The lower left quarter of the inverse, -E A D where D and E are those of the upper and the lower half: 16 of its columns,
// which are rows of d. In place of the halves of A on its diagonal lie D and E, transposed.
__device__ __forceinline__ void join(float (&d)[HALF / 8][4], const float* a, int columns, int lane) {
  const int g = lane >> 2, c = lane & 3;
  auto pair = [&](int row, int column) { return *reinterpret_cast<const float2*>(a + row * LINE + column); };
  Terms left[HALF / 16];
  float ad[HALF / 8][4] = {};
#pragma unroll
  for (int k = 0; k < HALF / 16; k++) {
    if (16 * k < columns) continue;  // zeros above D's diagonal
#pragma unroll
    for (int r = 0; r < 4; r++) {
      const float2 v = pair(columns + g + r % 2 * 8, 16 * k + r / 2 * 8 + 2 * c);
      left[k].set(r, v.x, v.y);
    }
#pragma unroll
    for (int n = 0; n < HALF / 8; n++) mma_terms(ad[n], left[k], pair(HALF + 8 * n + g, 16 * k + 2 * c), pair(HALF + 8 * n + g, 16 * k + 8 + 2 * c));
  }
#pragma unroll
  for (int k = 0; k < HALF / 16; k++) {
#pragma unroll
    for (int r = 0; r < 4; r++) left[k].set(r, -ad[2 * k + r / 2][r % 2 * 2], -ad[2 * k + r / 2][r % 2 * 2 + 1]);
    auto pair_down = [&](int row, int column) { return make_float2(a[(HALF + row) * LINE + HALF + column], a[(HALF + row + 1) * LINE + HALF + column]); };
#pragma unroll
    for (int n = 2 * k; n < HALF / 8; n++) mma_terms(d[n], left[k], pair_down(16 * k + 2 * c, 8 * n + g), pair_down(16 * k + 8 + 2 * c, 8 * n + g));
  }
}

// 16 rows of Q K^T or K K^T of a warp, up to the diagonal: blocks of 16 x 8.
__device__ __forceinline__ void pairs(float (&dots)[CHUNK / 8][4], uint32_t left, uint32_t keys, int rows, int lane) {
  left += (rows + (lane & 15)) * 16 + (lane >> 4) * PAIR, keys += ((lane & 7) + (lane >> 4) * 8) * 16 + (lane >> 3 & 1) * PAIR;
#pragma unroll
  for (int k = 0; k < 8; k++) {
    uint32_t a[4];
    ldmatrix_x4(a, left + 2 * k * PAIR);
#pragma unroll
    for (int j = 0; j < CHUNK / 16; j++) {
      if (16 * j > rows) break;
      uint32_t b[4];
      ldmatrix_x4(b, keys + 2 * k * PAIR + j * 256);
      mma_f16(dots[2 * j], a, b[0], b[1]), mma_f16(dots[2 * j + 1], a, b[2], b[3]);
    }
  }
}

// A of a value head into shared memory, M into its tile.
__device__ __forceinline__ void weigh(const float (&kk)[CHUNK / 8][4], const float (&qk)[CHUNK / 8][4], const float* until, const float* beta, float* a, uint8_t* m, int rows, int lane) {
  const int g = lane >> 2, c = lane & 3;
#pragma unroll
  for (int j = 0; j < CHUNK / 8; j++) {
    const int from = 8 * j + 2 * c;
    const float2 since = *reinterpret_cast<const float2*>(until + from);
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int i = rows + g + 8 * half;
      uint32_t mixed = 0;
      if (8 * j <= rows + 8) {  // a block of 16 x 16 with the diagonal, or below it
        const float d0 = from <= i ? quick_exp2(until[i] - since.x) : 0.f, d1 = from < i ? quick_exp2(until[i] - since.y) : 0.f;
        mixed = pack_f16(qk[j][2 * half] * d0, qk[j][2 * half + 1] * d1);
        const float a0 = from < i ? beta[i] * kk[j][2 * half] * d0 : 0.f, a1 = from + 1 < i ? beta[i] * kk[j][2 * half + 1] * d1 : 0.f;
        *reinterpret_cast<float2*>(a + i * LINE + from) = make_float2(a0, a1);
      }
      *reinterpret_cast<uint32_t*>(m + j * PIECE + i * 16 + c * 4) = mixed;
    }
  }
}

// Half a column of T, which is a row of its tile.
__device__ __forceinline__ void store_column(uint8_t* to, const float (&x)[HALF], float beta) {
#pragma unroll
  for (int i = 0; i < HALF; i += 8)
    *reinterpret_cast<uint4*>(to + i / 8 * PIECE) = make_uint4(pack_f16(x[i] * beta, x[i + 1] * beta), pack_f16(x[i + 2] * beta, x[i + 3] * beta),
                                                               pack_f16(x[i + 4] * beta, x[i + 5] * beta), pack_f16(x[i + 6] * beta, x[i + 7] * beta));
}

// The two warps of a value head wait for each other.
__device__ __forceinline__ void sync_pair(int pair) {
  if (pair == 0)
    asm volatile("bar.sync 1, 64;" ::: "memory");
  else
    asm volatile("bar.sync 2, 64;" ::: "memory");
}

// A block a tile and two value heads of a key head.
template <bool CUTS>
__device__ __forceinline__ void prepare(const WithCuts<Delta>& p) {
  extern __shared__ __align__(128) uint8_t smem[];
  Prepare& s = *reinterpret_cast<Prepare*>(smem);
  pdl_begin();
  const int tile = blockIdx.y, warp = threadIdx.x >> 5, lane = threadIdx.x & 31, per = p.value_heads / p.key_heads, pairs_of = (per + 1) / 2;
  const int key_head = blockIdx.x / pairs_of, first = blockIdx.x % pairs_of * 2, count = min(2, per - first), head = key_head * per + first;
  const Share k = tile_share<CUTS>(p.rows, p.cursors, p.cuts, tile, p.row0, p.row1);
  const int n = k.to - k.from;
  if (n <= 0) return;
  if (threadIdx.x == 0) {
    mbar_init(&s.barrier, 1), mbar_init_fence();
    mbar_expect(&s.barrier, sizeof s.keys);
    bulk_load(s.keys, piece_of(p, tile, p.keys() + key_head * KEYS), sizeof s.keys, &s.barrier);
  }
  if (warp < count) decays(p, s.until[warp], s.beta[warp], *sum_of(p, tile, head + warp), k.s.first + k.from, n, head + warp, lane);
  __syncthreads();
  mbar_wait(&s.barrier, 0);
  {
    float kk[CHUNK / 8][4] = {}, qk[CHUNK / 8][4] = {};
    pairs(kk, smem_addr(s.keys), smem_addr(s.keys), warp * 16, lane);
    pairs(qk, smem_addr(s.keys) + PIECE, smem_addr(s.keys), warp * 16, lane);
    __syncthreads();
    for (int v = 0; v < count; v++) weigh(kk, qk, s.until[v], s.beta[v], s.a[v], tile_of(p, tile, head + v) + MATRIX, warp * 16, lane);
  }
  __syncthreads();
  // Two warps a value head: each half of its columns, then half of those of the quarter below.
  const int mine = warp >> 1, half = warp & 1;
  if (mine >= count) return;
  float* const a = s.a[mine];
  uint8_t* const to = tile_of(p, tile, head + mine);
  const float* const beta = s.beta[mine];
  {
    float x[HALF], *const own = a + half * HALF * (LINE + 1);
    substitute(own, lane, x);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < HALF; i += 4) *reinterpret_cast<float4*>(own + lane * LINE + i) = make_float4(x[i], x[i + 1], x[i + 2], x[i + 3]);
    uint8_t* const column = to + (half * HALF + lane) * 16;
    store_column(column + half * (HALF / 8) * PIECE, x, beta[half * HALF + lane]);
#pragma unroll
    for (int i = 0; i < HALF / 8; i++)
      if (half == 1) *reinterpret_cast<uint4*>(column + i * PIECE) = make_uint4(0, 0, 0, 0);
  }
  sync_pair(mine);
  float x[HALF / 8][4] = {};
  join(x, a, half * 16, lane);
  const int g = lane >> 2, c = lane & 3;
#pragma unroll
  for (int e = 0; e < 2; e++) {
    const int column = half * 16 + g + 8 * e;
#pragma unroll
    for (int n = 0; n < HALF / 8; n++)
      *reinterpret_cast<uint32_t*>(to + (HALF / 8 + n) * PIECE + column * 16 + c * 4) = pack_f16(x[n][2 * e] * beta[column], x[n][2 * e + 1] * beta[column]);
  }
}

// ---------------------------------------------------------------- recurrence
// Everything is transposed: a warpgroup has 64 values, the rows of its products; keys and tokens are columns. So what one
// product leaves in registers is, rounded, the A operand of the next: state, residuals V - exp(L) K S, corrections.
template <int GROUPS_>
struct Shape {
  static constexpr int GROUPS = GROUPS_, COLS = 64 * GROUPS;
  static constexpr int T = KEYS / 8 * PAIR, M = T + MATRIX, V = M + MATRIX, SUM = V + COLS / 8 * PIECE, STAGE = SUM + sizeof(Sum), STAGES = 3;
  // Of each stage: it is full; its warps are done with it; how often a warp was done with it.
  static constexpr int FULL = STAGES * STAGE, FREE = FULL + STAGES * 8, DONE = FREE + STAGES * 8, WARPS = 4 * GROUPS;
};

// Where what the chunks of a row take lies, from its first tile on.
template <class H>
struct Sources {
  const uint8_t *pair, *matrices, *values, *sum;
  int64_t pieces, heads;  // bytes of the pieces of a tile; value heads
  __device__ Sources(const Delta& p, int tile, int head, int column)
      : pair(piece_of(p, tile, p.keys() + head / (p.value_heads / p.key_heads) * KEYS)), matrices(tile_of(p, tile, head)), values(piece_of(p, tile, 2 * p.keys() + column)),
        sum(reinterpret_cast<const uint8_t*>(sum_of(p, tile, head))), pieces(p.conv() / 8 * PIECE), heads(p.value_heads) {}
  // One thread asks for a chunk by its tile, counted from the first.
  __device__ __forceinline__ void request(uint8_t* smem, int stage, int tile) const {
    uint8_t* const to = smem + stage * H::STAGE;
    uint64_t* const full = reinterpret_cast<uint64_t*>(smem + H::FULL) + stage;
    mbar_expect(full, H::STAGE);
    bulk_load(to, pair + tile * pieces, KEYS / 8 * PAIR, full);
    bulk_load(to + H::T, matrices + tile * heads * TILE, TILE, full);
    bulk_load(to + H::V, values + tile * pieces, H::COLS / 8 * PIECE, full);
    bulk_load(to + H::SUM, sum + tile * heads * sizeof(Sum), sizeof(Sum), full);
  }
};

__device__ __forceinline__ uint32_t product_f16(uint32_t x, uint32_t y) {
  __half2 v = __hmul2(*reinterpret_cast<__half2*>(&x), *reinterpret_cast<__half2*>(&y));
  return *reinterpret_cast<uint32_t*>(&v);
}

// d (+)= A B: over the columns of b, or over its rows, 16 K of them.
template <int K, int N>
__device__ __forceinline__ void multiply_columns(float (&d)[N][4], const uint32_t (&a)[K][4], uint32_t b, int pitch, bool add) {
#pragma unroll
  for (int k = 0; k < K; k++) group_f16<OVER_COLUMNS>(d, a[k], over_columns(b + 2 * k * pitch, pitch), add || k > 0);
}
template <int K, int N>
__device__ __forceinline__ void multiply_rows(float (&d)[N][4], const uint32_t (&a)[K][4], uint32_t b, int pitch, bool add) {
#pragma unroll
  for (int k = 0; k < K; k++) group_f16<OVER_ROWS>(d, a[k], over_rows(b + k * 256, pitch), add || k > 0);
}

// The state as A operands.
__device__ __forceinline__ void round_state(uint32_t (&a)[8][4], const float (&s)[16][4]) {
#pragma unroll
  for (int k = 0; k < 8; k++)
#pragma unroll
    for (int r = 0; r < 4; r++) a[k][r] = saturated(s[2 * k + r / 2][r % 2 * 2], s[2 * k + r / 2][r % 2 * 2 + 1]);
}

// V - exp(L) K S as the A operand of a product over tokens; values is the lane's address for ldmatrix.
__device__ __forceinline__ void residuals(uint32_t (&r)[4][4], const float (&ks)[8][4], const Sum& sum, uint32_t values, int c) {
#pragma unroll
  for (int k = 0; k < 4; k++) {
    uint32_t v[4];
    ldmatrix_x4_trans(v, values + k * 256);
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const float2 since = *reinterpret_cast<const float2*>(sum.since + 16 * k + 8 * half + 2 * c);
#pragma unroll
      for (int e = 0; e < 2; e++) {
        const float2 value = unpack_f16(v[2 * half + e]);
        const float(&x)[4] = ks[2 * k + half];
        r[k][2 * half + e] = saturated(fmaf(-since.x, x[2 * e], value.x), fmaf(-since.y, x[2 * e + 1], value.y));
      }
    }
  }
}

// The corrections as A operands: plain, and times the decay behind them.
__device__ __forceinline__ void corrections(uint32_t (&plain)[4][4], uint32_t (&decayed)[4][4], const float (&u)[8][4], const Sum& sum, int c) {
#pragma unroll
  for (int t = 0; t < 8; t++) {
    const float2 after = *reinterpret_cast<const float2*>(sum.after + 8 * t + 2 * c);
    const uint32_t w = pack_f16(after.x, after.y);
#pragma unroll
    for (int e = 0; e < 2; e++) {
      uint32_t& x = plain[t / 2][t % 2 * 2 + e];
      x = saturated(u[t][2 * e], u[t][2 * e + 1]);
      decayed[t / 2][t % 2 * 2 + e] = product_f16(x, w);
    }
  }
}

// A warp's 16 values of a chunk's outputs, as a product leaves them, in bfloat16.
struct Outputs {
  uint32_t v[8][2];
  int token, n;  // the first one's row of the batch; how many there are
  __device__ __forceinline__ void round(const float (&o)[8][4]) {
#pragma unroll
    for (int t = 0; t < 8; t++) v[t][0] = pack_bf16(o[t][0], o[t][1]), v[t][1] = pack_bf16(o[t][2], o[t][3]);
  }
  // To out, through the place of the warp's values.
  __device__ __forceinline__ void store(uint8_t* place, const Mat& out, int column, int lane) const {
    const uint32_t to = smem_addr(place) + (lane >> 3 & 1) * PIECE + (lane >> 4) * 128 + (lane & 7) * 16;
#pragma unroll
    for (int t = 0; t < 8; t += 2) {
      const uint32_t r[4] = {v[t][0], v[t][1], v[t + 1][0], v[t + 1][1]};
      stmatrix_x4_trans(to + t * 128, r);
    }
    __syncwarp();
#pragma unroll
    for (int k = 0; k < 4; k++) {
      const int i = 16 * k + (lane >> 1), piece = lane & 1;
      if (i < n) *reinterpret_cast<uint4*>(row_of<bf16>(out, token + i) + column + piece * 8) = *reinterpret_cast<const uint4*>(place + piece * PIECE + i * 16);
    }
  }
};

// The state into a block; to is the lane's place.
__device__ __forceinline__ void store_state(const float (&s)[16][4], float* to) {
#pragma unroll
  for (int t = 0; t < 16; t++)
#pragma unroll
    for (int half = 0; half < 2; half++) *reinterpret_cast<float2*>(to + half * 8 * KEYS + 8 * t) = make_float2(s[t][2 * half], s[t][2 * half + 1]);
}

// Every lane of a warp that is done with a stage calls it; true for one lane of the last of COUNT warps. The counter finds
// that warp, and the barrier, at which every lane arrives for itself, orders what all read in front of what is copied next.
template <int COUNT>
__device__ __forceinline__ bool last_of(int* calls, uint64_t* free, uint32_t phase, int lane) {
  mbar_arrive(free);
  if (lane != 0 || atomicAdd(calls, 1) % COUNT < COUNT - 1) return false;
  mbar_wait(free, phase);
  return true;
}

// Warpgroups do not wait for each other: the warp that is the last to be done with a stage asks for the chunk after next.
template <class H, bool CUTS>
__device__ __forceinline__ void scan(const WithCuts<Delta>& p) {
  extern __shared__ __align__(128) uint8_t smem[];
  pdl_begin();
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, c = lane & 3;
  constexpr int SPLIT = KEYS / H::COLS;
  const int head = blockIdx.x / SPLIT, column0 = head * KEYS + blockIdx.x % SPLIT * H::COLS, column = column0 + 16 * warp;
  const Share k = share_of(p.rows, p.cursors, blockIdx.y, p.row0, p.row1);
  if (k.from >= k.to) return;
  const int64_t place = (int64_t)(column + g) * KEYS + 2 * c;
  const uint32_t space = smem_addr(smem), own = 2 * warp * PIECE;  // of the warp's values

  uint64_t *const full = reinterpret_cast<uint64_t*>(smem + H::FULL), *const free = reinterpret_cast<uint64_t*>(smem + H::FREE);
  int* const done = reinterpret_cast<int*>(smem + H::DONE);
  Chunks<CUTS, 2> chunks(p.rows, p.cuts, k, blockIdx.y, p.row0);
  const Sources<H> sources(p, chunks.first, head, column0);
  if (threadIdx.x == 0) {
    for (int i = 0; i < H::STAGES; i++) mbar_init(full + i, 1), mbar_init(free + i, 32 * H::WARPS), done[i] = 0;
    mbar_init_fence();
    sources.request(smem, 0, 0);
    if (chunks.more(k.from, 1)) sources.request(smem, 1, chunks.tile(0, 1));
    if (chunks.more(k.from, 2)) sources.request(smem, 2, chunks.tile(0, 2));
  }
  float s[16][4];
  const float* const before = block_of(p.state, k.from > 0 || k.s.h > 0 ? k.s.dst : k.s.src) + place;
#pragma unroll
  for (int t = 0; t < 16; t++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const float2 v = *reinterpret_cast<const float2*>(before + half * 8 * KEYS + 8 * t);
      s[t][2 * half] = v.x, s[t][2 * half + 1] = v.y;
    }
  __syncthreads();
  uint32_t state[8][4];
  round_state(state, s);
  Outputs outputs;  // of the chunk in front
  int behind = 0;   // its stage
  auto store = [&] { outputs.store(smem + behind * H::STAGE + H::V + own, p.out, column, lane); };
  for (int from = k.from, chunk = 0, stage = 0, phase = 0; from < k.to; chunks.step(from), chunk++) {
    const uint8_t* const place_of = smem + stage * H::STAGE;
    const uint32_t at = space + stage * H::STAGE;
    const Sum& sum = *reinterpret_cast<const Sum*>(place_of + H::SUM);
    uint32_t r[4][4], plain[4][4], decayed[4][4];
    float d[8][4], u[8][4], o[8][4];
    mbar_wait(full + stage, phase);
    product_fence();
    multiply_columns(d, state, at, PAIR, false);  // K S
    product_commit();
    if (chunk > 0) {
      store();
      async_proxy_fence();  // outputs lay where a copy puts the next values
      if (chunks.more(from, 2) && last_of<H::WARPS>(done + behind, free + behind, stage > 0 ? phase : phase ^ 1, lane)) sources.request(smem, behind, chunks.tile(chunk, 2));
    }
    product_wait<0>();
    pin(d);
    residuals(r, d, sum, at + H::V + own + (lane >> 3 & 1) * PIECE + (lane >> 4) * 128 + (lane & 7) * 16, c);
    product_fence();
    multiply_rows(u, r, at + H::T, PIECE, false);
    product_commit();
    multiply_columns(o, state, at + PIECE, PAIR, false);  // Q S
    product_commit();
    product_wait<1>();
    pin(u), pin(r);
    corrections(plain, decayed, u, sum, c);
    const float decay = sum.since[CHUNK - 1];
#pragma unroll
    for (int t = 0; t < 16; t++)
#pragma unroll
      for (int e = 0; e < 4; e++) s[t][e] *= decay;
    product_fence();
    multiply_rows(s, decayed, at, PAIR, true);
    product_commit();
    product_wait<1>();
    pin(o), pin(state);
#pragma unroll
    for (int t = 0; t < 8; t++) {
      const float2 since = *reinterpret_cast<const float2*>(sum.since + 8 * t + 2 * c);
#pragma unroll
      for (int e = 0; e < 4; e++) o[t][e] *= e & 1 ? since.y : since.x;
    }
    product_fence();
    multiply_columns(o, plain, at + H::M, PIECE, true);
    product_commit();
    product_wait<1>();
    pin(s), pin(decayed);
    round_state(state, s);
    product_wait<0>();
    pin(o), pin(plain);
    if (const int block = chunks.block(); block >= 0) store_state(s, block_of(p.state, block) + place);
    outputs.round(o), outputs.token = k.s.first + from, outputs.n = chunks.end() - from, behind = stage;
    if (++stage == H::STAGES) stage = 0, phase ^= 1;
  }
  store();
  store_state(s, block_of(p.state, k.s.dst) + place);
}

// ---------------------------------------------------------------- norm
// The norm of every head of out times silu(z). A thread has eight columns, sixteen lanes a head.
__device__ void norm(const Delta& p) {
  const int column = (blockIdx.y * blockDim.x + threadIdx.x) * 8, token = p.rows.first + blockIdx.x;
  const bool mine = column < p.values();
  float y[8] = {}, z[8], w[8];
  if (mine) load8(at<float>(p.norm_w) + column % KEYS, w);
  pdl_begin();
  bf16* out = row_of<bf16>(p.out, token) + column;
  if (mine) load8(out, y), load8(row_of<bf16>(p.z, token) + column, z);
  float sum = 0.f;
#pragma unroll
  for (int e = 0; e < 8; e++) sum = fmaf(y[e], y[e], sum);
#pragma unroll
  for (int o = 1; o < 16; o *= 2) sum += __shfl_xor_sync(~0u, sum, o);
  if (!mine) return;
  const float f = rsqrtf(sum / KEYS + p.eps);
#pragma unroll
  for (int e = 0; e < 8; e++) y[e] *= f * w[e] * scan_silu(z[e]);
  store8(out, y);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(CONV_THREADS, 4) delta_scan_convolve(PARAMS(WithCuts<Delta>, p)) { convolve_scan<false>(p); }
extern "C" __global__ void __launch_bounds__(CONV_THREADS, 4) delta_scan_convolve_cuts(PARAMS(WithCuts<Delta>, p)) { convolve_scan<true>(p); }
extern "C" __global__ void __launch_bounds__(PREPARE_THREADS, 4) delta_scan_prepare(PARAMS(WithCuts<Delta>, p)) { prepare<false>(p); }
extern "C" __global__ void __launch_bounds__(PREPARE_THREADS, 4) delta_scan_prepare_cuts(PARAMS(WithCuts<Delta>, p)) { prepare<true>(p); }
// delta_scan_N: N warpgroups a block.
extern "C" __global__ void __launch_bounds__(128, 1) delta_scan_1(PARAMS(WithCuts<Delta>, p)) { scan<Shape<1>, false>(p); }
extern "C" __global__ void __launch_bounds__(256, 1) delta_scan_2(PARAMS(WithCuts<Delta>, p)) { scan<Shape<2>, false>(p); }
extern "C" __global__ void __launch_bounds__(128, 1) delta_scan_1_cuts(PARAMS(WithCuts<Delta>, p)) { scan<Shape<1>, true>(p); }
extern "C" __global__ void __launch_bounds__(256, 1) delta_scan_2_cuts(PARAMS(WithCuts<Delta>, p)) { scan<Shape<2>, true>(p); }
extern "C" __global__ void __launch_bounds__(128) delta_scan_norm(PARAMS(Delta, p)) { norm(p); }
