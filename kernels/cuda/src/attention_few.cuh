// Attention of step rows with few packed rows (8 * NT of a block of them) over pages by tensor cores: bf16 activations, bf16
// or e4m3 pages, head dims 64, 128 and 256.
//
// An item of work is (row, KV head, block of packed rows, chunk of the context), as in attention_step.cuh. The warps of a
// block take its tokens by turns, TS at a time, each with a ring of loads, a maximum and sums of its own: they meet at the
// end of an item only, where shares are added up in the order of warps. With OWN, an item has as many KV heads as a block has
// warps, each takes all tokens of one, and none waits for another. A warp's loads run ahead over the ends of items.
//
// Products are transposed: tokens are rows of scores [tokens, packed rows] and dims rows of sums [dims, packed rows], so
// keys and values are the operand of 16 rows, and as few as eight packed rows fill the other. Weights turn from the one
// layout into the other's by movmatrix. e4m3 stays 2^120 too small, as its bits make it in bf16; queries and weights carry
// 2^60 instead, scores and sums the other 2^60.
#pragma once
#include "attention_few_walk.cuh"

constexpr float LAG = 8;       // a maximum is raised when a score is 2^LAG above it
constexpr float RAISE = 1152921504606846976.f;  // 2^60

template <int D, bool FP8, int NT, int TS, int STAGES, int WARPS>
struct FewLayout {
  static constexpr int BYTES = D * (FP8 ? 1 : 2);  // of a key
  static constexpr int KEYS = TS * BYTES, STAGE = 2 * KEYS + (FP8 ? 2 * TS * 4 : 0);
  static constexpr int PITCH = D + 4;              // of sums that warps add up: eight queries' never share a bank
  static constexpr int STEPS = WARPS * STAGES * STAGE, STATS = STEPS + WARPS * STAGES * (int)sizeof(Step), ROWS = STATS + WARPS * 8 * NT * 8;
  static constexpr int TOTAL = ROWS + (4 * MAX_ROWS + 8) * 4;
  static_assert(8 * PITCH * 4 <= STAGE, "sums of eight queries take the place of a stage");
};

// What a warp holds of an item: lane 4g + c has tokens or dims g and g + 8 of sixteen, packed rows 2c and 2c + 1 of eight.
template <int D, bool FP8, int NT, int TS, int NEXT, bool PAIRS>
struct Share {
  static constexpr int X = D / 16, BYTES = D * (FP8 ? 1 : 2), PAIR = FP8 ? 2 : 1;  // of sixteen dims that one load has
  int lane;
  uint32_t q[X][NT][2];
  float o[X][NT][4], m[NT][2], l[NT][2];
  int limit[NT][2];  // last token that a packed row sees

