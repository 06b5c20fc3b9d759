// The convolution of step rows in bfloat16 with four taps: a thread has eight or four channels of some tokens of a row.
#pragma once
#include <type_traits>

#include "replay.cuh"

constexpr int CONV_THREADS = 128;
// The channels of a thread of a convolution kernel. ONE: rows have one token; half the channels leave registers for twice the
// threads, whose instructions then wait for each other less.
template <bool ONE>
constexpr int CONV_CHANNELS = ONE ? 4 : 8;

// The weights of N channels, and a raw row of them: eight, or four.
template <int N>
struct Weights {
  float w[N][4], bias[N];
};
using Piece = Weights<8>;
template <int N>
using Raw = std::conditional_t<N == 8, uint4, uint2>;

template <int N = 8>
__device__ __forceinline__ Weights<N> load_piece(uint64_t weights, uint64_t bias, int channel) {
  Weights<N> k;
#pragma unroll
  for (int e = 0; e < N; e++) {
    float4 w = *reinterpret_cast<const float4*>(at<float>(weights) + (channel + e) * 4);
    k.w[e][0] = w.x, k.w[e][1] = w.y, k.w[e][2] = w.z, k.w[e][3] = w.w;
    k.bias[e] = bias ? at<float>(bias)[channel + e] : 0.f;
  }
  return k;
}

// silu(bias + taps) of N channels.
template <int N>
__device__ __forceinline__ void convolve_piece(const Weights<N>& k, const Raw<N> (&rows)[4], float (&y)[N]) {
#pragma unroll
  for (int e = 0; e < N; e++) y[e] = k.bias[e];
#pragma unroll
  for (int tap = 0; tap < 4; tap++) {
    const uint32_t* const v = &rows[tap].x;
#pragma unroll
    for (int e = 0; e < N / 2; e++) y[2 * e] = fmaf(k.w[2 * e][tap], bf_lo(v[e]), y[2 * e]), y[2 * e + 1] = fmaf(k.w[2 * e + 1][tap], bf_hi(v[e]), y[2 * e + 1]);
  }
#pragma unroll
  for (int e = 0; e < N; e++) y[e] = quick_silu(y[e]);
}

template <int N>
__device__ __forceinline__ Raw<N> pack_piece(const float (&y)[N]) {
  Raw<N> v;
#pragma unroll
  for (int e = 0; e < N / 2; e++) (&v.x)[e] = pack_bf16(y[2 * e], y[2 * e + 1]);
  return v;
}

// A row with where it stands; older than the kernel in front if that is calm (ssm.go). Token t of the step is the one at
// position + t; t begins at -3, the first row that a convolution needs.
struct ConvRow {
  int n, slot, position, first, record_at, raw_at;
  template <class P>
  __device__ ConvRow(const P& p, int row) {
    n = at<int>(p.rows.n)[row], slot = at<int>(p.rows.slot)[row], first = p.rows.first + row * p.rows.t;
    position = at<int>(p.cursors.origin)[slot] + at<int>(p.cursors.h)[slot];
    record_at = (uint32_t)position % (uint32_t)p.state.records, raw_at = (uint32_t)position % (uint32_t)p.state.conv_rows;
  }
  // The place of token t, which is not negative, among records of so many columns.
  template <typename T>
  __device__ T* record(const Replay& state, int64_t field, int t, int cols) const {
    const int i = record_at + t;
    return reinterpret_cast<T*>(state.rings + slot * state.ring_stride + field) + (i >= state.records ? i - state.records : i) * cols;
  }
  // Channels of the raw row of token t.
  template <class V = uint4>
  __device__ V* raw(const Replay& state, int t, int cols, int channel) const {
    int i = raw_at + t;
    i += i < 0 ? state.conv_rows : i >= state.conv_rows ? -state.conv_rows : 0;
    return reinterpret_cast<V*>(reinterpret_cast<bf16*>(state.rings + slot * state.ring_stride + state.conv) + i * cols + channel);
  }
};

// Raw rows of SPAN tokens from `from` and of the three in front of them: those of earlier steps, then those of this one.
template <int SPAN, class V>
__device__ __forceinline__ void load_history(V (&v)[SPAN + 3], const Replay& state, const ConvRow& r, int from, int cols, int channel) {
#pragma unroll
  for (int i = 0; i < 3; i++)
    if (from + i < 3) v[i] = r.position + from + i < 3 ? V{} : *r.raw<V>(state, from + i - 3, cols, channel);
}
template <int SPAN, class V>
__device__ __forceinline__ void load_fresh(V (&v)[SPAN + 3], const Mat& fresh, const ConvRow& r, int from, int channel) {
#pragma unroll
  for (int i = 0; i < SPAN + 3; i++) {
    const int t = from + i - 3;
    if (t >= 0 && t < r.n) v[i] = *reinterpret_cast<const V*>(row_of<bf16>(fresh, r.first + t) + channel);
  }
}

// The tokens and rows of a block of a convolution kernel: SPAN tokens from `from`, rows row0 .. row1 - 1.
template <int SPAN, bool ONE>
struct ConvShare {
  int from, row0, row1;
  template <class P>
  __device__ ConvShare(const P& p) : from(ONE ? 0 : blockIdx.z * SPAN), row0(p.row0 + blockIdx.y * p.per_block), row1(min(row0 + p.per_block, p.row1)) {}
  // All that is in front is done, and the next kernel may start: it reads checkpoints early.
  __device__ void wait(int row) const {
    if (row == row0) pdl_wait(), pdl_trigger();
  }
};

