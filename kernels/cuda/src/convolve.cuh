// The convolution of step rows in bfloat16 with four taps: a thread has eight channels of some tokens of a row.
#pragma once
#include "replay.cuh"

constexpr int CONV_THREADS = 128;

// The weights of eight channels.
struct Piece {
  float w[8][4], bias[8];
};

__device__ __forceinline__ Piece load_piece(uint64_t weights, uint64_t bias, int channel) {
  Piece k;
#pragma unroll
  for (int e = 0; e < 8; e++) {
    float4 w = *reinterpret_cast<const float4*>(at<float>(weights) + (channel + e) * 4);
    k.w[e][0] = w.x, k.w[e][1] = w.y, k.w[e][2] = w.z, k.w[e][3] = w.w;
    k.bias[e] = bias ? at<float>(bias)[channel + e] : 0.f;
  }
  return k;
}

// Eight channels of a raw row in the ring; zero before the sequence.
__device__ __forceinline__ uint4 history(const Replay& state, int slot, int token, int cols, int channel) {
  if (token < 0) return make_uint4(0, 0, 0, 0);
  return *reinterpret_cast<const uint4*>(ring_row<bf16>(state, slot, state.conv, token, state.conv_rows, cols) + channel);
}

// bias + taps of eight channels.
__device__ __forceinline__ void taps8(const Piece& k, const uint4 (&rows)[4], float (&y)[8]) {
#pragma unroll
  for (int e = 0; e < 8; e++) y[e] = k.bias[e];
#pragma unroll
  for (int tap = 0; tap < 4; tap++) {
    const uint32_t v[4] = {rows[tap].x, rows[tap].y, rows[tap].z, rows[tap].w};
#pragma unroll
    for (int e = 0; e < 4; e++) y[2 * e] = fmaf(k.w[2 * e][tap], bf_lo(v[e]), y[2 * e]), y[2 * e + 1] = fmaf(k.w[2 * e + 1][tap], bf_hi(v[e]), y[2 * e + 1]);
  }
}

// silu(bias + taps) of eight channels.
__device__ __forceinline__ void convolve8(const Piece& k, const uint4 (&rows)[4], float (&y)[8]) {
  taps8(k, rows, y);
#pragma unroll
  for (int e = 0; e < 8; e++) y[e] = silu(y[e]);
}

// A row with where it stands; older than the kernel in front if that is calm (ssm.go).
struct ConvRow {
  int n, slot, position, first;
  template <class P>
  __device__ ConvRow(const P& p, int row) {
    n = at<int>(p.rows.n)[row], slot = at<int>(p.rows.slot)[row], first = p.rows.first + row * p.rows.t;
    position = at<int>(p.cursors.origin)[slot] + at<int>(p.cursors.h)[slot];
  }
};

// Raw rows of SPAN tokens from `from` and of the three in front of them: those of earlier steps, then those of this one.
template <int SPAN>
__device__ __forceinline__ void load_history(uint4 (&v)[SPAN + 3], const Replay& state, const ConvRow& r, int from, int cols, int channel) {
#pragma unroll
  for (int i = 0; i < 3; i++)
    if (from + i < 3) v[i] = history(state, r.slot, r.position + from + i - 3, cols, channel);
}
template <int SPAN>
__device__ __forceinline__ void load_fresh(uint4 (&v)[SPAN + 3], const Mat& fresh, const ConvRow& r, int from, int channel) {
#pragma unroll
  for (int i = 0; i < SPAN + 3; i++) {
    const int t = from + i - 3;
    if (t >= 0 && t < r.n) v[i] = *reinterpret_cast<const uint4*>(row_of<bf16>(fresh, r.first + t) + channel);
  }
}

// The tokens and rows of a block of a convolution kernel: SPAN tokens from `from`, rows row0 .. row1 - 1.
template <int SPAN>
struct ConvShare {
  int from, row0, row1;
  template <class P>
  __device__ ConvShare(const P& p) : from(blockIdx.z * SPAN), row0(p.row0 + blockIdx.y * p.per_block), row1(min(row0 + p.per_block, p.row1)) {}
  // All that is in front is done, and the next kernel may start: it reads checkpoints early.
  __device__ void wait(int row) const {
    if (row == row0) pdl_wait(), pdl_trigger();
  }
};

// Eight channels of the block's tokens: out(row, r, t, y) gets them convolved, the ring the raw ones.
template <int SPAN, class P, class Out>
__device__ __forceinline__ void convolve_share(const P& p, const Mat& fresh, uint64_t bias, int channel, Out out) {
  const ConvShare<SPAN> share(p);
  const int cols = p.conv();
  const Piece k = load_piece(p.conv_w, bias, channel);
  if (!p.calm) pdl_wait();
  for (int row = share.row0; row < share.row1; row++) {
    const ConvRow r(p, row);
    uint4 v[SPAN + 3];
    load_history<SPAN>(v, p.state, r, share.from, cols, channel);
    share.wait(row);
    load_fresh<SPAN>(v, fresh, r, share.from, channel);
#pragma unroll
    for (int i = 0; i < SPAN; i++) {
      const int t = share.from + i;
      if (t >= r.n) break;
      const uint4 taps[4] = {v[i], v[i + 1], v[i + 2], v[i + 3]};
      float y[8];
      convolve8(k, taps, y);
      out(row, r, t, y);
      *reinterpret_cast<uint4*>(ring_row<bf16>(p.state, r.slot, p.state.conv, r.position + t, p.state.conv_rows, cols) + channel) = v[i + 3];
    }
  }
}

// The block's tokens of a narrow input: load(token) for all of a row before the first store(row, r, t, value).
template <int SPAN, class P, class Load, class Store>
__device__ __forceinline__ void narrow_share(const P& p, Load load, Store store) {
  const ConvShare<SPAN> share(p);
  if (!p.calm) pdl_wait();
  for (int row = share.row0; row < share.row1; row++) {
    const ConvRow r(p, row);
    share.wait(row);
    decltype(load(0)) v[SPAN];
#pragma unroll
    for (int i = 0; i < SPAN; i++)
      if (share.from + i < r.n) v[i] = load(r.first + share.from + i);
#pragma unroll
    for (int i = 0; i < SPAN; i++)
      if (share.from + i < r.n) store(row, r, share.from + i, v[i]);
  }
}
