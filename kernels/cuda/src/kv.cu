// Keys, values and queries of new tokens, and attention without tensor cores.
#include "attention.cuh"

constexpr int WIDEST = 256;  // head dim
constexpr int EACH = WIDEST / 32;

// The row of a token of the launch, -1 if none; j becomes its place in the row, n the row's length.
__device__ __forceinline__ int row_of_token(int token, int count, int first, int t, uint64_t n_at, uint64_t start_at, int& j, int& n) {
  const int* lengths = at<const int>(n_at);
  if (t > 0) {
    const int r = token / t;
    j = token % t, n = lengths[r];
    return r;
  }
  const int* starts = at<const int>(start_at);
  for (int from = 0; from < count; from += 32) {
    const int r = from + threadIdx.x % 32;
    int place = -1, length = 0;
    if (r < count) length = lengths[r], place = first + token - starts[r];
    const unsigned found = __ballot_sync(~0u, place >= 0 && place < length);
    if (found) {
      const int lane = __ffs(found) - 1;
      j = __shfl_sync(~0u, place, lane), n = __shfl_sync(~0u, length, lane);
      return from + lane;
    }
  }
  return -1;
}

struct WriteKV {
  Mat q, k, v, out;
  uint64_t slot, n, start, origin, h, pos;  // i32
  uint64_t pages, table, qnorm, knorm, freq, trouble;
  int64_t page_stride, scales;
  int count, first, t, heads, queries, query_stride;
  int table_stride, page_tokens, page_count, dim, dtype, rotary;
  float eps, kscale, vscale;
  int pad;
};

// One warp a head of a token: first those of q, then k, then v.
template <typename T>
__device__ __forceinline__ void write_kv(const WriteKV& p) {
  __shared__ float turned[4][WIDEST];
  pdl_begin();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, unit = blockIdx.y * 4 + warp;
  if (unit >= p.queries + 2 * p.heads) return;
  int j, n;
  const int row = row_of_token(blockIdx.x, p.count, p.first, p.t, p.n, p.start, j, n);
  if (row < 0) return;
  const int token = p.first + blockIdx.x;
  const bool query = unit < p.queries, key = !query && unit < p.queries + p.heads;
  const int head = query ? unit : (unit - p.queries) % p.heads;
  T* out = row_of<T>(p.out, token) + (int64_t)head * p.dim;
  if (j >= n) {
    if (query)
      for (int d = lane; d < p.dim; d += 32) out[d] = narrow<T>(0.f);
    return;
  }
  const T* from = query ? row_of<const T>(p.q, token) + (int64_t)head * p.query_stride : row_of<const T>(key ? p.k : p.v, token) + (int64_t)head * p.dim;
  float x[EACH], squares = 0;
#pragma unroll
  for (int i = 0; i < EACH; i++) {
    const int d = lane + 32 * i;
    x[i] = d < p.dim ? widen(from[d]) : 0.f;
    squares = fmaf(x[i], x[i], squares);
  }
  const uint64_t norm = query ? p.qnorm : key ? p.knorm : 0;
  if (norm) {
    const float factor = 1.f / sqrtf(warp_sum(squares) / p.dim + p.eps);
#pragma unroll
    for (int i = 0; i < EACH; i++)
      if (lane + 32 * i < p.dim) x[i] *= factor * at<const float>(norm)[lane + 32 * i];
  }
  if (p.rotary > 0 && (query || key)) {
    const int half = p.rotary / 2;
    const float position = (float)at<const int>(p.pos)[token];
#pragma unroll
    for (int i = 0; i < EACH; i++) turned[warp][lane + 32 * i] = x[i];
    __syncwarp();
#pragma unroll
    for (int i = 0; i < EACH; i++) {
      const int d = lane + 32 * i;
      if (d >= p.rotary) continue;
      float sine, cosine;
      sincosf(position * at<const float>(p.freq)[d % half], &sine, &cosine);
      x[i] = d < half ? x[i] * cosine - turned[warp][d + half] * sine : x[i] * cosine + turned[warp][d - half] * sine;
    }
  }
  if (query) {
#pragma unroll
    for (int i = 0; i < EACH; i++)
      if (lane + 32 * i < p.dim) out[lane + 32 * i] = narrow<T>(x[i]);
    return;
  }
  const int slot = at<const int>(p.slot)[row], place = at<const int>(p.origin)[slot] + at<const int>(p.h)[slot] + j;
  const int id = at<const int>(p.table)[(int64_t)slot * p.table_stride + place / p.page_tokens];
  if ((unsigned)id >= (unsigned)p.page_count) {
    if (lane == 0) report(p.trouble, TROUBLE_PAGE, id);
    return;
  }
  const uint64_t page = p.pages + id * p.page_stride;
  const int64_t line = ((key ? 0 : p.heads) + head) * (int64_t)p.page_tokens + place % p.page_tokens;
  float scale = key ? p.kscale : p.vscale;
  if (p.dtype == F8E4M3) {
    float most = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++) most = fmaxf(most, fabsf(x[i]));
    most = warp_max(most);
    if (scale == 0) scale = most / 448.f;
    if (scale == 0) scale = 1;
    if (lane == 0) at<float>(page + p.scales)[line] = scale;
  }
