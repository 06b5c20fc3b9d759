// What the recurrent layers share: rows with their cursors, record rings, the convolution.
#pragma once
#include "checkpoint.cuh"

// A layer's blocks and rings; replay of ssm.go.
struct Replay {
  uint64_t blocks, rings;
  int64_t block_stride, ring_stride;
  int64_t x, b, decay, conv;  // byte offsets in a slot's ring region
  int64_t v, beta;            // the same, of GDN in two precisions
  int records, conv_rows;     // capacities of the rings
  int window, layer;
  int two, stochastic;        // lp is a copy of hp; how hp is rounded
  StateArray hp, lp;          // lp: what steps read that do not flush
  uint64_t scratch;           // float32 states of unfinished prefills
  int64_t scratch_stride;
  uint64_t scratch_of, stage;  // of each row, or 0
  __device__ uint64_t block(int i) const { return blocks + (int64_t)i * block_stride; }
  __device__ float* scratch_state(int i, int head) const { return reinterpret_cast<float*>(scratch + i * scratch_stride) + (int64_t)head * hp.rows * hp.cols; }
  __device__ Noise noise(int position) const { return {stochastic, (uint32_t)layer, (uint32_t)position}; }
};

enum { RESUME = 1, PUBLISH = 2 };  // bits of stage

enum { STEP = 0, SCAN = 1, FOLD = 2 };

// One row of a launch with its cursor.
struct Sequence {
  int slot, n, first, origin, h, src, dst;
  __device__ int position() const { return origin + h; }
};

__device__ __forceinline__ Sequence sequence(const Rows& rows, const Cursors& c, int r) {
  Sequence s;
  s.slot = at<int>(rows.slot)[r];
  s.n = at<int>(rows.n)[r];
  s.first = rows.t > 0 ? rows.first + r * rows.t : at<int>(rows.start)[r];
  s.origin = at<int>(c.origin)[s.slot];
  s.h = at<int>(c.h)[s.slot];
  s.src = at<int>(c.src)[s.slot];
  s.dst = at<int>(c.dst)[s.slot];
  return s;
}

__device__ __forceinline__ bool flushes(const Replay& state, const Sequence& s) { return s.h + s.n > state.window; }

// A float32 checkpoint.
__device__ __forceinline__ float* block_of(const Replay& state, int block) { return reinterpret_cast<float*>(state.block(block)); }

// The row of an absolute token, which is not negative, in a ring of the given capacity and columns.
template <typename T>
__device__ __forceinline__ T* ring_row(const Replay& state, int slot, int64_t field, int token, int rows, int cols) {
  return reinterpret_cast<T*>(state.rings + (int64_t)slot * state.ring_stride + field) + (int64_t)(token % rows) * cols;
}

// Correction records: float16 beside bfloat16 activations, else as the activations.
template <typename A>
struct Correction {
  using type = A;
};
template <>
struct Correction<bf16> {
  using type = __half;
};
__device__ __forceinline__ float round_correction(float v, float) { return v; }
__device__ __forceinline__ float round_correction(float v, __half) { return __half2float(__float2half_rn(fminf(fmaxf(v, -65504.f), 65504.f))); }

__device__ __forceinline__ float softplus(float x) { return x > 20.f ? x : log1pf(expf(x)); }

// The raw row of a token of a sequence: from the ring, or from the batch.
template <typename A>
__device__ __forceinline__ float raw(const Replay& state, const Sequence& s, const Mat& fresh, int cols, int token, int channel) {
  if (token < 0) return 0.f;
  if (token < s.position()) return widen(ring_row<A>(state, s.slot, state.conv, token, state.conv_rows, cols)[channel]);
  return widen(row_of<A>(fresh, s.first + token - s.position())[channel]);
}

// silu(bias + the taps over the rows that end at token) of one channel.
template <typename A>
__device__ __forceinline__ float convolve(const Replay& state, const Sequence& s, const Mat& fresh, int cols, int taps, uint64_t w, uint64_t bias, int token, int channel) {
  float sum = bias ? at<float>(bias)[channel] : 0.f;
  for (int k = 0; k < taps; k++) sum = fmaf(at<float>(w)[channel * taps + k], raw<A>(state, s, fresh, cols, token - taps + 1 + k, channel), sum);
  return silu(sum);
}

