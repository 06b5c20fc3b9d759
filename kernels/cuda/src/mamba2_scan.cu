// Prefill of a Mamba-2 layer of State 128 in bfloat16 by chunks of 64 tokens (SSD): a convolution over packed rows into
// scratch memory, then a block for a row, head and COLS value columns that goes through the chunks with the state in
// registers; then the gated norm (mamba2.cu).
//
// Of a chunk, with L the running sum of the log decays dt A:
//   Y = exp(L_i) (C S) + tril((C_i . B_j) exp(L_i - L_j) dt_j) X + D X,   S' = exp(L_63) S + sum over j of exp(L_63 - L_j) dt_j B_j X_j^T
// Products take bf16 operands. Where the state is one, or becomes the result, the rounded operand is split in two terms
// (17 bits): S in the outputs, the weighted B in the state's update. The state itself is float32 and grows by one rounded
// fma a chunk.
//
// Floor of 96 heads x 80 (8 groups), 2,048 tokens: 40 MB x, B, C and 31 MB y, 17 us at 4.1 TB/s; 19 GFLOP as issued (both
// terms, half of the pairs), 24 us at 788 TFLOP/s. mma.sync reaches some 60 % of that rate.
#include "mamba2.cuh"
#include "scan.cuh"

namespace {

// What the recurrence needs of a chunk's time steps: L in units of log 2, dt, dt times the decay behind it.
struct Times {
  float until[CHUNK], dt[CHUNK], weight[CHUNK];
};

// Four warps a group of NP value columns, WP groups.
template <int NP_, int WP_>
struct Shape {
  static constexpr int NP = NP_, NT = NP / 8, COLS = NP * WP_, THREADS = 128 * WP_, ROW = pitch(COLS);
  static constexpr int C = CHUNK * KEY_ROW, X = 2 * C, STAGE = X + CHUNK * ROW;
  static constexpr int HIGH = 2 * STAGE, LOW = HIGH + KEYS * ROW, TIMES = LOW + KEYS * ROW;
};

__device__ void convolve_scan(const Mamba2& p) {
  convolve_tile(p.rows, p.cursors, p.state, p.xbc, p.conv(), p.conv_w, p.conv_b, p.row0, p.row1, [&](int token, int channel, bool mine, const float (&y)[8]) {
    if (mine) store8(at<bf16>(p.query) + (int64_t)token * p.conv() + channel, y);
  });
}

// Asks for the tokens at, at + 1, ... of the launch: B, C and COLS columns of x; zeros behind n of them.
template <class H>
__device__ __forceinline__ void request(const Mamba2& p, uint8_t* stage, int token, int n, int column, int keys) {
  constexpr int PIECES = 32 + H::COLS / 8;
  const bf16* source = at<const bf16>(p.query) + (int64_t)token * p.conv();
  for (int idx = threadIdx.x; idx < CHUNK * PIECES; idx += H::THREADS) {
    int i = idx / PIECES, piece = idx % PIECES, x = piece - 32;
    const bf16* from = source + (i < n ? i : 0) * (int64_t)p.conv() + (x >= 0 ? column + x * 8 : keys + (piece & 16 ? p.bc() : 0) + (piece & 15) * 8);
    cp_async16_if(stage + (x >= 0 ? H::X + i * H::ROW + x * 16 : (piece & 16 ? H::C : 0) + i * KEY_ROW + (piece & 15) * 16), from, i < n);
  }
}

// One warp: the time steps of n tokens from token of the batch on. raw: of this lane's two tokens.
__device__ __forceinline__ void make_times(Times& times, const Mamba2& p, const float (&raw)[2], int n, int head, float a, int lane) {
  float dt[2];
#pragma unroll
  for (int e = 0; e < 2; e++) dt[e] = 2 * lane + e < n ? step_size(p, raw[e], head) : 0.f;
  Sums sums(dt[0] * a, dt[1] * a, lane);
#pragma unroll
  for (int e = 0; e < 2; e++) {
    times.until[2 * lane + e] = sums.until[e], times.dt[2 * lane + e] = dt[e];
    times.weight[2 * lane + e] = dt[e] * exp2f(sums.after[e]);
  }
}
__device__ __forceinline__ void load_times(float (&raw)[2], const Mamba2& p, int token, int n, int head, int lane) {
#pragma unroll
  for (int e = 0; e < 2; e++) raw[e] = 2 * lane + e < n ? widen(row_of<bf16>(p.dt, token + 2 * lane + e)[head]) : 0.f;
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
          uint32_t high = pack_bf16(x, y);
          to[0] = high;
          to[(H::LOW - H::HIGH) / 4] = pack_bf16(x - bf_lo(high), y - bf_hi(high));
        }
  }
  // decay S + sum over the chunk of the weighted keys times x.
  __device__ void advance(const uint8_t* keys, const uint8_t* x, const Times& times, int key, int column, float decay, int lane) {
    const int c = lane & 3;
    float d[2][H::NT][4] = {};
#pragma unroll
    for (int k = 0; k < CHUNK / 16; k++) {
      const float2 w0 = *reinterpret_cast<const float2*>(times.weight + 16 * k + 2 * c), w1 = *reinterpret_cast<const float2*>(times.weight + 16 * k + 8 + 2 * c);
      uint32_t high[2][4], low[2][4];
#pragma unroll
      for (int m = 0; m < 2; m++) {
        uint32_t b[4];
        ldmatrix_x4_trans(b, turned<KEY_ROW>(keys, 16 * k, key + 16 * m, lane));
#pragma unroll
        for (int r = 0; r < 4; r++) {
          float u = bf_lo(b[r]) * (r < 2 ? w0.x : w1.x), v = bf_hi(b[r]) * (r < 2 ? w0.y : w1.y);
          high[m][r] = pack_bf16(u, v);
          low[m][r] = pack_bf16(u - bf_lo(high[m][r]), v - bf_hi(high[m][r]));
        }
      }
      each_pair<H>(x, 16 * k, column, lane, [&](int t, uint32_t b0, uint32_t b1) {
#pragma unroll
        for (int m = 0; m < 2; m++) mma_bf16(d[m][t], low[m], b0, b1), mma_bf16(d[m][t], high[m], b0, b1);
      });
    }
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
      for (int t = 0; t < H::NT; t++)
#pragma unroll
        for (int e = 0; e < 4; e++) s[m][t][e] = fmaf(decay, s[m][t][e], d[m][t][e]);
  }

  // use(t, b0, b1) for the B operands of 16 rows of a matrix [row, column], rows of H::ROW bytes.
  template <class Shape, class Use>
  static __device__ __forceinline__ void each_pair(const uint8_t* matrix, int row, int column, int lane, Use use) {
#pragma unroll
    for (int t = 0; t + 1 < Shape::NT; t += 2) {
      uint32_t b[4];
      ldmatrix_x4_trans(b, operand<Shape::ROW>(matrix, row, column + 8 * t, lane));
      use(t, b[0], b[1]), use(t + 1, b[2], b[3]);
    }
    if constexpr (Shape::NT % 2) {
      uint32_t b[2];
      ldmatrix_x2_trans(b, operand<Shape::ROW>(matrix, row, column + 8 * (Shape::NT - 1), lane));
      use(Shape::NT - 1, b[0], b[1]);
    }
  }
};