#pragma unroll
  for (int i = 0; i < EACH; i++) {
    const int d = lane + 32 * i;
    if (d >= p.dim) continue;
    const int64_t to = line * p.dim + d;
    if (p.dtype == F32)
      at<float>(page)[to] = x[i];
    else if (p.dtype == BF16)
      at<bf16>(page)[to] = __float2bfloat16_rn(x[i]);
    else
      at<uint8_t>(page)[to] = __nv_cvt_float_to_fp8(x[i] / scale, __NV_SATFINITE, __NV_E4M3);
  }
}
extern "C" __global__ void __launch_bounds__(128) write_kv_f32(PARAMS(WriteKV, p)) { write_kv<float>(p); }
extern "C" __global__ void __launch_bounds__(128) write_kv_bf16(PARAMS(WriteKV, p)) { write_kv<bf16>(p); }

// Rotates dims 8 * lane + i of a head that `lanes` threads hold. The other half of a pair is in a thread rotary / 16 away;
// thread l works out the angles l, l + lanes, ... for all; sine and cosine are those of the first.
__device__ __forceinline__ void rotate_eight(const WriteKV& p, float (&x)[8], bool wanted, int position, float sine, float cosine, int lane, int lanes) {
  const int half = p.rotary / 2, d = lane * 8, angle = d % half, from = d < half ? lane + half / 8 : lane - half / 8;
  float other[8], sines[8], cosines[8];
#pragma unroll
  for (int i = 0; i < 8; i++) other[i] = __shfl_sync(~0u, x[i], from, lanes);
#pragma unroll 1
  for (int first = 0; first < half; first += lanes) {
    if (first > 0 && first + lane < half) sincosf((float)position * at<const float>(p.freq)[first + lane], &sine, &cosine);
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const int of = angle + i - first;
      const float s = __shfl_sync(~0u, sine, of, lanes), c = __shfl_sync(~0u, cosine, of, lanes);
      if (of >= 0 && of < lanes) sines[i] = s, cosines[i] = c;
    }
  }
  if (!wanted || d >= p.rotary) return;
#pragma unroll
  for (int i = 0; i < 8; i++) x[i] = d < half ? x[i] * cosines[i] - other[i] * sines[i] : x[i] * cosines[i] + other[i] * sines[i];
}

// The page of token `place` of a slot, and which line of it a head's key or value is; 0 and a report if there is none.
__device__ __forceinline__ uint64_t page_of(const WriteKV& p, int slot, int place, int part_head, int64_t& line) {
  const int id = at<const int>(p.table)[(int64_t)slot * p.table_stride + place / p.page_tokens];
  line = part_head * (int64_t)p.page_tokens + place % p.page_tokens;
  if ((unsigned)id < (unsigned)p.page_count) return p.pages + id * p.page_stride;
  report(p.trouble, TROUBLE_PAGE, id);
  return 0;
}