// A head's state in the registers of 256 threads: eight lanes share a value row, a warp has four, the block 32 and the
// rows 32, 64 and 96 behind them. Lane l holds keys 32i + 4l .. + 3 of its rows. Keys and values end at 128; keys
// that the head lacks are zero.
constexpr int PLAIN_THREADS = 256, PLAIN_DIM = 128, PLAIN_ROWS = 4, PLAIN_KEYS = 16, PLAIN_CHUNK = 16;

struct HeadState {
  float s[PLAIN_ROWS][PLAIN_KEYS];

  __device__ static int row(int r) { return threadIdx.x / 8 + 32 * r; }
  __device__ static int key(int i) { return i / 4 * 32 + threadIdx.x % 8 * 4 + i % 4; }

  __device__ void load(const float* p, int values, int keys) {
#pragma unroll
    for (int r = 0; r < PLAIN_ROWS; r++)
#pragma unroll
      for (int i = 0; i < PLAIN_KEYS; i++) s[r][i] = row(r) < values && key(i) < keys ? p[row(r) * keys + key(i)] : 0.f;
  }
  __device__ void store(float* p, int values, int keys) const {
#pragma unroll
    for (int r = 0; r < PLAIN_ROWS; r++)
#pragma unroll
      for (int i = 0; i < PLAIN_KEYS; i++)
        if (row(r) < values && key(i) < keys) p[row(r) * keys + key(i)] = s[r][i];
  }

  // The same of a head in a block.
  __device__ void load(const StateArray& a, uint64_t block, int head) {
    if (a.format == STATE_F32) return load(at<float>(block + a.values) + (int64_t)head * a.rows * a.cols, a.rows, a.cols);
#pragma unroll
    for (int r = 0; r < PLAIN_ROWS; r++)
#pragma unroll
      for (int i = 0; i < PLAIN_KEYS; i += 4) {
        const float4 x = row(r) < a.rows && key(i) < a.cols ? load_four(a, block, head, row(r), key(i)) : make_float4(0.f, 0.f, 0.f, 0.f);
        s[r][i] = x.x, s[r][i + 1] = x.y, s[r][i + 2] = x.z, s[r][i + 3] = x.w;
      }
  }
  __device__ void store(const StateArray& a, uint64_t block, int head, const Noise& noise) const {
    if (a.format == STATE_F32) return store(at<float>(block + a.values) + (int64_t)head * a.rows * a.cols, a.rows, a.cols);
    Scale whole = {0.f, 0.f};
    if (a.format == STATE_NVFP4) {
      whole = scale_of(largest(), 6.f * 448.f);
      if (threadIdx.x == 0) at<float>(block + a.head_scales)[head] = whole.scale;
    }
#pragma unroll
    for (int r = 0; r < PLAIN_ROWS; r++) store_row(a, block, (int64_t)head * a.rows + row(r), row(r) < a.rows, s[r], whole, noise);
  }

  // The state after position tokens, in the formats of a block.
  __device__ void keep(const Replay& p, int block, int head, int position) const {
    store(p.hp, p.block(block), head, p.noise(position));
    if (p.two) store(p.lp, p.block(block), head, Noise{0, 0, 0});
  }

 private:
  // The head's largest magnitude.
  __device__ uint32_t largest() const {
    __shared__ uint32_t space;
    uint32_t m = 0;
#pragma unroll
    for (int r = 0; r < PLAIN_ROWS; r++)
#pragma unroll
      for (int i = 0; i < PLAIN_KEYS; i++) m = max(m, magnitude(s[r][i]));
    __syncthreads();
    if (threadIdx.x == 0) space = 0;
    __syncthreads();
    atomicMax(&space, m);
    __syncthreads();
    return space;
  }
  // Row `line` over all heads, of which eight lanes have 16 keys each.
  static __device__ void store_row(const StateArray& a, uint64_t block, int64_t line, bool exists, const float (&x)[PLAIN_KEYS], const Scale& whole, const Noise& noise);
};

__device__ __forceinline__ uint32_t largest_of_lanes(uint32_t m, int lanes) {
  for (int o = 1; o < lanes; o *= 2) m = max(m, __shfl_xor_sync(~0u, m, o));
  return m;
}

