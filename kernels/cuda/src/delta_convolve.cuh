// What the convolution of a Gated DeltaNet step makes of its channels: in a kernel for all rows, or in each block of the step.
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

// The convolution of a block's q, k and v: a thread has ITEMS pieces of eight channels of a token.
template <class C>
struct BlockConv {
  const Delta& p;
  const ConvRow r;
  const int khead, head0;
  const bool first;  // of the key head's blocks: it keeps q and k
  Piece k[C::ITEMS];
  uint4 v[C::ITEMS][4];

  __device__ int index(int u) const { return threadIdx.x + u * C::THREADS; }
  __device__ int piece(int u) const { return index(u) % 16; }
  __device__ int vector(int u) const { return index(u) / 16 % C::VECTORS; }  // q, k, v of each head
  __device__ int token(int u) const { return index(u) / 16 / C::VECTORS; }
  __device__ int channel(int u) const {
    int i = vector(u);
    return (i == 0 ? khead : i == 1 ? p.key_heads + khead : 2 * p.key_heads + head0 + i - 2) * KEYS + piece(u) * 8;
  }
  // What is older than the kernel in front.
  __device__ void load_old() {
#pragma unroll
    for (int u = 0; u < C::ITEMS; u++)
      if (token(u) < r.n) {
        k[u] = load_piece(p.conv_w, 0, channel(u));
        load_history<1>(v[u], p.state, r, token(u), p.conv(), channel(u));
      }
  }
  __device__ void load_new() {
#pragma unroll
    for (int u = 0; u < C::ITEMS; u++) load_fresh<1>(v[u], p.qkv, r, token(u), channel(u));
  }
  // The convolved pieces into shared memory and records: plain q rows and, T behind them, k rows of KEY_WORDS; k as a
  // record besides; v in fp16.
  __device__ void finish(uint32_t* plain, uint32_t* keys, uint8_t* values) {
    const int T = p.rows.t;
#pragma unroll
    for (int u = 0; u < C::ITEMS; u++) {
      const int t = token(u), i = vector(u), at_piece = piece(u), at_channel = channel(u);
      if (t >= r.n) break;
      float y[8];
      convolve8(k[u], v[u], y);
      if (i < 2) {
        normalise(y);
        const uint4 rounded = pack8_bf16(y);
        *reinterpret_cast<uint4*>(plain + (i * T + t) * KEY_WORDS + at_piece * 4) = rounded;
        if (i == 1) store_key_piece(keys, C::W + t, at_piece, rounded);
        if (i == 1 && first) *reinterpret_cast<uint4*>(ring_row<bf16>(p.state, r.slot, p.state.b, r.position + t, p.state.records, p.keys()) + at_channel - p.keys()) = rounded;
      } else {
        *reinterpret_cast<uint4*>(values + (C::W + t) * C::U_ROW + (i - 2) * KEYS * 2 + at_piece * 16) = pack8_f16(y);
      }
      if (i >= 2 || first) *reinterpret_cast<uint4*>(ring_row<bf16>(p.state, r.slot, p.state.conv, r.position + t, p.state.conv_rows, p.conv()) + at_channel) = v[u][3];
    }
  }
};

}  // namespace delta
