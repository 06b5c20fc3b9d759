// Prefill of a Gated DeltaNet layer of 128 x 128 heads with bfloat16 activations by chunks of 64 tokens (the chunked
// delta rule, WY form). Four launches: a convolution over packed rows; what a chunk needs that does not depend on the
// state (all chunks at once); a block for a row, head and COLS value columns that goes through the chunks with the state
// in registers; the gated norm.
//
// Of a chunk, with L the running sum of the log decays, u the corrections (one a token) and S the state in front:
//   A = tril(beta_i (k_i . k_j) exp(L_i - L_j), -1)    T = (I + A)^-1 diag(beta)    M = tril((q_i . k_j) exp(L_i - L_j))
//   U = T (V - exp(L_i) K S)      O = exp(L_i) Q S + M U      S' = exp(L_63) S + sum over j of exp(L_63 - L_j) k_j u_j^T
// The first line is float32 (the inverse by forward substitution) until T and M are stored. Products take float16
// operands: q, k and the columns of T are at most 1 (products of contractions), values and corrections saturate as
// records do, the state is split in two terms (22 bits). The state itself is float32 and grows by one rounded fma a chunk.
//
// Floor of 16/32 heads of 128 (q4b), 2,048 tokens: 34 MB q, k, v, 17 MB T, M and L, 17 MB out, 17 us at 4.1 TB/s;
// 12 GFLOP as issued (both terms), 15 us at 788 TFLOP/s. mma.sync reaches some 60 % of that rate.
#include "delta.cuh"
#include "scan.cuh"