// Stores dims d .. d+7 of a line.
__device__ __forceinline__ void store_line(const WriteKV& p, uint64_t page, int64_t line, int d, const float (&x)[8], float scale, float most) {
  const int64_t to = line * p.dim + d;
  if (p.dtype == F32) return store8(at<float>(page) + to, x);
  if (p.dtype == BF16) return store8(at<bf16>(page) + to, x);
  if (scale == 0) scale = most / 448.f;
  if (scale == 0) scale = 1;
  if (d == 0) at<float>(page + p.scales)[line] = scale;
  uint32_t codes[2] = {};
#pragma unroll
  for (int i = 0; i < 8; i++) codes[i / 4] |= (uint32_t)__nv_cvt_float_to_fp8(x[i] / scale, __NV_SATFINITE, __NV_E4M3) << i % 4 * 8;
  *reinterpret_cast<uint2*>(at<uint8_t>(page) + to) = make_uint2(codes[0], codes[1]);
}

// The same for head dims 64, 128 and 256 and addresses aligned to 16 bytes: a thread has eight neighbouring dims, so a warp
// has 256 / dim heads of a token. It asks for all it can before it waits.
template <typename T>
__device__ __forceinline__ void write_kv_eight(const WriteKV& p) {
  pdl_trigger();
  const int lanes = p.dim / 8, lane = threadIdx.x % lanes, unit = blockIdx.y * (128 / lanes) + threadIdx.x / lanes, d = lane * 8;
  const int token = p.first + blockIdx.x;
  const bool exists = unit < p.queries + 2 * p.heads, query = unit < p.queries, key = !query && unit < p.queries + p.heads;
  const int head = query ? unit : (unit - p.queries) % p.heads;
  const uint64_t norm = query ? p.qnorm : key ? p.knorm : 0;
  float x[8] = {}, factor[8], sine = 0, cosine = 0;
  const float frequency = lane < p.rotary / 2 ? at<const float>(p.freq)[lane] : 0;
  if (norm) load8(at<const float>(norm) + d, factor);
  pdl_wait();
  const int position = p.rotary > 0 ? at<const int>(p.pos)[token] : 0;
  if (exists) load8(query ? row_of<const T>(p.q, token) + (int64_t)head * p.query_stride + d : row_of<const T>(key ? p.k : p.v, token) + (int64_t)head * p.dim + d, x);
  int j, n;
  const int row = row_of_token(blockIdx.x, p.count, p.first, p.t, p.n, p.start, j, n);
  if (row < 0) return;
  const int slot = at<const int>(p.slot)[row], place = at<const int>(p.origin)[slot] + at<const int>(p.h)[slot] + j;
  const bool counts = j < n, stores = exists && !query && counts;
  if (p.rotary > 0) sincosf((float)position * frequency, &sine, &cosine);
  uint64_t page = 0;
  int64_t line = 0;
  if (stores) page = page_of(p, slot, place, (key ? 0 : p.heads) + head, line);
  float squares = 0;
#pragma unroll
  for (int i = 0; i < 8; i++) squares = fmaf(x[i], x[i], squares);
  for (int o = lanes / 2; o > 0; o >>= 1) squares += __shfl_xor_sync(~0u, squares, o);
  if (norm) {
    const float all = 1.f / sqrtf(squares / p.dim + p.eps);
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] *= all * factor[i];
  }
  if (p.rotary > 0) rotate_eight(p, x, query || key, position, sine, cosine, lane, lanes);
  float most = 0;
#pragma unroll
  for (int i = 0; i < 8; i++) {
    if (!counts) x[i] = 0;
    most = fmaxf(most, fabsf(x[i]));
  }
  for (int o = lanes / 2; o > 0; o >>= 1) most = fmaxf(most, __shfl_xor_sync(~0u, most, o));
  if (exists && query) store8(row_of<T>(p.out, token) + (int64_t)head * p.dim + d, x);
  if (page) store_line(p, page, line, d, x, key ? p.kscale : p.vscale, most);
}
extern "C" __global__ void __launch_bounds__(128) write_kv_eight_f32(PARAMS(WriteKV, p)) { write_kv_eight<float>(p); }
extern "C" __global__ void __launch_bounds__(128) write_kv_eight_bf16(PARAMS(WriteKV, p)) { write_kv_eight<bf16>(p); }

