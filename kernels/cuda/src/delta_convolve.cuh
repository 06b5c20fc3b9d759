// What the convolution of a Gated DeltaNet step makes of its channels, and the kernel that does all rows.
#pragma once
#include "convolve.cuh"
#include "delta.cuh"

namespace delta {

// ---------------------------------------------------------------- convolution
// A thread has eight channels, or one value head's gates, of SPAN tokens of the rows of its block; sixteen threads have a
// head of q or k.

__device__ __forceinline__ float log_decay(const Delta& p, float raw, int head) { return at<float>(p.decay_a)[head] * softplus(raw + at<float>(p.dt_bias)[head]); }

__device__ __forceinline__ uint4 pack8_bf16(const float (&y)[8]) {
  return make_uint4(pack_bf16(y[0], y[1]), pack_bf16(y[2], y[3]), pack_bf16(y[4], y[5]), pack_bf16(y[6], y[7]));
}
__device__ __forceinline__ uint4 pack8_f16(const float (&y)[8]) {
  uint32_t v[4];
#pragma unroll
  for (int e = 0; e < 4; e++) v[e] = pack_f16(saturate_f16(y[2 * e]), saturate_f16(y[2 * e + 1]));
  return make_uint4(v[0], v[1], v[2], v[3]);
}

// Makes the vector that sixteen threads hold a unit vector.
__device__ __forceinline__ void normalise(float (&y)[8]) {
  const uint32_t mask = 0xffffu << (threadIdx.x & 16);
  float sum = 0.f;
#pragma unroll
  for (int e = 0; e < 8; e++) sum = fmaf(y[e], y[e], sum);
#pragma unroll
  for (int o = 8; o > 0; o >>= 1) sum += __shfl_xor_sync(mask, sum, o);
  const float f = rsqrtf(sum + 1e-6f);
#pragma unroll
  for (int e = 0; e < 8; e++) y[e] *= f;
}

// In two precisions v is a record, and used as that.
__device__ __forceinline__ void keep_value(const Delta& p, const ConvRow& r, int t, int column, float (&y)[8]) {
  const uint4 v = pack8_bf16(y);
  *reinterpret_cast<uint4*>(ring_row<bf16>(p.state, r.slot, p.state.v, r.position + t, p.state.records, p.values()) + column) = v;
  const uint32_t w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int e = 0; e < 4; e++) y[2 * e] = bf_lo(w[e]), y[2 * e + 1] = bf_hi(w[e]);
}

template <int SPAN>
__device__ void convolve_step(const Delta& p) {
  const int piece = blockIdx.x * CONV_THREADS + threadIdx.x, pieces = p.conv() / 8, head = piece - (pieces + 31) / 32 * 32;
  const int channel = piece * 8, keys = p.keys(), values = p.values();
  auto local = [&](int row, int t) { return (int64_t)(row - p.row0) * p.rows.t + t; };
  if (piece < pieces)
    convolve_share<SPAN>(p, p.qkv, 0, channel, [&](int row, const ConvRow& r, int t, float(&y)[8]) {
      if (channel >= 2 * keys) {
        if (p.state.two) keep_value(p, r, t, channel - 2 * keys, y);
        *reinterpret_cast<uint4*>(at<__half>(p.value) + local(row, t) * values + channel - 2 * keys) = pack8_f16(y);
        return;
      }
      normalise(y);
      store8(channel < keys ? at<bf16>(p.query) + local(row, t) * keys + channel
                            : ring_row<bf16>(p.state, r.slot, p.state.b, r.position + t, p.state.records, keys) + channel - keys,
             y);
    });
  else if (head >= 0 && head < p.value_heads)
    narrow_share<SPAN>(
        p, [&](int token) { return make_float2(widen(row_of<bf16>(p.a, token)[head]), widen(row_of<bf16>(p.b, token)[head])); },
        [&](int row, const ConvRow& r, int t, float2 ab) {
          ring_row<float>(p.state, r.slot, p.state.decay, r.position + t, p.state.records, p.value_heads)[head] = log_decay(p, ab.x, head);
          at<float>(p.beta)[local(row, t) * p.value_heads + head] = sigmoid(ab.y);
          if (p.state.two) ring_row<float>(p.state, r.slot, p.state.beta, r.position + t, p.state.records, p.value_heads)[head] = sigmoid(ab.y);
        });
}

}  // namespace delta
