// Gated DeltaNet for any shape: the recurrence token by token, state in registers, a block a value head, gated norm at
// the end of each chunk of tokens.
#include "cuts.cuh"
#include "delta.cuh"

namespace {

// A chunk of tokens of one head. v holds u of committed records (v, where u is derived anew), then v, then the output of
// new tokens.
struct Chunk {
  alignas(16) float q[PLAIN_CHUNK][PLAIN_DIM], k[PLAIN_CHUNK][PLAIN_DIM], v[PLAIN_CHUNK][PLAIN_DIM];
  float decay[PLAIN_CHUNK], beta[PLAIN_CHUNK];
};

// Channel k of kind 0 (q), 1 (k) or 2 (v, or u of a committed record unless it is derived anew) of record i; q and k of new
// tokens as they leave the convolution.
template <typename A>
__device__ float fetch(const Delta& p, const Sequence& s, int head, int kind, int k, int i, bool anew) {
  using U = typename Correction<A>::type;
  int per = p.value_heads / p.key_heads, key_head = head / per, token = s.origin + i;
  if (k >= (kind == 2 ? p.value_dim : p.key_dim)) return 0.f;
  int column = kind == 2 ? head * p.value_dim + k : key_head * p.key_dim + k;
  if (i < s.h) {
    if (kind == 0) return 0.f;
    if (kind == 1) return widen(ring_row<A>(p.state, s.slot, p.state.b, token, p.state.records, p.keys())[column]);
    if (anew) return widen(ring_row<A>(p.state, s.slot, p.state.v, token, p.state.records, p.values())[column]);
    return widen(ring_row<U>(p.state, s.slot, p.state.x, token, p.state.records, p.values())[column]);
  }
  int channel = kind * p.keys() + column;
  if (p.mode == STEP && (kind == 2 || head % per == 0))
    ring_row<A>(p.state, s.slot, p.state.conv, token, p.state.conv_rows, p.conv())[channel] = row_of<A>(p.qkv, s.first + i - s.h)[channel];
  float y = convolve<A>(p.state, s, p.qkv, p.conv(), p.taps, p.conv_w, 0, token, channel);
  if (kind < 2 || !p.state.two) return y;
  A rounded = narrow<A>(y);
  if (p.mode == STEP) ring_row<A>(p.state, s.slot, p.state.v, token, p.state.records, p.values())[column] = rounded;
  return widen(rounded);
}

// Makes q and k of the new tokens unit vectors, k rounded as its record; a warp a vector.
template <typename A>
__device__ void normalise(Chunk& chunk, const Delta& p, const Sequence& s, int head, int from, int to) {
  int per = p.value_heads / p.key_heads, lane = threadIdx.x % 32;
  float scale = rsqrtf((float)p.key_dim);
  for (int at = threadIdx.x / 32; at < (to - from) * 2; at += PLAIN_THREADS / 32) {
    int i = at / 2;
    bool key = at % 2;
    if (from + i < s.h) continue;
    float* v = key ? chunk.k[i] : chunk.q[i];
    float sum = 0.f;
    for (int c = lane; c < PLAIN_DIM; c += 32) sum = fmaf(v[c], v[c], sum);
    float f = rsqrtf(warp_sum(sum) + 1e-6f);
    for (int c = lane; c < p.key_dim; c += 32) {
      if (!key) {
        v[c] *= f * scale;
        continue;
      }
      A rounded = narrow<A>(v[c] * f);
      v[c] = widen(rounded);
      if (p.mode == STEP && head % per == 0)
        ring_row<A>(p.state, s.slot, p.state.b, s.origin + from + i, p.state.records, p.keys())[head / per * p.key_dim + c] = rounded;
    }
  }
}

template <typename A>
__device__ void fill(Chunk& chunk, const Delta& p, const Sequence& s, int head, int from, int to, bool anew) {
  for (int at = threadIdx.x; at < (to - from) * 3 * PLAIN_DIM; at += PLAIN_THREADS) {
    int i = at / (3 * PLAIN_DIM), kind = at / PLAIN_DIM % 3, k = at % PLAIN_DIM;
    float* dst = kind == 0 ? chunk.q[i] : kind == 1 ? chunk.k[i] : chunk.v[i];
    dst[k] = fetch<A>(p, s, head, kind, k, from + i, anew);
  }
  int i = from + threadIdx.x;
  if (i < to) {
    float* record = ring_row<float>(p.state, s.slot, p.state.decay, s.origin + i, p.state.records, p.value_heads) + head;
    float* strength = ring_row<float>(p.state, s.slot, p.state.beta, s.origin + i, p.state.records, p.value_heads) + head;
    float g = 0.f, beta = 0.f;
    if (i < s.h) {
      g = *record;
      if (anew) beta = *strength;
    } else {
      int token = s.first + i - s.h;
      g = at<float>(p.decay_a)[head] * softplus(widen(row_of<A>(p.a, token)[head]) + at<float>(p.dt_bias)[head]);
      beta = sigmoid(widen(row_of<A>(p.b, token)[head]));
      if (p.mode == STEP) *record = g;
      if (p.mode == STEP && p.state.two) *strength = beta;
    }
    chunk.decay[threadIdx.x] = expf(g), chunk.beta[threadIdx.x] = beta;
  }
  __syncthreads();
  normalise<A>(chunk, p, s, head, from, to);
}

// The norm of the outputs of new tokens times silu(z); a warp a token.
template <typename A>
__device__ void finish(const Chunk& chunk, const Delta& p, const Sequence& s, int head, int from, int to) {
  int lane = threadIdx.x % 32;
  for (int i = max(from, s.h) + (int)threadIdx.x / 32; i < to; i += PLAIN_THREADS / 32) {
    const float* o = chunk.v[i - from];
    int token = s.first + i - s.h;
    float sum = 0.f;
    for (int c = lane; c < p.value_dim; c += 32) sum = fmaf(o[c], o[c], sum);
    float f = rsqrtf(warp_sum(sum) / p.value_dim + p.eps);
    for (int c = lane; c < p.value_dim; c += 32) {
      int column = head * p.value_dim + c;
      row_of<A>(p.out, token)[column] = narrow<A>(o[c] * f * at<float>(p.norm_w)[c] * silu(widen(row_of<A>(p.z, token)[column])));
    }
  }
}

template <typename A>
__device__ void clear(const Delta& p, const Sequence& s, int head, int from, int to) {
  for (int at = threadIdx.x; at < (to - from) * p.value_dim; at += PLAIN_THREADS)
    row_of<A>(p.out, s.first + from + at / p.value_dim)[head * p.value_dim + at % p.value_dim] = narrow<A>(0.f);
}

// One new token of one head: decay, correction, update, output.
template <typename A>
__device__ __forceinline__ void advance(HeadState& state, Chunk& chunk, const Delta& p, const Sequence& s, int head, int i, int local) {
  using U = typename Correction<A>::type;
  float k[PLAIN_KEYS], q[PLAIN_KEYS], decay = chunk.decay[local], beta = chunk.beta[local];
  load_keys(chunk.k[local], k);
  load_keys(chunk.q[local], q);
#pragma unroll
  for (int r = 0; r < PLAIN_ROWS; r++) {
    if (32 * r >= p.value_dim) break;
    int row = state.row(r);
#pragma unroll
    for (int j = 0; j < PLAIN_KEYS; j++) state.s[r][j] *= decay;
    float u = round_correction(beta * (chunk.v[local][row] - dot_keys(state.s[r], k)), U());
#pragma unroll
    for (int j = 0; j < PLAIN_KEYS; j++) state.s[r][j] = fmaf(u, k[j], state.s[r][j]);
    float o = dot_keys(state.s[r], q);
    __syncwarp();  // this row's lanes, which alone read it, have read v
    if (threadIdx.x % 8 == 0 && row < p.value_dim) {
      if (p.mode == STEP)
        ring_row<U>(p.state, s.slot, p.state.x, s.origin + i, p.state.records, p.values())[head * p.value_dim + row] = narrow<U>(u);
      chunk.v[local][row] = o;
    }
  }
}

// A committed record of one head; anew: its correction from the state.
__device__ __forceinline__ void replay(HeadState& state, const Chunk& chunk, const Delta& p, int local, bool anew) {
  float k[PLAIN_KEYS], decay = chunk.decay[local];
  load_keys(chunk.k[local], k);
#pragma unroll
  for (int r = 0; r < PLAIN_ROWS; r++) {
    if (32 * r >= p.value_dim) break;
    float u = chunk.v[local][state.row(r)];
    if (anew) u = chunk.beta[local] * (u - decay * dot_keys(state.s[r], k));
#pragma unroll
    for (int j = 0; j < PLAIN_KEYS; j++) state.s[r][j] = fmaf(decay, state.s[r][j], u * k[j]);
  }
}

// The recurrence over the committed records, in the formats that carry it.
template <typename A>
__device__ void carry_on(HeadState& state, Chunk& chunk, const Delta& p, const Sequence& s, int head) {
  state.load(p.state.hp, p.state.block(s.src), head);
  for (int from = 0; from < s.h; from += PLAIN_CHUNK) {
    const int to = min(from + PLAIN_CHUNK, s.h);
    __syncthreads();
    fill<A>(chunk, p, s, head, from, to, p.state.two);
    __syncthreads();
    for (int i = from; i < to; i++) replay(state, chunk, p, i - from, p.state.two);
  }
}

template <typename A>
__device__ void walk(const WithCuts<Delta>& p) {
  pdl_begin();
  int head = blockIdx.x;
  Sequence s = sequence(p.rows, p.cursors, blockIdx.y);
  if (p.mode == STEP) clear<A>(p, s, head, s.n, p.rows.t);
  if (s.n == 0 || (p.mode == FOLD && s.h == 0)) return;
  __shared__ Chunk chunk;
  const Place place(p.state, blockIdx.y);
  const bool flush = p.mode == STEP && flushes(p.state, s);
  Stops stops(p.cuts, s, blockIdx.y, p.mode, flush && !p.state.two);
  HeadState state;
  if (p.mode == FOLD) {
    carry_on<A>(state, chunk, p, s, head);
    place.end(state, p.state, s, head, false);
    return;
  }
  if (p.mode == SCAN)
    place.start_scan(state, p.state, s, head);
  else
    state.load(flush ? p.state.hp : p.state.lp, p.state.block(s.src), head);
  const int end = s.h + s.n;
  for (int from = p.mode == SCAN ? s.h : 0; from < end; from += PLAIN_CHUNK) {
    const int to = min(from + PLAIN_CHUNK, end);
    __syncthreads();
    fill<A>(chunk, p, s, head, from, to, false);
    __syncthreads();
    for (int i = from; i < to; i++) {
      if (i < s.h)
        replay(state, chunk, p, i - from, false);
      else
        advance<A>(state, chunk, p, s, head, i, i - from);
      if (i + 1 == stops.records) stops.keep(state, p, s, head);
    }
    __syncthreads();
    finish<A>(chunk, p, s, head, from, to);
  }
  if (p.mode == SCAN) place.end(state, p.state, s, head, true);
  if (!flush || !p.state.two) return;
  carry_on<A>(state, chunk, p, s, head);  // the outputs were those of the recorded corrections
  state.keep(p.state, s.dst, head, s.position());
}

}  // namespace

extern "C" __global__ void __launch_bounds__(PLAIN_THREADS) delta_walk_bf16(PARAMS(WithCuts<Delta>, p)) { walk<bf16>(p); }
extern "C" __global__ void __launch_bounds__(PLAIN_THREADS) delta_walk_f32(PARAMS(WithCuts<Delta>, p)) { walk<float>(p); }