// Adds up the chunks of a head of a token of step rows, if there are several. Blocks of 128 threads, D / 4 of them a chunk.
// unit: which head of which token.
template <typename T>
__device__ __forceinline__ void combine(const Attend& p, int unit) {
  constexpr int AT_ONCE = 4;  // chunks that a thread asks for before it waits
  __shared__ float4 part[128];
  __shared__ float total[8];
  const int queries = p.heads * p.group, token = unit / queries, head = unit % queries, row = token / p.t, j = token % p.t;
  const int n = at<const int>(p.n)[row], chunks = at<const int>(p.more)[1 + row];
  const int lanes = p.dim / 4, lane = threadIdx.x % lanes, group = threadIdx.x / lanes, groups = 128 / lanes;
  T* out = row_of<T>(p.out, p.first + token) + (int64_t)head * p.dim + lane * 4;
  if (j >= n || chunks == 1) return;
  const int64_t first = (int64_t)unit * p.chunks;
  const float2* stats = at<const float2>(p.stats) + first;
  const float4* sums = at<const float4>(p.partial) + first * lanes + lane;
  float most = -INFINITY, sum = 0;
  float4 o = make_float4(0, 0, 0, 0);
  for (int from = 0; from < chunks; from += groups * AT_ONCE) {
    float4 v[AT_ONCE];
    float2 s[AT_ONCE];
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) {
      const int i = from + k * groups + group;
      s[k] = i < chunks ? stats[i] : make_float2(-INFINITY, 0);
      v[k] = i < chunks ? sums[(int64_t)i * lanes] : make_float4(0, 0, 0, 0);
    }
    if (from == 0)
      for (int i = threadIdx.x % 32; i < chunks; i += 32) most = fmaxf(most, stats[i].x);
    if (from == 0) most = warp_max(most);
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) {
      const float w = power2(s[k].x - most);
      sum = fmaf(w, s[k].y, sum);
      o.x = fmaf(w, v[k].x, o.x), o.y = fmaf(w, v[k].y, o.y), o.z = fmaf(w, v[k].z, o.z), o.w = fmaf(w, v[k].w, o.w);
    }
  }
  part[threadIdx.x] = o;
  if (lane == 0) total[group] = sum;
  __syncthreads();
  if (group > 0) return;
  for (int i = 1; i < groups; i++) {
    const float4 v = part[i * lanes + lane];
    o.x += v.x, o.y += v.y, o.z += v.z, o.w += v.w;
    sum += total[i];
  }
  const float y[4] = {o.x / sum, o.y / sum, o.z / sum, o.w / sum};
  const T* gate = p.gate.p ? row_of<const T>(p.gate, p.first + token) + (int64_t)head * p.gate_stride + lane * 4 : nullptr;
  for (int i = 0; i < 4; i++) out[i] = narrow<T>(gate ? y[i] * sigmoid(widen(gate[i])) : y[i]);
}
extern "C" __global__ void __launch_bounds__(128) attend_combine(PARAMS(Attend, p)) {
  pdl_begin();
  if (!*at<const int>(p.more)) return;
  for (int unit = blockIdx.x; unit < p.count * p.t * p.heads * p.group; unit += gridDim.x) {
    combine<bf16>(p, unit);
    __syncthreads();
  }
}

__device__ __forceinline__ float element(const float* p, int64_t i) { return p[i]; }
__device__ __forceinline__ float element(const bf16* p, int64_t i) { return __bfloat162float(p[i]); }
__device__ __forceinline__ float element(const uint8_t* p, int64_t i) { return load_as(F8E4M3, reinterpret_cast<uint64_t>(p), i); }

