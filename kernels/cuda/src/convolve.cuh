// The convolution of step rows in bfloat16 with four taps: a thread has eight channels of all tokens of a row.
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
