// Mamba-2 for any shape: the recurrence token by token, state in registers, a block a head; and the gated norm.
#include "cuts.cuh"
#include "mamba2.cuh"

namespace {

// A chunk of tokens of one head.
struct Chunk {
  alignas(16) float x[PLAIN_CHUNK][PLAIN_DIM], b[PLAIN_CHUNK][PLAIN_DIM], c[PLAIN_CHUNK][PLAIN_DIM];
  float dt[PLAIN_CHUNK];
};

// Channel k of kind 0 (x), 1 (B) or 2 (C) of record i of the sequence. A step writes what it makes.
template <typename A>
__device__ float fetch(const Mamba2& p, const Sequence& s, int head, int kind, int k, int i) {
  int per = p.heads / p.groups, group = head / per, inner = p.inner(), bc = p.bc();
  int column = kind == 0 ? head * p.dim + k : group * p.keys + k;
  if (k >= (kind == 0 ? p.dim : p.keys)) return 0.f;
  int token = s.origin + i;
  A* record = kind == 0   ? ring_row<A>(p.state, s.slot, p.state.x, token, p.state.records, inner) + column
              : kind == 1 ? ring_row<A>(p.state, s.slot, p.state.b, token, p.state.records, bc) + column
                          : nullptr;
  if (i < s.h) return record ? widen(*record) : 0.f;
  int channel = kind == 0 ? column : inner + (kind - 1) * bc + column;
  A rounded = narrow<A>(convolve<A>(p.state, s, p.xbc, p.conv(), p.taps, p.conv_w, p.conv_b, token, channel));
  if (p.mode == STEP && (kind == 0 || head % per == 0)) {
    if (record) *record = rounded;
    ring_row<A>(p.state, s.slot, p.state.conv, token, p.state.conv_rows, p.conv())[channel] = row_of<A>(p.xbc, s.first + i - s.h)[channel];
  }
  return widen(rounded);
}

template <typename A>
__device__ void fill(Chunk& chunk, const Mamba2& p, const Sequence& s, int head, int from, int to) {
  for (int at = threadIdx.x; at < (to - from) * 3 * PLAIN_DIM; at += PLAIN_THREADS) {
    int i = at / (3 * PLAIN_DIM), kind = at / PLAIN_DIM % 3, k = at % PLAIN_DIM;
    float* dst = kind == 0 ? chunk.x[i] : kind == 1 ? chunk.b[i] : chunk.c[i];
    dst[k] = fetch<A>(p, s, head, kind, k, from + i);
  }
  int i = from + threadIdx.x;
  if (i >= to) return;
  float* record = ring_row<float>(p.state, s.slot, p.state.decay, s.origin + i, p.state.records, p.heads) + head;
  float dt = 0.f;
  if (i < s.h) {
    dt = *record;
  } else {
    dt = step_size(p, widen(row_of<A>(p.dt, s.first + i - s.h)[head]), head);
    if (p.mode == STEP) *record = dt;
  }
  chunk.dt[threadIdx.x] = dt;
}

template <typename A>
__device__ void walk(const WithCuts<Mamba2>& p) {
  pdl_wait();
  pdl_trigger();  // only now: the norm reads gates before its wait
  int head = blockIdx.x;
  Sequence s = sequence(p.rows, p.cursors, blockIdx.y);
  if (s.n == 0 || (p.mode == FOLD && s.h == 0)) return;
  __shared__ Chunk chunk;
  const Place place(p.state, blockIdx.y);
  const bool flush = p.mode == STEP && flushes(p.state, s);
  Stops stops(p.cuts, s, blockIdx.y, p.mode, flush);
  HeadState state;
  if (p.mode == SCAN)
    place.start_scan(state, p.state, s, head);
  else
    state.load(p.mode == FOLD || flush ? p.state.hp : p.state.lp, p.state.block(s.src), head);
  float a = at<float>(p.a)[head], skip = p.mode == FOLD ? 0.f : at<float>(p.d)[head];
  int end = p.mode == FOLD ? s.h : s.h + s.n;
  for (int from = p.mode == SCAN ? s.h : 0; from < end; from += PLAIN_CHUNK) {
    int to = min(from + PLAIN_CHUNK, end);
    __syncthreads();
    fill<A>(chunk, p, s, head, from, to);
    __syncthreads();
    for (int i = from; i < to; i++) {
      float b[PLAIN_KEYS], c[PLAIN_KEYS], dt = chunk.dt[i - from], decay = expf(dt * a);
      load_keys(chunk.b[i - from], b);
      load_keys(chunk.c[i - from], c);
#pragma unroll
      for (int r = 0; r < PLAIN_ROWS; r++) {
        if (32 * r >= p.dim) break;
        int row = state.row(r);
        float x = chunk.x[i - from][row], in = dt * x;
#pragma unroll
        for (int k = 0; k < PLAIN_KEYS; k++) state.s[r][k] = fmaf(decay, state.s[r][k], in * b[k]);
        if (i < s.h) continue;
        float y = dot_keys(state.s[r], c);
        if (threadIdx.x % 8 == 0 && row < p.dim) row_of<A>(p.out, s.first + i - s.h)[head * p.dim + row] = narrow<A>(fmaf(skip, x, y));
      }
      if (i + 1 == stops.records) stops.keep(state, p, s, head);
    }
  }
  if (p.mode != STEP) place.end(state, p.state, s, head, p.mode == SCAN);
}

// The norm, by group, of y silu(z); y is in out. A block a token and group; tokens that do not count become zero.
template <typename A, bool WIDE>
__device__ void gated_norm(const Mamba2& p) {
  __shared__ float space[33];
  int size = p.inner() / p.groups, first = blockIdx.y * size, token = p.rows.first + blockIdx.x;
  A* out = row_of<A>(p.out, token) + first;
  const A* z = row_of<A>(p.z, token) + first;
  const float* w = at<float>(p.norm_w) + first;
  // The kernel in front started this one behind its own wait: what is older may be read.
  bool counts = p.rows.t == 0 || (int)blockIdx.x % p.rows.t < at<int>(p.rows.n)[blockIdx.x / p.rows.t];
  if constexpr (WIDE) {  // 128 threads of eight columns
    int c = threadIdx.x * 8;
    bool mine = counts && c < size;
    float y[8] = {}, g[8], f[8], sum = 0.f;
    if (mine) load8(z + c, g), load8(w + c, f);
    pdl_begin();
    if (mine) {
      load8(out + c, y);
#pragma unroll
      for (int e = 0; e < 8; e++) y[e] *= quick_silu(g[e]), sum = fmaf(y[e], y[e], sum);
    }
    float scale = rsqrtf(block_sum(sum, space) / size + p.eps);
    if (mine)
#pragma unroll
      for (int e = 0; e < 8; e++) y[e] *= scale * f[e];
    if (c < size) store8(out + c, y);
    return;
  }
  pdl_begin();
  float sum = 0.f;
  if (counts)
    for (int c = threadIdx.x; c < size; c += blockDim.x) {
      float v = widen(out[c]) * silu(widen(z[c]));
      sum = fmaf(v, v, sum);
    }
  float scale = counts ? rsqrtf(block_sum(sum, space) / size + p.eps) : 0.f;
  for (int c = threadIdx.x; c < size; c += blockDim.x) out[c] = narrow<A>(counts ? widen(out[c]) * silu(widen(z[c])) * scale * w[c] : 0.f);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(PLAIN_THREADS) mamba2_walk_bf16(PARAMS(WithCuts<Mamba2>, p)) { walk<bf16>(p); }
extern "C" __global__ void __launch_bounds__(PLAIN_THREADS) mamba2_walk_f32(PARAMS(WithCuts<Mamba2>, p)) { walk<float>(p); }
extern "C" __global__ void __launch_bounds__(128) mamba2_norm_bf16(PARAMS(Mamba2, p)) { gated_norm<bf16, false>(p); }
extern "C" __global__ void __launch_bounds__(128) mamba2_norm_f32(PARAMS(Mamba2, p)) { gated_norm<float, false>(p); }
extern "C" __global__ void __launch_bounds__(128) mamba2_norm_wide_bf16(PARAMS(Mamba2, p)) { gated_norm<bf16, true>(p); }
extern "C" __global__ void __launch_bounds__(128) mamba2_norm_wide_f32(PARAMS(Mamba2, p)) { gated_norm<float, true>(p); }
extern "C" __global__ void __launch_bounds__(256) conv_tail_bf16(PARAMS(Tail, p)) { conv_tail<bf16>(p); }
extern "C" __global__ void __launch_bounds__(256) conv_tail_f32(PARAMS(Tail, p)) { conv_tail<float>(p); }
extern "C" __global__ void __launch_bounds__(256) cut_tail_bf16(PARAMS(WithCuts<Tail>, p)) { cut_tail<bf16>(p); }
extern "C" __global__ void __launch_bounds__(256) cut_tail_f32(PARAMS(WithCuts<Tail>, p)) { cut_tail<float>(p); }