// Any head dim up to WIDEST, any types: a block a query head of a token, the same for step and prefill rows. Warp w takes
// the tokens w, w+4, ..., four at a time; lane l the dims l, l+32, ...
template <typename T, typename E>
__device__ __forceinline__ void attend_plain(const Attend& p) {
  constexpr int AT_ONCE = 4;
  __shared__ float sums[4][WIDEST], most[4], total[4];
  pdl_begin();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, head = blockIdx.y, token = p.first + blockIdx.x;
  int j, n;
  const int row = row_of_token(blockIdx.x, p.count, p.first, p.t, p.n, p.start, j, n);
  if (row < 0) return;
  T* out = row_of<T>(p.out, token) + (int64_t)head * p.dim;
  if (j >= n) {
    for (int d = threadIdx.x; d < p.dim; d += 128) out[d] = narrow<T>(0.f);
    return;
  }
  const int slot = at<const int>(p.slot)[row], length = at<const int>(p.origin)[slot] + at<const int>(p.h)[slot] + j + 1;
  const int* table = at<const int>(p.table) + (int64_t)slot * p.table_stride;
  const T* from = row_of<const T>(p.q, token) + (int64_t)head * p.dim;
  float q[EACH], o[EACH] = {}, top = -INFINITY, sum = 0;
#pragma unroll
  for (int i = 0; i < EACH; i++) q[i] = lane + 32 * i < p.dim ? widen(from[lane + 32 * i]) * p.scale : 0.f;

  for (int first = warp; first < length; first += 4 * AT_ONCE) {
    const E *keys[AT_ONCE], *values[AT_ONCE];
    float score[AT_ONCE], vscale[AT_ONCE];
#pragma unroll
    for (int u = 0; u < AT_ONCE; u++) {
      const int t = first + 4 * u;
      int id = t < length ? table[t / p.page_tokens] : -1;
      if ((unsigned)id >= (unsigned)p.page_count) {
        if (t < length && lane == 0) report(p.trouble, TROUBLE_PAGE, id);
        id = -1;
      }
      const uint64_t page = p.pages + max(id, 0) * p.page_stride;
      const int64_t line = (int64_t)(head / p.group) * p.page_tokens + t % p.page_tokens, apart = (int64_t)p.heads * p.page_tokens;
      keys[u] = id < 0 ? nullptr : at<const E>(page) + line * p.dim, values[u] = keys[u] + apart * p.dim;
      score[u] = 0, vscale[u] = 1;
      if (id < 0) continue;
      float kscale = 1;
      if (sizeof(E) == 1) kscale = at<const float>(page + p.scales)[line], vscale[u] = at<const float>(page + p.scales)[line + apart];
#pragma unroll
      for (int i = 0; i < EACH; i++)
        if (lane + 32 * i < p.dim) score[u] = fmaf(q[i], element(keys[u], lane + 32 * i) * kscale, score[u]);
    }
    float now = top;
#pragma unroll
    for (int u = 0; u < AT_ONCE; u++) {
      score[u] = keys[u] ? warp_sum(score[u]) : -INFINITY;
      now = fmaxf(now, score[u]);
    }
    const float shrink = now == -INFINITY ? 1.f : expf(top - now);
    sum *= shrink;
#pragma unroll
    for (int i = 0; i < EACH; i++) o[i] *= shrink;
#pragma unroll
    for (int u = 0; u < AT_ONCE; u++) {
      if (!keys[u]) continue;
      const float w = expf(score[u] - now);
      sum += w;
#pragma unroll
      for (int i = 0; i < EACH; i++)
        if (lane + 32 * i < p.dim) o[i] = fmaf(w, element(values[u], lane + 32 * i) * vscale[u], o[i]);
    }
    top = now;
  }
#pragma unroll
  for (int i = 0; i < EACH; i++) sums[warp][lane + 32 * i] = o[i];
  if (lane == 0) most[warp] = top, total[warp] = sum;
  __syncthreads();
  top = fmaxf(fmaxf(most[0], most[1]), fmaxf(most[2], most[3]));
  float weight[4];
  sum = 0;
#pragma unroll
  for (int w = 0; w < 4; w++) weight[w] = most[w] == -INFINITY ? 0.f : expf(most[w] - top), sum = fmaf(weight[w], total[w], sum);
  const T* gate = p.gate.p ? row_of<const T>(p.gate, token) + (int64_t)head * p.gate_stride : nullptr;
  for (int d = threadIdx.x; d < p.dim; d += 128) {
    float y = 0;
#pragma unroll
    for (int w = 0; w < 4; w++) y = fmaf(weight[w], sums[w][d], y);
    y /= sum;
    if (gate) y *= sigmoid(widen(gate[d]));
    out[d] = narrow<T>(y);
  }
}

template <typename T>
__device__ __forceinline__ void attend_any(const Attend& p) {
  if (p.dtype == F32)
    attend_plain<T, float>(p);
  else if (p.dtype == BF16)
    attend_plain<T, bf16>(p);
  else
    attend_plain<T, uint8_t>(p);
}
extern "C" __global__ void __launch_bounds__(128) attend_f32(PARAMS(Attend, p)) { attend_any<float>(p); }
extern "C" __global__ void __launch_bounds__(128) attend_bf16(PARAMS(Attend, p)) { attend_any<bf16>(p); }