inline __device__ void HeadState::store_row(const StateArray& a, uint64_t block, int64_t line, bool exists, const float (&x)[PLAIN_KEYS], const Scale& whole, const Noise& noise) {
  float inverse = 1.f;
  if (a.format == STATE_F8) {
    uint32_t m = 0;
#pragma unroll
    for (int i = 0; i < PLAIN_KEYS; i++) m = max(m, magnitude(x[i]));
    const Scale scale = scale_of(largest_of_lanes(m, 8), 448.f);
    inverse = scale.inverse;
    if (exists && threadIdx.x % 8 == 0) at<float>(block + a.scales)[line] = scale.scale;
  }
#pragma unroll
  for (int i = 0; i < PLAIN_KEYS; i += 4) {
    const int key = HeadState::key(i);
    if (a.format == STATE_NVFP4) {
      const uint32_t m = largest_of_lanes(max(max(magnitude(x[i]), magnitude(x[i + 1])), max(magnitude(x[i + 2]), magnitude(x[i + 3]))), 4);
      const uint32_t code = block_scale_once(whole.scale, whole.inverse, m, noise.stochastic, &inverse);
      if (exists && key % 16 == 0 && key < a.cols) at<uint8_t>(block + a.scales)[line * a.row_scales + key / 16] = code;
    }
    if (exists && key < a.cols) store_four(a, block, line, key, make_float4(x[i], x[i + 1], x[i + 2], x[i + 3]), inverse, noise);
  }
}

// What the walks read and write of a row's checkpoints: a step reads lp, or hp if it flushes; folds and scans keep the
// state of an unfinished prefill in float32 where the row has a scratch block.
struct Place {
  int scratch, stage;
  __device__ Place(const Replay& p, int r) {
    scratch = p.scratch_of ? at<int>(p.scratch_of)[r] : -1;
    stage = p.stage ? at<int>(p.stage)[r] : 0;
  }
  __device__ void start_scan(HeadState& state, const Replay& p, const Sequence& s, int head) const {
    if (scratch >= 0 && (s.h > 0 || (stage & RESUME)))
      state.load(p.scratch_state(scratch, head), p.hp.rows, p.hp.cols);
    else
      state.load(p.hp, p.block(scratch < 0 && s.h > 0 ? s.dst : s.src), head);
  }
  __device__ void end(const HeadState& state, const Replay& p, const Sequence& s, int head, bool scan) const {
    if (scratch >= 0 && !(scan && (stage & PUBLISH)))
      state.store(p.scratch_state(scratch, head), p.hp.rows, p.hp.cols);
    else
      state.keep(p, s.dst, head, s.position() + (scan ? s.n : 0));
  }
};

// This lane's keys of a vector of 128 in shared memory.
__device__ __forceinline__ void load_keys(const float* v, float (&k)[PLAIN_KEYS]) {
#pragma unroll
  for (int i = 0; i < 4; i++) {
    float4 f = *reinterpret_cast<const float4*>(v + i * 32 + threadIdx.x % 8 * 4);
    k[4 * i] = f.x, k[4 * i + 1] = f.y, k[4 * i + 2] = f.z, k[4 * i + 3] = f.w;
  }
}
__device__ __forceinline__ float dot_keys(const float (&x)[PLAIN_KEYS], const float (&y)[PLAIN_KEYS]) {
  float a = 0.f, b = 0.f;
#pragma unroll
  for (int i = 0; i < PLAIN_KEYS; i += 2) a = fmaf(x[i], y[i], a), b = fmaf(x[i + 1], y[i + 1], b);
  a += b;
  a += __shfl_xor_sync(~0u, a, 1);
  a += __shfl_xor_sync(~0u, a, 2);
  return a + __shfl_xor_sync(~0u, a, 4);
}

// Behind a scan: the raw rows that the next token's convolution needs go into the ring.
struct Tail {
  Rows rows;
  Cursors cursors;
  Replay state;
  Mat fresh;
  int cols, taps;
};
template <typename A>
__device__ __forceinline__ void conv_tail(const Tail& p) {
  pdl_begin();
  Sequence s = sequence(p.rows, p.cursors, blockIdx.y);
  int channel = blockIdx.x * 256 + threadIdx.x, end = s.position() + s.n;
  if (channel >= p.cols) return;
  for (int i = max(end - p.taps + 1, s.position()); i < end; i++)
    ring_row<A>(p.state, s.slot, p.state.conv, i, p.state.conv_rows, p.cols)[channel] = row_of<A>(p.fresh, s.first + i - s.position())[channel];
}