  // Asks for the queries of an item. Packed rows that do not exist repeat the last one; nobody stores them.
  __device__ __forceinline__ void ask(const Attend& p, const RowTables& rows, const Step& d) {
    if (d.row < 0) return;
    const int g = lane / 4, c = lane % 4, most = rows.n[d.row] * p.group - 1;
#pragma unroll
    for (int t = 0; t < NT; t++) {
      const bf16* from = query<D>(p, d.row, d.head, min(d.block * 8 * NT + t * 8 + g, most));
#pragma unroll
      for (int x = 0; x < X; x++) {
        if (FP8) {
          const uint2 v = *reinterpret_cast<const uint2*>(from + x * 16 + 4 * c);
          q[x][t][0] = v.x, q[x][t][1] = v.y;
        } else {
          q[x][t][0] = *reinterpret_cast<const uint32_t*>(from + x * 16 + 2 * c);
          q[x][t][1] = *reinterpret_cast<const uint32_t*>(from + x * 16 + 8 + 2 * c);
        }
      }
    }
  }
  // Begins the item whose queries were asked for.
  __device__ __forceinline__ void open(const Attend& p, const RowTables& rows, const Step& d) {
    const int c = lane % 4, n = rows.n[d.row], position = rows.position[d.row], first = d.block * 8 * NT;
#pragma unroll
    for (int t = 0; t < NT; t++) {
      if (FP8)  // dims in the order of low_even and low_odd
#pragma unroll
        for (int x = 0; x < X; x++) {
          const uint32_t lo = q[x][t][0], hi = q[x][t][1];
          q[x][t][0] = times(__byte_perm(lo, hi, 0x5410), RAISE), q[x][t][1] = times(__byte_perm(lo, hi, 0x7632), RAISE);
        }
#pragma unroll
      for (int e = 0; e < 2; e++) {
        m[t][e] = -INFINITY, l[t][e] = 0;
        limit[t][e] = min(position + min(quotient(first + t * 8 + 2 * c + e, p.per_group), n - 1), d.end - 1);
#pragma unroll
        for (int x = 0; x < X; x++) o[x][t][e] = o[x][t][2 + e] = 0;
      }
    }
  }
  // Sixteen keys' pieces of sixteen dims x, and with e4m3 those of x + 1.
  __device__ __forceinline__ void keys(uint32_t (&a)[2][4], uint32_t stage, int tokens, int x) const {
    if (!FP8) return load_matrices(a[0], stage + place<BYTES>(tokens + lane % 16, 2 * x + lane / 16));
    uint32_t w[4];
    load_matrices(w, stage + place<BYTES>(tokens + lane % 16, x + lane / 16));
#pragma unroll
    for (int k = 0; k < 2; k++)
#pragma unroll
      for (int i = 0; i < 2; i++) a[k][i] = low_even(w[2 * k + i]), a[k][2 + i] = low_odd(w[2 * k + i]);
  }
  __device__ __forceinline__ void values(uint32_t (&a)[2][4], uint32_t stage, int tokens, int x) const {
    if (!FP8) return load_transposed(a[0], stage + place<BYTES>(tokens + lane % 8 + lane / 16 * 8, 2 * x + lane / 8 % 2));
    uint32_t w[4];
    load_transposed(w, stage + place<BYTES>(tokens + lane % 16, x + lane / 16));
#pragma unroll
    for (int k = 0; k < 2; k++)
#pragma unroll
      for (int i = 0; i < 2; i++) a[k][2 * i] = low_even(w[2 * k + i]), a[k][2 * i + 1] = low_odd(w[2 * k + i]);
  }
  // Raises maxima that a score of B sixteens is far above.
  template <int B>
  __device__ __forceinline__ void raise(const float (*s)[NT][4]) {
    float top[NT][2];
    bool rise = false;
#pragma unroll
    for (int t = 0; t < NT; t++)
#pragma unroll
      for (int e = 0; e < 2; e++) {
        top[t][e] = fmaxf(s[0][t][e], s[0][t][2 + e]);
#pragma unroll
        for (int b = 1; b < B; b++) top[t][e] = fmaxf(top[t][e], fmaxf(s[b][t][e], s[b][t][2 + e]));
        rise |= top[t][e] > m[t][e] + LAG;
      }
    if (!__any_sync(~0u, rise)) return;
#pragma unroll
    for (int t = 0; t < NT; t++)
#pragma unroll
      for (int e = 0; e < 2; e++) {
        float now = top[t][e];
#pragma unroll
        for (int i = 4; i < 32; i *= 2) now = fmaxf(now, __shfl_xor_sync(~0u, now, i));
        now = fmaxf(now, m[t][e]);
        const float shrink = now == -INFINITY ? 1.f : power2(m[t][e] - now);
        m[t][e] = now, l[t][e] *= shrink;
#pragma unroll
        for (int x = 0; x < X; x++) o[x][t][e] *= shrink, o[x][t][2 + e] *= shrink;
      }
  }
  // Scores of the step's tokens; scales: those of keys, then those of values.
  __device__ __forceinline__ void score(const Attend& p, const Step& d, uint32_t stage, const float* scales, float (&s)[TS / 16][NT][4]) const {
    constexpr int CHAINS = NT == 1 && (TS == 16 || PAIRS) ? 2 : 1;  // of products, each of which waits for the one before
    const int g = lane / 4;
#pragma unroll
    for (int b = 0; b < TS / 16; b++) {
      float extra[4] = {};
#pragma unroll
      for (int t = 0; t < NT; t++) s[b][t][0] = s[b][t][1] = s[b][t][2] = s[b][t][3] = 0;
#pragma unroll
      for (int x = 0; x < X; x += PAIR) {
        uint32_t a[2][4];
        keys(a, stage, b * 16, x);
#pragma unroll
        for (int k = 0; k < PAIR; k++)
#pragma unroll
          for (int t = 0; t < NT; t++) mma(CHAINS == 2 && (x + k) % 2 ? extra : s[b][t], a[k], q[x + k][t][0], q[x + k][t][1]);
      }
      float factor[2] = {p.scale, p.scale};
      if (FP8) factor[0] = scales[b * 16 + g] * (p.scale * RAISE), factor[1] = scales[b * 16 + 8 + g] * (p.scale * RAISE);
#pragma unroll
      for (int t = 0; t < NT; t++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const float v = (CHAINS == 2 ? s[b][t][i] + extra[i] : s[b][t][i]) * factor[i / 2];
          s[b][t][i] = d.from + b * NEXT + i / 2 * 8 + g > limit[t][i % 2] ? -INFINITY : v;
        }
    }
  }
  // Adds sixteen values with the weights of their scores.
  __device__ __forceinline__ void add(const float (&s)[NT][4], uint32_t stage, const float* scales, int tokens) {
    const int g = lane / 4;
    float factor[2];
    if (FP8) factor[0] = scales[tokens + g] * RAISE, factor[1] = scales[tokens + 8 + g] * RAISE;
    uint32_t w[NT][2];
#pragma unroll
    for (int t = 0; t < NT; t++)
#pragma unroll
      for (int i = 0; i < 2; i++) {
        float x[2];
#pragma unroll
        for (int e = 0; e < 2; e++) {
          x[e] = power2(s[t][2 * i + e] - (m[t][e] == -INFINITY ? 0.f : m[t][e]));
          l[t][e] += x[e];
          if (FP8) x[e] *= factor[i];
        }
        w[t][i] = transpose(pack_bf16(x[0], x[1]));
      }
#pragma unroll
    for (int x = 0; x < X; x += PAIR) {
      uint32_t a[2][4];
      values(a, stage, tokens, x);
#pragma unroll
      for (int k = 0; k < PAIR; k++)
#pragma unroll
        for (int t = 0; t < NT; t++) mma(o[x + k][t], a[k], w[t][0], w[t][1]);
    }
  }
  // Takes a step in; next: the one behind it.
  __device__ __forceinline__ void take(const Attend& p, const RowTables& rows, const Step& d, const Step& next, uint32_t stage, const float* scales) {
    float s[TS / 16][NT][4];
    score(p, d, stage, scales, s);
    if (d.last) ask(p, rows, next);
    if (!PAIRS) raise<TS / 16>(s);
#pragma unroll
    for (int b = 0; b < TS / 16; b++) {
      if (PAIRS) raise<1>(s + b);
      add(s[b], stage + TS * BYTES, scales + TS, b * 16);
    }
  }
};