// y of the 16 tokens of a warp: from the state in front of the chunk, then from the tokens of the chunk.
template <class H>
__device__ __forceinline__ void outputs(float (&y)[H::NT][4], const uint8_t* smem, const uint8_t* stage, const Times& times, int rows, int column, int lane) {
  const int g = lane >> 2, c = lane & 3;
  uint32_t query[8][4];
#pragma unroll
  for (int k = 0; k < 8; k++) {
    ldmatrix_x4(query[k], operand<KEY_ROW>(stage + H::C, rows, 16 * k, lane));
#pragma unroll
    for (int term = 1; term >= 0; term--)
      Tile<H>::template each_pair<H>(smem + (term ? H::LOW : H::HIGH), 16 * k, column, lane, [&](int t, uint32_t b0, uint32_t b1) { mma_bf16(y[t], query[k], b0, b1); });
  }
  const float until[2] = {times.until[rows + g], times.until[rows + g + 8]}, since[2] = {exp2f(until[0]), exp2f(until[1])};
#pragma unroll
  for (int t = 0; t < H::NT; t++)
#pragma unroll
    for (int e = 0; e < 4; e++) y[t][e] *= since[e >> 1];
  for (int j = 0; j <= rows; j += 16) {  // the pairs with 16 tokens
    float pairs[2][4] = {};
#pragma unroll
    for (int k = 0; k < 8; k++) {
      uint32_t b[4];
      ldmatrix_x4(b, turned<KEY_ROW>(stage, j, 16 * k, lane));
      mma_bf16(pairs[0], query[k], b[0], b[1]), mma_bf16(pairs[1], query[k], b[2], b[3]);
    }
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        int from = j + 8 * half + 2 * c + (e & 1), to = rows + g + (e >> 1) * 8;
        pairs[half][e] = from <= to ? pairs[half][e] * times.dt[from] * exp2f(until[e >> 1] - times.until[from]) : 0.f;
      }
    const uint32_t w[4] = {pack_bf16(pairs[0][0], pairs[0][1]), pack_bf16(pairs[0][2], pairs[0][3]), pack_bf16(pairs[1][0], pairs[1][1]), pack_bf16(pairs[1][2], pairs[1][3])};
    Tile<H>::template each_pair<H>(stage + H::X, j, column, lane, [&](int t, uint32_t b0, uint32_t b1) { mma_bf16(y[t], w, b0, b1); });
  }
}