// Channels of the block's tokens: out(row, r, t, y) gets them convolved, the ring the raw ones.
template <int SPAN, bool ONE, class P, class Out>
__device__ __forceinline__ void convolve_share(const P& p, const Mat& fresh, uint64_t bias, int channel, Out out) {
  constexpr int N = CONV_CHANNELS<ONE>;
  const ConvShare<SPAN, ONE> share(p);
  const int cols = p.conv();
  const Weights<N> k = load_piece<N>(p.conv_w, bias, channel);
  if (!p.calm) pdl_wait();
  // Rows are loaded one ahead, cursors two.
  auto cursors = [&](int row) { return ConvRow(p, min(row, share.row1 - 1)); };
  ConvRow r = cursors(share.row0), next = cursors(share.row0 + 1);
  Raw<N> v[SPAN + 3], u[SPAN + 3];
  load_history<SPAN>(v, p.state, r, share.from, cols, channel);
  share.wait(share.row0);
  load_fresh<SPAN>(v, fresh, r, share.from, channel);
  for (int row = share.row0; row < share.row1; row++) {
    const ConvRow later = cursors(row + 2);
    load_history<SPAN>(u, p.state, next, share.from, cols, channel);
    load_fresh<SPAN>(u, fresh, next, share.from, channel);
#pragma unroll
    for (int i = 0; i < SPAN; i++) {
      const int t = share.from + i;
      if (t >= r.n) break;
      const Raw<N> taps[4] = {v[i], v[i + 1], v[i + 2], v[i + 3]};
      float y[N];
      convolve_piece<N>(k, taps, y);
      out(row, r, t, y);
      *r.raw<Raw<N>>(p.state, t, cols, channel) = v[i + 3];
    }
    r = next, next = later;
#pragma unroll
    for (int i = 0; i < SPAN + 3; i++) v[i] = u[i];
  }
}

// The block's tokens of a narrow input: load(token) for all of a row before the first store(row, r, t, value).
template <int SPAN, bool ONE, class P, class Load, class Store>
__device__ __forceinline__ void narrow_share(const P& p, Load load, Store store) {
  const ConvShare<SPAN, ONE> share(p);
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

// The convolution of the channels of a block that does a row's step: THREADS threads have COUNT pieces of eight channels of T
// tokens, each SPAN tokens of ITEMS pieces.
template <int THREADS, int COUNT, int T, int SPAN>
struct BlockConv {
  static constexpr int ITEMS = (COUNT * (T / SPAN) + THREADS - 1) / THREADS;
  static_assert(T % SPAN == 0);
  const ConvRow r;
  Piece k[ITEMS];
  uint4 v[ITEMS][SPAN + 3];

  __device__ int piece(int u) const { return (threadIdx.x + u * THREADS) % COUNT; }
  __device__ int from(int u) const { return (threadIdx.x + u * THREADS) / COUNT * SPAN; }
  // What is older than the kernel in front.
  template <class Channel>
  __device__ void load_old(const Replay& state, uint64_t weights, uint64_t bias, int cols, Channel channel) {
#pragma unroll
    for (int u = 0; u < ITEMS; u++)
      if (from(u) < r.n) {
        k[u] = load_piece(weights, bias, channel(piece(u)));
        load_history<SPAN>(v[u], state, r, from(u), cols, channel(piece(u)));
      }
  }
  template <class Channel>
  __device__ void load_new(const Mat& fresh, Channel channel) {
#pragma unroll
    for (int u = 0; u < ITEMS; u++) load_fresh<SPAN>(v[u], fresh, r, from(u), channel(piece(u)));
  }
  // keep(piece, token of the row, y, raw) gets eight channels convolved and raw.
  template <class Keep>
  __device__ void finish(Keep keep) {
#pragma unroll
    for (int u = 0; u < ITEMS; u++)
#pragma unroll
      for (int i = 0; i < SPAN; i++) {
        if (from(u) + i >= r.n) break;
        const uint4 rows[4] = {v[u][i], v[u][i + 1], v[u][i + 2], v[u][i + 3]};
        float y[8];
        convolve_piece<8>(k[u], rows, y);
        keep(piece(u), from(u) + i, y, rows[3]);
      }
  }
};
template <int THREADS, int COUNT, int SPAN>
struct BlockConv<THREADS, COUNT, 0, SPAN> {  // of kernels without
  const ConvRow r;
};

// z of n tokens on its way into shared memory, [n][HPC * P]; by all threads of a block that has HPC heads of P values.
template <class C, class Params>
__device__ __forceinline__ void load_gates(const Params& p, uint32_t* gates, int token0, int n, int head0) {
  constexpr int PIECES = C::HPC * C::P / 8;
  for (int i = threadIdx.x; i < n * PIECES; i += C::THREADS)
    cp_async16(gates + i * 4, row_of<bf16>(p.z, token0 + i / PIECES) + head0 * C::P + i % PIECES * 8);
}