// The end of an item: adds up the warps' shares and stores a chunk's for attend_combine, or the whole with its gate.
template <int D, bool FP8, int NT, int TS, int STAGES, int WARPS, bool PAIRS, bool OWN>
struct FewEnd {
  using S = Share<D, FP8, NT, TS, APART<TS, WARPS, PAIRS>, PAIRS>;
  using L = FewLayout<D, FP8, NT, TS, STAGES, WARPS>;
  const Attend& p;
  const RowTables& rows;
  uint8_t* space;

  __device__ __forceinline__ float2* stats() const { return reinterpret_cast<float2*>(space + L::STATS); }  // [WARPS][8 * NT]
  __device__ __forceinline__ float* sums(int warp, int stage) const { return reinterpret_cast<float*>(space + (warp * STAGES + stage) * L::STAGE); }

  // The warp's sums for packed rows 8 * t ..., in place of the keys and values that it took in last.
  __device__ __forceinline__ void put(const S& s, int t, int stage) const {
    const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
    float* to = sums(threadIdx.x / 32, stage) + 2 * c * L::PITCH;
#pragma unroll
    for (int x = 0; x < D / 16; x++)
#pragma unroll
      for (int e = 0; e < 2; e++) {
        const float* v = s.o[x][t] + e;
        float* line = to + e * L::PITCH + x * 16;
        if (FP8)
          *reinterpret_cast<float2*>(line + 2 * g) = make_float2(v[0], v[2]);
        else
          line[g] = v[0], line[g + 8] = v[2];
      }
  }
  // Adds up and stores four dims of a packed row.
  __device__ __forceinline__ void take(const Step& d, int t, int stage, int i) const {
    const int q = i / (D / 4), dim = i % (D / 4) * 4, r = t * 8 + q, packed = d.block * 8 * NT + r, j = quotient(packed, p.per_group);
    if (j >= rows.n[d.row]) return;
    float top = -INFINITY, sum = 0;
    float4 v = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int w = 0; w < WARPS; w++) top = fmaxf(top, stats()[w * 8 * NT + r].x);
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
      const float2 of = stats()[w * 8 * NT + r];
      const float4 o = *reinterpret_cast<const float4*>(sums(w, stage) + q * L::PITCH + dim);
      const float f = of.x == -INFINITY ? 0.f : power2(of.x - top);
      sum = fmaf(f, of.y, sum);
      v.x = fmaf(f, o.x, v.x), v.y = fmaf(f, o.y, v.y), v.z = fmaf(f, o.z, v.z), v.w = fmaf(f, o.w, v.w);
    }
    store(d, j, d.head * p.group + packed - j * p.group, dim, v, top, sum);
  }
  __device__ __forceinline__ void store(const Step& d, int j, int head, int dim, const float4& v, float top, float sum) const {
    const float one = (FP8 ? RAISE : 1.f) / (d.chunk < 0 ? sum : 1.f);
    const float y[4] = {v.x * one, v.y * one, v.z * one, v.w * one};
    if (d.chunk >= 0) {
      const int64_t share = ((int64_t)(d.row * p.t + j) * (p.heads * p.group) + head) * p.chunks + d.chunk;
      *reinterpret_cast<float4*>(at<float>(p.partial) + share * D + dim) = make_float4(y[0], y[1], y[2], y[3]);
      if (dim == 0) at<float2>(p.stats)[share] = make_float2(top, sum);
      return;
    }
    const int token = p.first + d.row * p.t + j;
    float gate[4] = {1, 1, 1, 1};
    if (p.gate.p) {
      const bf16* from = row_of<const bf16>(p.gate, token) + (int64_t)head * p.gate_stride + dim;
#pragma unroll
      for (int i = 0; i < 4; i++) gate[i] = sigmoid(widen(from[i]));
    }
    *reinterpret_cast<uint2*>(row_of<bf16>(p.out, token) + head * D + dim) = make_uint2(pack_bf16(y[0] * gate[0], y[1] * gate[1]), pack_bf16(y[2] * gate[2], y[3] * gate[3]));
  }
  // The same of a warp's own item, two neighbours of dims at a time.
  __device__ __forceinline__ void store_own(const Step& d, const S& s, int t, int e, float sum) const {
    const int lane = threadIdx.x % 32, g = lane / 4, packed = d.block * 8 * NT + t * 8 + 2 * (lane % 4) + e, j = quotient(packed, p.per_group);
    if (j >= rows.n[d.row]) return;
    const int head = d.head * p.group + packed - j * p.group, token = p.first + d.row * p.t + j;
    const float one = (FP8 ? RAISE : 1.f) / (d.chunk < 0 ? sum : 1.f);
    const int64_t share = ((int64_t)(d.row * p.t + j) * (p.heads * p.group) + head) * p.chunks + d.chunk;
    float* part = at<float>(p.partial) + share * D;
    if (d.chunk >= 0 && g == 0) at<float2>(p.stats)[share] = make_float2(s.m[t][e], sum);
    bf16* out = row_of<bf16>(p.out, token) + head * D;
    const bf16* gate = p.gate.p ? row_of<const bf16>(p.gate, token) + (int64_t)head * p.gate_stride : nullptr;
#pragma unroll
    for (int x = 0; x < D / 16; x++) {
      float lo = s.o[x][t][e] * one, hi = s.o[x][t][2 + e] * one;
      const int dim = x * 16 + (FP8 ? 2 * g : g), apart = FP8 ? 1 : 8;
      if (d.chunk >= 0) {
        part[dim] = lo, part[dim + apart] = hi;
        continue;
      }
      if (gate) lo *= sigmoid(widen(gate[dim])), hi *= sigmoid(widen(gate[dim + apart]));
      if (FP8)
        *reinterpret_cast<uint32_t*>(out + dim) = pack_bf16(lo, hi);
      else
        out[dim] = narrow<bf16>(lo), out[dim + apart] = narrow<bf16>(hi);
    }
  }
  // The sum of a query's weights over the lanes that share its tokens.
  __device__ __forceinline__ static float weight_of(const S& s, int t, int e) {
    float l = s.l[t][e];
#pragma unroll
    for (int i = 4; i < 32; i *= 2) l += __shfl_xor_sync(~0u, l, i);
    return l;
  }
  __device__ __forceinline__ void own(const Step& d, const S& s) const {
#pragma unroll
    for (int t = 0; t < NT; t++)
#pragma unroll
      for (int e = 0; e < 2; e++) store_own(d, s, t, e, weight_of(s, t, e));
  }
  __device__ __forceinline__ void operator()(const Step& d, const S& s, int stage) const {
    if (OWN) return own(d, s);
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int t = 0; t < NT; t++)
#pragma unroll
      for (int e = 0; e < 2; e++) {
        const float l = weight_of(s, t, e);
        if (lane < 4) stats()[threadIdx.x / 32 * 8 * NT + t * 8 + 2 * lane + e] = make_float2(s.m[t][e], l);
      }
    const int count = rows.n[d.row] * p.group - d.block * 8 * NT;