// y + D x, packed; x is the lane's first place.
template <class H>
__device__ __forceinline__ void skipped(uint32_t (&packed)[H::NT][2], const float (&y)[H::NT][4], const uint8_t* x, float skip) {
#pragma unroll
  for (int t = 0; t < H::NT; t++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      uint32_t v = *reinterpret_cast<const uint32_t*>(x + half * 8 * H::ROW + t * 16);
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

// Barriers of a chunk: one before anything of it is read (its copies, the published state and its times are there, and
// all are done with the stage that the next copies go to), one before the state is published again and x overwritten.
template <class H>
__device__ __forceinline__ void scan(const Mamba2& p) {
  extern __shared__ __align__(128) uint8_t smem[];
  pdl_begin();
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, c = lane & 3;
  const int split = p.dim / H::COLS, head = blockIdx.x / split, column0 = head * p.dim + blockIdx.x % split * H::COLS;
  const Share k = share_of(p.rows, p.cursors, blockIdx.y, p.row0, p.row1);
  if (k.from >= k.to) return;
  const int rows = warp % 4 * 16, keys = warp % 4 * 32, column = warp / 4 * H::NP;  // of the warp
  const int group = p.inner() + head / (p.heads / p.groups) * KEYS;
  const int64_t place = (int64_t)(column0 + column + 2 * c) * KEYS + keys + g;
  const float a = at<float>(p.a)[head] * LOG2E, skip = at<float>(p.d)[head];
  Times* const times = reinterpret_cast<Times*>(smem + H::TIMES);
  Tile<H> state;
  uint8_t* const published = smem + H::HIGH + (keys + g) * H::ROW + (column + 2 * c) * 2;

  request<H>(p, smem, k.at + k.from, k.to - k.from, column0, group);
  state.load(block_of(p.state, k.from > 0 || k.s.h > 0 ? k.s.dst : k.s.src) + place);
  float raw[2];
  if (warp == 0) load_times(raw, p, k.s.first + k.from, k.to - k.from, head, lane), make_times(times[0], p, raw, k.to - k.from, head, a, lane);
  state.publish(published);
  for (int from = k.from, chunk = 0; from < k.to; from += CHUNK, chunk++) {
    const int next = from + CHUNK;
    uint8_t* const stage = smem + (chunk & 1) * H::STAGE;
    const Times& now = times[chunk & 1];
    cp_async_wait_all();
    __syncthreads();
    if (next < k.to) {
      request<H>(p, smem + (~chunk & 1) * H::STAGE, k.at + next, k.to - next, column0, group);
      if (warp == 0) load_times(raw, p, k.s.first + next, k.to - next, head, lane);
    }
    float y[H::NT][4] = {};
    outputs<H>(y, smem, stage, now, rows, column, lane);
    uint32_t packed[H::NT][2];
    uint8_t* const own = stage + H::X + rows * H::ROW + column * 2;
    skipped<H>(packed, y, own + g * H::ROW + c * 4, skip);
    state.advance(stage, stage + H::X, now, keys, column, exp2f(now.until[CHUNK - 1]), lane);
    if (warp == 0 && next < k.to) make_times(times[~chunk & 1], p, raw, k.to - next, head, a, lane);
    __syncthreads();
    state.publish(published);
    store_outputs<H>(packed, own, p.out, k.s.first + from + rows, column0 + column, k.to - from - rows, lane);
  }
  state.store(block_of(p.state, k.s.dst) + place);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(CONV_THREADS) mamba2_scan_convolve(PARAMS(Mamba2, p)) { convolve_scan(p); }

// mamba2_scan_NP_WP: NP value columns a group of four warps, WP groups a block.
#define KERNEL(NP, WP)                                                                                          \
  extern "C" __global__ void __launch_bounds__(128 * WP, 1) mamba2_scan_##NP##_##WP(PARAMS(Mamba2, p)) { scan<Shape<NP, WP>>(p); }
KERNEL(32, 1)
KERNEL(32, 2)
KERNEL(40, 1)
KERNEL(40, 2)
