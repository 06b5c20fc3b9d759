// What the recurrent layers share: rows with their cursors, record rings, the convolution.
#pragma once
#include "slots.cuh"

// A layer's blocks and rings; replay of ssm.go.
struct Replay {
  uint64_t blocks, rings;
  int64_t block_stride, ring_stride;
  int64_t x, b, decay, conv;  // byte offsets in a slot's ring region
  int records, conv_rows;     // capacities of the rings
  int window, pad;
};

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

__device__ __forceinline__ float* block_of(const Replay& state, int block) {
  return reinterpret_cast<float*>(state.blocks + (int64_t)block * state.block_stride);
}

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