#pragma unroll
    for (int t = 0; t < NT; t++) {
      if (t * 8 >= count) break;
      put(s, t, stage);
      __syncthreads();
#pragma unroll(NT * D >= 512 ? 1 : 2)
      for (int i = threadIdx.x; i < 2 * D; i += 32 * WARPS) take(d, t, stage, i);
      __syncthreads();
    }
  }
};

template <int D, bool FP8, int NT, int TS, int STAGES, int WARPS, bool PAIRS, bool OWN>
__device__ __forceinline__ void attend_few(const Attend& p) {
  using L = FewLayout<D, FP8, NT, TS, STAGES, WARPS>;
  constexpr int M = 8 * NT;
  constexpr bool KEEP = !(D == 128 && FP8 && NT <= 2 && !OWN && !PAIRS);  // registers are short
  extern __shared__ __align__(1024) uint8_t space[];
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (KEEP) asm volatile("" : "+r"(warp), "+r"(lane));  // kept, not computed again and again
  __builtin_assume(warp >= 0 && warp < WARPS && lane >= 0 && lane < 32);
  const RowTables rows = row_tables(space + L::ROWS);
  Step* steps = reinterpret_cast<Step*>(space + L::STEPS) + warp * STAGES;
  uint8_t* ring = space + warp * STAGES * L::STAGE;
  const uint32_t base = shared_address(ring);
  expect_shared(L::TOTAL);
  pdl_begin();
  list_rows<M, true, OWN ? WARPS : 1>(p, rows);

  FewWalk<M, TS, WARPS, PAIRS, OWN> walk, ahead[STAGES - 1];
  auto load = [&](const FewWalk<M, TS, WARPS, PAIRS, OWN>& w, int stage) {
    w.template load<D, L::BYTES, FP8>(p, rows, steps + stage, base + stage * L::STAGE);
    copy_commit();
  };
  walk.looked_up = -1, walk.lane = lane, walk.warp = warp;
  walk.start(p, rows);
#pragma unroll
  for (int k = 0; k < STAGES - 1; k++) {  // looks all pages up before it waits for one
    walk.look_up(p);
    ahead[k] = walk;
    walk.next(p, rows);
  }
  walk.look_up(p);
#pragma unroll
  for (int k = 0; k < STAGES - 1; k++) load(ahead[k], k);

  tell(p, rows);
  clear_others<D>(p, rows);
  const FewEnd<D, FP8, NT, TS, STAGES, WARPS, PAIRS, OWN> end = {p, rows, space};
  Share<D, FP8, NT, TS, APART<TS, WARPS, PAIRS>, PAIRS> share;
  share.lane = lane;
  __syncwarp();
  share.ask(p, rows, steps[0]);
#pragma unroll 1
  for (int now = 0, to = STAGES - 1;;) {
    load(walk, to);
    walk.next(p, rows);
    walk.look_up(p);
    copy_wait<STAGES - 1>();
    __syncwarp();
    const Step d = steps[now];
    if (d.row < 0) break;
    if (d.first) share.open(p, rows, d);
    const int then = now + 1 == STAGES ? 0 : now + 1;
    share.take(p, rows, d, steps[then], base + now * L::STAGE, reinterpret_cast<const float*>(ring + now * L::STAGE + 2 * L::KEYS));
    __syncwarp();
    if (d.last) end(d, share, now);
    to = now, now = then;
  }
  copy_wait<0>();
}

#define FEW(name, D, FP8, NT, TS, STAGES, BLOCKS, WARPS, PAIRS, OWN)                                                                                         \
  static_assert(FewLayout<D, FP8, NT, TS, STAGES, WARPS>::TOTAL <= 227 * 1024 / BLOCKS - (BLOCKS > 1) * 1024, "shared memory of " #name);              \
  extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS) name(PARAMS(Attend, p)) { attend_few<D, FP8, NT, TS, STAGES, WARPS, PAIRS, OWN>(p); }
