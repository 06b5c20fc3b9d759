// What the convolution of a Gated DeltaNet step makes of its channels: in a kernel for all rows, or in each block of the step.
#pragma once
#include "convolve.cuh"
#include "delta.cuh"

namespace delta {

// ---------------------------------------------------------------- convolution
// A thread has N channels, or one value head's gates, of SPAN tokens of the rows of its block (ONE: of the only one); 128 / N
// threads have a head of q or k.

__device__ __forceinline__ float log_decay(const Delta& p, float raw, int head) { return at<float>(p.decay_a)[head] * softplus(raw + at<float>(p.dt_bias)[head]); }

template <int N>
__device__ __forceinline__ Raw<N> pack_values(const float (&y)[N]) {
  Raw<N> v;
#pragma unroll
  for (int e = 0; e < N / 2; e++) (&v.x)[e] = pack_f16(saturate_f16(y[2 * e]), saturate_f16(y[2 * e + 1]));
  return v;
}

// Makes the vector that 128 / N threads hold a unit vector; the order of its sum does not depend on N.
template <int N>
__device__ __forceinline__ void normalise(float (&y)[N]) {
  const uint32_t mask = N == 8 ? 0xffffu << (threadIdx.x & 16) : ~0u;
  auto add = [&](float sum) {
#pragma unroll
    for (int e = 0; e < N; e++) sum = fmaf(y[e], y[e], sum);
    return sum;
  };
  float sum = add(0.f);
  if constexpr (N == 4) {
    const float eight = add(__shfl_xor_sync(mask, sum, 1)), other = __shfl_xor_sync(mask, eight, 1);
    sum = threadIdx.x & 1 ? eight : other;
  }
#pragma unroll
  for (int o = 64 / N; o > 4 / N; o >>= 1) sum += __shfl_xor_sync(mask, sum, o);
  const float f = rsqrtf(sum + 1e-6f);
#pragma unroll
  for (int e = 0; e < N; e++) y[e] *= f;
}

// In two precisions v is a record, and used as that.
template <int N>
__device__ __forceinline__ void keep_value(const Delta& p, const ConvRow& r, int t, int column, float (&y)[N]) {
  Raw<N> v = pack_piece(y);
  *reinterpret_cast<Raw<N>*>(r.record<bf16>(p.state, p.state.v, t, p.values()) + column) = v;
#pragma unroll
  for (int e = 0; e < N / 2; e++) y[2 * e] = bf_lo((&v.x)[e]), y[2 * e + 1] = bf_hi((&v.x)[e]);
}

template <int SPAN, bool ONE>
__device__ void convolve_step(const Delta& p) {
  constexpr int N = CONV_CHANNELS<ONE>;
  const int piece = blockIdx.x * CONV_THREADS + threadIdx.x, pieces = p.conv() / N, head = piece - (pieces + 31) / 32 * 32;
  const int channel = piece * N, keys = p.keys(), values = p.values();
  auto local = [&](int row, int t) { return (int64_t)(row - p.row0) * p.rows.t + t; };
  if (piece < pieces)
    convolve_share<SPAN, ONE>(p, p.qkv, 0, channel, [&](int row, const ConvRow& r, int t, float(&y)[N]) {
      if (channel >= 2 * keys) {
        if (p.state.two) keep_value(p, r, t, channel - 2 * keys, y);
        *reinterpret_cast<Raw<N>*>(at<__half>(p.value) + local(row, t) * values + channel - 2 * keys) = pack_values(y);
        return;
      }
      normalise(y);
      bf16* const to = channel < keys ? at<bf16>(p.query) + local(row, t) * keys + channel : r.record<bf16>(p.state, p.state.b, t, keys) + channel - keys;
      *reinterpret_cast<Raw<N>*>(to) = pack_piece(y);
    });
  else if (head >= 0 && head < p.value_heads)
    narrow_share<SPAN, ONE>(
        p, [&](int token) { return make_float2(widen(row_of<bf16>(p.a, token)[head]), widen(row_of<bf16>(p.b, token)[head])); },
        [&](int row, const ConvRow& r, int t, float2 ab) {
          r.record<float>(p.state, p.state.decay, t, p.value_heads)[head] = log_decay(p, ab.x, head);
          at<float>(p.beta)[local(row, t) * p.value_heads + head] = sigmoid(ab.y);
          if (p.state.two) r.record<float>(p.state, p.state.beta, t, p.value_heads)[head] = sigmoid(ab.y);
        });
}

// The pieces of eight channels of a block: sixteen of q, of k, and of v of each of its heads.
template <class C>
struct Pieces {
  static constexpr int COUNT = (2 + C::HPC) * 16;
  const Delta& p;
  const int khead, head0;
  __device__ int channel(int i) const {
    const int vector = i / 16;
    return (vector == 0 ? khead : vector == 1 ? p.key_heads + khead : 2 * p.key_heads + head0 + vector - 2) * KEYS + i % 16 * 8;
  }
  // A convolved piece of token t into shared memory and records: plain q rows and, T behind them, k rows of KEY_WORDS; k as a
  // record besides; v in fp16. first: this block keeps q and k of its key head.
  __device__ void keep(const ConvRow& r, int i, int t, float (&y)[8], uint4 raw, bool first, uint32_t* plain, uint32_t* keys, uint8_t* values) const {
    const int vector = i / 16, piece = i % 16;
    if (vector < 2) {
      normalise(y);
      const uint4 rounded = pack_piece(y);
      *reinterpret_cast<uint4*>(plain + (vector * p.rows.t + t) * KEY_WORDS + piece * 4) = rounded;
      if (vector == 1) store_key_piece(keys, C::W + t, piece, rounded);
      if (vector == 1 && first) *reinterpret_cast<uint4*>(r.record<bf16>(p.state, p.state.b, t, p.keys()) + channel(i) - p.keys()) = rounded;
    } else {
      *reinterpret_cast<uint4*>(values + (C::W + t) * C::U_ROW + (vector - 2) * KEYS * 2 + piece * 16) = pack_values(y);
    }
    if (vector >= 2 || first) *r.raw(p.state, t, p.conv(), channel(i)) = raw;
  }
};

}  // namespace delta