namespace {

// What a chunk of a value head leaves for the recurrence: T and M, float16, what lies above the diagonal of 16 x 16 blocks
// unwritten; and L in units of log 2 with the decay behind every token.
constexpr int MATRIX = CHUNK * CHUNK * 2, TILE = 2 * MATRIX;
struct Sum {
  float until[CHUNK], after[CHUNK];
};

__device__ __forceinline__ uint8_t* tile_of(const Delta& p, int tile, int head) { return at<uint8_t>(p.value) + ((int64_t)tile * p.value_heads + head) * TILE; }
__device__ __forceinline__ Sum* sum_of(const Delta& p, int tile, int head) { return at<Sum>(p.beta) + (int64_t)tile * p.value_heads + head; }

// ---------------------------------------------------------------- convolution
// q and k become unit vectors, k rounded as its record, q divided by sqrt(128). Sixteen lanes have a head.
__device__ void convolve_scan(const Delta& p) {
  convolve_tile(p.rows, p.cursors, p.state, p.qkv, p.conv(), p.conv_w, 0, p.row0, p.row1, [&](int token, int channel, bool mine, float (&y)[8]) {
    float sum = 0.f;
#pragma unroll
    for (int e = 0; e < 8; e++) sum = fmaf(y[e], y[e], sum);
#pragma unroll
    for (int o = 1; o < 16; o *= 2) sum += __shfl_xor_sync(~0u, sum, o);
    const bool query = channel < p.keys(), key = !query && channel < 2 * p.keys();
    const float f = query || key ? rsqrtf(sum + 1e-6f) * (query ? 0.08838834764831845f : 1.f) : 1.f;
    uint32_t w[4];
#pragma unroll
    for (int e = 0; e < 4; e++) {
      float u = y[2 * e] * f, v = y[2 * e + 1] * f;
      if (key) u = widen(narrow<bf16>(u)), v = widen(narrow<bf16>(v));
      w[e] = pack_f16(saturate_f16(u), saturate_f16(v));
    }
    if (mine) *reinterpret_cast<uint4*>(at<uint16_t>(p.query) + (int64_t)token * p.conv() + channel) = make_uint4(w[0], w[1], w[2], w[3]);
  });
}

// Asks for the tokens at, at + 1, ... of the launch: COLS numbers from a column on; zeros behind n tokens.
template <int COLS, int THREADS>
__device__ __forceinline__ void request(const Delta& p, uint8_t* to, int token, int n, int column) {
  constexpr int PIECES = COLS / 8;
  const uint16_t* source = at<const uint16_t>(p.query) + (int64_t)token * p.conv() + column;
  for (int idx = threadIdx.x; idx < CHUNK * PIECES; idx += THREADS) {
    int i = idx / PIECES, piece = idx % PIECES;
    cp_async16_if(to + i * pitch(COLS) + piece * 16, source + (i < n ? i : 0) * (int64_t)p.conv() + piece * 8, i < n);
  }
}

// ---------------------------------------------------------------- chunks without the state
constexpr int PREPARE_THREADS = 128, LINE = CHUNK + 4;  // floats of a row of A
struct Prepare {
  alignas(16) uint8_t k[CHUNK * KEY_ROW], q[CHUNK * KEY_ROW];
  float a[2][CHUNK * LINE];
  Sum sum[2];
  float beta[2][CHUNK];
};

// One warp: decays and betas of n tokens.
__device__ __forceinline__ void decays(const Delta& p, Sum& sum, float* beta, int token, int n, int head, int lane) {
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
  for (int e = 0; e < 2; e++) sum.until[2 * lane + e] = sums.until[e], sum.after[2 * lane + e] = exp2f(sums.after[e]);
}

// A column of the inverse of I + A, the strictly lower triangular a in shared memory, by forward substitution.
__device__ __forceinline__ void substitute(const float* a, int column, float (&x)[CHUNK]) {
#pragma unroll
  for (int i = 0; i < CHUNK; i++) {
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

// 16 rows of Q K^T or K K^T of a warp, up to the diagonal: blocks of 16 x 8.
__device__ __forceinline__ void pairs(float (&dots)[CHUNK / 8][4], const uint8_t* left, const uint8_t* keys, int rows, int lane) {
#pragma unroll
  for (int k = 0; k < 8; k++) {
    uint32_t a[4];
    ldmatrix_x4(a, operand<KEY_ROW>(left, rows, 16 * k, lane));
#pragma unroll
    for (int j = 0; j < CHUNK / 16; j++) {
      if (16 * j > rows) break;
      uint32_t b[4];
      ldmatrix_x4(b, turned<KEY_ROW>(keys, 16 * j, 16 * k, lane));
      mma_f16(dots[2 * j], a, b[0], b[1]), mma_f16(dots[2 * j + 1], a, b[2], b[3]);
    }
  }
}

// A of a value head into shared memory, M into its tile.
__device__ __forceinline__ void weigh(const float (&kk)[CHUNK / 8][4], const float (&qk)[CHUNK / 8][4], const Sum& sum, const float* beta, float* a, uint8_t* m, int rows, int lane) {
  const int g = lane >> 2, c = lane & 3;
#pragma unroll
  for (int j = 0; j < CHUNK / 8; j++) {
    if (8 * j > rows + 8) break;
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int i = rows + g + 8 * half, from = 8 * j + 2 * c;
      float mixed[2];
#pragma unroll
      for (int e = 0; e < 2; e++) {
        float decay = from + e <= i ? exp2f(sum.until[i] - sum.until[from + e]) : 0.f;
        mixed[e] = qk[j][2 * half + e] * decay;
        a[i * LINE + from + e] = from + e < i ? beta[i] * kk[j][2 * half + e] * decay : 0.f;
      }
      *reinterpret_cast<uint32_t*>(m + (i * CHUNK + from) * 2) = pack_f16(mixed[0], mixed[1]);
    }
  }
}

// A block a tile and key head; 64 threads a value head, two at a time.
__device__ void prepare(const Delta& p) {
  extern __shared__ __align__(128) uint8_t smem[];
  Prepare& s = *reinterpret_cast<Prepare*>(smem);
  pdl_begin();
  const int key_head = blockIdx.x, tile = blockIdx.y, warp = threadIdx.x >> 5, lane = threadIdx.x & 31, per = p.value_heads / p.key_heads;
  const Share k = tile_share(p.rows, p.cursors, tile, CHUNK, p.row0, p.row1);
  const int n = k.to - k.from;
  if (n <= 0) return;
  request<KEYS, PREPARE_THREADS>(p, s.q, k.at + k.from, n, key_head * KEYS);
  request<KEYS, PREPARE_THREADS>(p, s.k, k.at + k.from, n, p.keys() + key_head * KEYS);
  cp_async_wait_all();
  __syncthreads();
  float kk[CHUNK / 8][4] = {}, qk[CHUNK / 8][4] = {};
  pairs(kk, s.k, s.k, warp * 16, lane);
  pairs(qk, s.q, s.k, warp * 16, lane);
  for (int first = 0; first < per; first += 2) {
    const int count = min(2, per - first), head = key_head * per + first;
    if (warp < count) decays(p, s.sum[warp], s.beta[warp], k.s.first + k.from, n, head + warp, lane);
    __syncthreads();
    for (int v = 0; v < count; v++) weigh(kk, qk, s.sum[v], s.beta[v], s.a[v], tile_of(p, tile, head + v) + MATRIX, warp * 16, lane);
    __syncthreads();
    const int mine = threadIdx.x / CHUNK, column = threadIdx.x % CHUNK;
    if (mine < count) {
      float x[CHUNK];
      substitute(s.a[mine], column, x);
      uint16_t* t = reinterpret_cast<uint16_t*>(tile_of(p, tile, head + mine));
      const float beta = s.beta[mine][column];
#pragma unroll
      for (int i = 0; i < CHUNK; i++) t[i * CHUNK + column] = (uint16_t)pack_f16(x[i] * beta, 0.f);
      Sum* sum = sum_of(p, tile, head + mine);
      sum->until[column] = s.sum[mine].until[column], sum->after[column] = s.sum[mine].after[column];
    }
    __syncthreads();  // before the next two take the memory
  }
}

// ---------------------------------------------------------------- recurrence
// Four warps a group of 32 value columns, WP groups.
template <int WP_>
struct Shape {
  static constexpr int NP = 32, NT = NP / 8, COLS = NP * WP_, THREADS = 128 * WP_, ROW = pitch(COLS), MATRIX_ROW = pitch(CHUNK);
  static constexpr int Q = CHUNK * KEY_ROW, T = 2 * Q, M = T + CHUNK * MATRIX_ROW, V = M + CHUNK * MATRIX_ROW, SUM = V + CHUNK * ROW, STAGE = SUM + sizeof(Sum);
  static constexpr int HIGH = 2 * STAGE, LOW = HIGH + KEYS * ROW, RESIDUAL = LOW + KEYS * ROW, U = RESIDUAL + CHUNK * ROW;
};

// Asks for what a chunk takes: n tokens from token of the launch on, and its tile.
template <class H>
__device__ __forceinline__ void request_chunk(const Delta& p, uint8_t* stage, int token, int n, int tile, int head, int column) {
  const int key = head / (p.value_heads / p.key_heads) * KEYS;
  request<KEYS, H::THREADS>(p, stage, token, n, p.keys() + key);
  request<KEYS, H::THREADS>(p, stage + H::Q, token, n, key);
  request<H::COLS, H::THREADS>(p, stage + H::V, token, n, 2 * p.keys() + column);
  const uint8_t* matrices = tile_of(p, tile, head);
  for (int idx = threadIdx.x; idx < TILE / 16; idx += H::THREADS) {
    int i = idx / 8, piece = idx % 8;  // row i of T, then of M
    cp_async16(stage + H::T + i * H::MATRIX_ROW + piece * 16, matrices + idx * 16);
  }
  const uint8_t* sum = reinterpret_cast<const uint8_t*>(sum_of(p, tile, head));
  if (threadIdx.x < sizeof(Sum) / 16) cp_async16(stage + H::SUM + threadIdx.x * 16, sum + threadIdx.x * 16);
}

// use(t, b0, b1) for the B operands of 16 rows of a matrix [row, column] of a warp's 32 columns.
template <class H, class Use>
__device__ __forceinline__ void each_pair(const uint8_t* matrix, int row, int column, int lane, Use use) {
#pragma unroll
  for (int t = 0; t < H::NT; t += 2) {
    uint32_t b[4];
    ldmatrix_x4_trans(b, operand<H::ROW>(matrix, row, column + 8 * t, lane));
    use(t, b[0], b[1]), use(t + 1, b[2], b[3]);
  }
}

// y += a lower triangular matrix of the chunk, 16 rows of it, times x [token, column].
template <class H>
__device__ __forceinline__ void lower_product(float (&y)[H::NT][4], const uint8_t* matrix, const uint8_t* x, int rows, int column, int lane) {
#pragma unroll
  for (int j = 0; j < CHUNK; j += 16) {
    if (j > rows) break;
    uint32_t a[4];
    ldmatrix_x4(a, operand<H::MATRIX_ROW>(matrix, rows, j, lane));
    each_pair<H>(x, j, column, lane, [&](int t, uint32_t b0, uint32_t b1) { mma_f16(y[t], a, b0, b1); });
  }
}

// The state of a warp, with what the products of this scan want of it.
template <class H>
struct Tile : StateTile<H> {
  using StateTile<H>::s;

  // The two terms of the state into shared memory, [key][column]; at is the lane's first place.
  __device__ void publish(uint8_t* at) const {
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
      for (int t = 0; t < H::NT; t++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
          uint32_t* to = reinterpret_cast<uint32_t*>(at + (16 * m + 8 * half) * H::ROW + t * 16);
          float x = s[m][t][2 * half], y = s[m][t][2 * half + 1];
          uint32_t high = pack_f16(saturate_f16(x), saturate_f16(y));
          float2 r = unpack_f16(high);
          to[0] = high;
          to[(H::LOW - H::HIGH) / 4] = pack_f16(saturate_f16(x - r.x), saturate_f16(y - r.y));
        }
  }
  // decay S + sum over the chunk of the decayed keys times the corrections.
  __device__ void advance(const uint8_t* keys, const uint8_t* u, const Sum& sum, int key, int column, float decay, int lane) {
    const int c = lane & 3;
    float d[2][H::NT][4] = {};
#pragma unroll
    for (int k = 0; k < CHUNK / 16; k++) {
      uint32_t w[2], a[2][4];
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const float2 v = *reinterpret_cast<const float2*>(sum.after + 16 * k + 8 * half + 2 * c);
        w[half] = pack_f16(v.x, v.y);
      }
#pragma unroll
      for (int m = 0; m < 2; m++) {
        ldmatrix_x4_trans(a[m], turned<KEY_ROW>(keys, 16 * k, key + 16 * m, lane));
#pragma unroll
        for (int r = 0; r < 4; r++) a[m][r] = product_f16(a[m][r], w[r >> 1]);
      }
      each_pair<H>(u, 16 * k, column, lane, [&](int t, uint32_t b0, uint32_t b1) {
#pragma unroll
        for (int m = 0; m < 2; m++) mma_f16(d[m][t], a[m], b0, b1);
      });
    }
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
      for (int t = 0; t < H::NT; t++)
#pragma unroll
        for (int e = 0; e < 4; e++) s[m][t][e] = fmaf(decay, s[m][t][e], d[m][t][e]);
  }
  static __device__ __forceinline__ uint32_t product_f16(uint32_t x, uint32_t y) {
    __half2 v = __hmul2(*reinterpret_cast<__half2*>(&x), *reinterpret_cast<__half2*>(&y));
    return *reinterpret_cast<uint32_t*>(&v);
  }
};

// A warp's 16 rows of K S and Q S.
template <class H>
__device__ __forceinline__ void read_state(float (&ks)[H::NT][4], float (&qs)[H::NT][4], const uint8_t* smem, const uint8_t* stage, int rows, int column, int lane) {
#pragma unroll
  for (int k = 0; k < 8; k++) {
    uint32_t key[4], query[4];
    ldmatrix_x4(key, operand<KEY_ROW>(stage, rows, 16 * k, lane));
    ldmatrix_x4(query, operand<KEY_ROW>(stage + H::Q, rows, 16 * k, lane));
#pragma unroll
    for (int term = 1; term >= 0; term--)
      each_pair<H>(smem + (term ? H::LOW : H::HIGH), 16 * k, column, lane, [&](int t, uint32_t b0, uint32_t b1) { mma_f16(ks[t], key, b0, b1), mma_f16(qs[t], query, b0, b1); });
  }
}

// Writes a warp's accumulators as 16-bit pairs, one rule for all; to is the lane's first place.
template <class H, class Pair>
__device__ __forceinline__ void put(uint8_t* to, Pair pair) {
#pragma unroll
  for (int t = 0; t < H::NT; t++)
#pragma unroll
    for (int half = 0; half < 2; half++) *reinterpret_cast<uint32_t*>(to + half * 8 * H::ROW + t * 16) = pair(t, half);
}

// Barriers of a chunk: before anything of it is read (its copies and the published state are there, all are done with the
// stage that the next copies go to and with u); when the residuals are there (and all have read the state); when u is
// there (and all have read the residuals, whose place outputs then pass through).
template <class H>
__device__ __forceinline__ void scan(const Delta& p) {
  extern __shared__ __align__(128) uint8_t smem[];
  pdl_begin();
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, c = lane & 3;
  constexpr int SPLIT = KEYS / H::COLS;
  const int head = blockIdx.x / SPLIT, column0 = head * KEYS + blockIdx.x % SPLIT * H::COLS;
  const Share k = share_of(p.rows, p.cursors, blockIdx.y, p.row0, p.row1);
  if (k.from >= k.to) return;
  const int rows = warp % 4 * 16, keys = warp % 4 * 32, column = warp / 4 * H::NP;  // of the warp
  const int64_t place = (int64_t)(column0 + column + 2 * c) * KEYS + keys + g;
  const int own = (rows + g) * H::ROW + (column + 2 * c) * 2;  // the lane's first place among tokens
  uint8_t* const published = smem + H::HIGH + (keys + g) * H::ROW + (column + 2 * c) * 2;
  int tile = first_tile(p.rows, blockIdx.y, p.row0, CHUNK);
  Tile<H> state;

  request_chunk<H>(p, smem, k.at + k.from, k.to - k.from, tile, head, column0);
  state.load(block_of(p.state, k.from > 0 || k.s.h > 0 ? k.s.dst : k.s.src) + place);
  state.publish(published);
  for (int from = k.from, chunk = 0; from < k.to; from += CHUNK, chunk++) {
    const int next = from + CHUNK;
    const uint8_t* const stage = smem + (chunk & 1) * H::STAGE;
    const Sum& sum = *reinterpret_cast<const Sum*>(stage + H::SUM);
    cp_async_wait_all();
    __syncthreads();
    if (next < k.to) request_chunk<H>(p, smem + (~chunk & 1) * H::STAGE, k.at + next, k.to - next, ++tile, head, column0);
    float ks[H::NT][4] = {}, o[H::NT][4] = {};
    read_state<H>(ks, o, smem, stage, rows, column, lane);
    const float since[2] = {exp2f(sum.until[rows + g]), exp2f(sum.until[rows + g + 8])};
    put<H>(smem + H::RESIDUAL + own, [&](int t, int half) {
      float2 v = unpack_f16(*reinterpret_cast<const uint32_t*>(stage + H::V + own + half * 8 * H::ROW + t * 16));
      return pack_f16(saturate_f16(fmaf(-since[half], ks[t][2 * half], v.x)), saturate_f16(fmaf(-since[half], ks[t][2 * half + 1], v.y)));
    });
    __syncthreads();
    float u[H::NT][4] = {};
    lower_product<H>(u, stage + H::T, smem + H::RESIDUAL, rows, column, lane);
    put<H>(smem + H::U + own, [&](int t, int half) { return pack_f16(saturate_f16(u[t][2 * half]), saturate_f16(u[t][2 * half + 1])); });
    __syncthreads();
#pragma unroll
    for (int t = 0; t < H::NT; t++)
#pragma unroll
      for (int e = 0; e < 4; e++) o[t][e] *= since[e >> 1];
    lower_product<H>(o, stage + H::M, smem + H::U, rows, column, lane);
    put<H>(smem + H::RESIDUAL + own, [&](int t, int half) { return pack_bf16(o[t][2 * half], o[t][2 * half + 1]); });
    __syncwarp();
    for (int idx = lane; idx < 16 * H::NT; idx += 32) {
      int i = rows + idx / H::NT, piece = column + idx % H::NT * 8;
      if (from + i < k.to) *reinterpret_cast<uint4*>(row_of<bf16>(p.out, k.s.first + from + i) + column0 + piece) = *reinterpret_cast<const uint4*>(smem + H::RESIDUAL + i * H::ROW + piece * 2);
    }
    state.advance(stage, smem + H::U, sum, keys, column, exp2f(sum.until[CHUNK - 1]), lane);
    state.publish(published);
  }
  state.store(block_of(p.state, k.s.dst) + place);
}

// ---------------------------------------------------------------- norm
// The norm of every head of out times silu(z). A thread has eight columns, sixteen lanes a head.
__device__ void norm(const Delta& p) {
  const int column = (blockIdx.y * blockDim.x + threadIdx.x) * 8, token = p.rows.first + blockIdx.x;
  const bool mine = column < p.values();
  float y[8] = {}, z[8], w[8], sum = 0.f;
  if (mine) load8(at<float>(p.norm_w) + column % KEYS, w);
  pdl_begin();
  bf16* out = row_of<bf16>(p.out, token) + column;
  if (mine) load8(out, y), load8(row_of<bf16>(p.z, token) + column, z);
#pragma unroll
  for (int e = 0; e < 8; e++) sum = fmaf(y[e], y[e], sum);
#pragma unroll
  for (int o = 1; o < 16; o *= 2) sum += __shfl_xor_sync(~0u, sum, o);
  if (!mine) return;
  const float f = rsqrtf(sum / KEYS + p.eps);
#pragma unroll
  for (int e = 0; e < 8; e++) y[e] *= f * w[e] * silu(z[e]);
  store8(out, y);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(CONV_THREADS) delta_scan_convolve(PARAMS(Delta, p)) { convolve_scan(p); }
extern "C" __global__ void __launch_bounds__(PREPARE_THREADS, 2) delta_scan_prepare(PARAMS(Delta, p)) { prepare(p); }
extern "C" __global__ void __launch_bounds__(128, 1) delta_scan_1(PARAMS(Delta, p)) { scan<Shape<1>>(p); }
extern "C" __global__ void __launch_bounds__(256, 1) delta_scan_2(PARAMS(Delta, p)) { scan<Shape<2>>(p); }
extern "C" __global__ void __launch_bounds__(128) delta_scan_norm(PARAMS(Delta, p)) { norm(p); }
