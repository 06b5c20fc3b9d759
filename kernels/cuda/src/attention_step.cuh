// Attention of step rows with more packed rows than attention_few.cuh takes, over pages by tensor cores: bf16 activations,
// bf16 or e4m3 pages, head dims 64, 128 and 256.
//
// An item of work is (row, KV head, block of 16 * MT packed rows, chunk of the context). Those of a whole context finish
// here; other chunks leave unnormalised sums for attend_combine.
//
// A block of W warps takes items blockIdx.x, + gridDim.x, ... as one stream of tiles of 64 tokens, so that loads of the next
// item start while this one ends. In a tile, warp w multiplies all queries by its 64 / W keys; scores become weights in
// shared memory; then warp w adds up its D / W dims of all 64 values. So every key and value is read, and converted, by one
// warp once. e4m3 turns into bf16 exactly; its scales meet the scores and the weights.
#pragma once
#include "attention_walk.cuh"

template <int D, bool FP8, int MT, int STAGES, int WARPS>
struct Layout {
  static constexpr int BYTES = D * (FP8 ? 1 : 2);   // of a key
  static constexpr int KEYS = TILE * BYTES;
  static constexpr int QUERIES = 16 * MT * D * 2;
  static constexpr int SCALES = FP8 ? 2 * TILE * 4 : 0;
  static constexpr int STAGE = 2 * KEYS + SCALES;
  static constexpr int Q = STAGES * STAGE, WEIGHTS = Q + STAGES * QUERIES, MOST = WEIGHTS + 16 * MT * TILE * 2;
  static constexpr int SUM = MOST + 16 * MT * WARPS * 4, TILES = SUM + 16 * MT * WARPS * 4;
  static constexpr int ROWS = TILES + (STAGES + 1) * (int)sizeof(Tile), TOTAL = ROWS + (4 * MAX_ROWS + 8) * 4;
};

// Loads of a block: the queries of an item, the keys and values of a tile.
template <int D, bool FP8, int MT, int STAGES, int WARPS>
struct Loads {
  using L = Layout<D, FP8, MT, STAGES, WARPS>;
  static constexpr int THREADS = 32 * WARPS, M = 16 * MT, BYTES = L::BYTES;

  const Attend& p;
  const RowTables& rows;
  uint8_t* space;
  uint32_t base;

  // 16 bytes of an item's query: piece i % PIECES of packed row i / PIECES, which may not exist.
  __device__ __forceinline__ const bf16* query(const Tile& d, int i, int n, int token, bool& exists) const {
    constexpr int PIECES = D / 8;
    const int r = i / PIECES, x = i % PIECES, packed = d.block * M + r, j = quotient(packed, p.per_group);
    exists = j < n;
    return row_of<const bf16>(p.q, token + (exists ? j : 0)) + (d.head * p.group + (exists ? packed - j * p.group : 0)) * D + x * 8;
  }
  __device__ __forceinline__ void queries(const Tile& d) const {
    const int n = rows.n[d.row], token = p.first + d.row * p.t;
    const uint32_t to = base + L::Q + d.queries * L::QUERIES;
    constexpr int PIECES = D / 8, EACH_THREAD = M * PIECES / THREADS, AT_ONCE = MT == 4 ? 1 : EACH_THREAD < 4 ? EACH_THREAD : 4;
#pragma unroll(MT == 4 ? 1 : 8)
    for (int u = 0; u < EACH_THREAD; u += AT_ONCE) {
      uint4 v[AT_ONCE];
#pragma unroll
      for (int k = 0; k < AT_ONCE; k++) {
        const int i = (u + k) * THREADS + threadIdx.x;
        bool exists;
        const bf16* q = query(d, i, n, token, exists);
        if (FP8)
          v[k] = exists ? *reinterpret_cast<const uint4*>(q) : make_uint4(0, 0, 0, 0);
        else
          copy16(to + place<D * 2>(i / PIECES, i % PIECES), q, exists);
      }
      if (FP8)  // words of sixteen dims in the order 0 2 4 6 1 3 5 7, see low_bytes
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
          const int i = (u + k) * THREADS + threadIdx.x, r = i / PIECES, x = i % PIECES;
          uint8_t* at_x = space + L::Q + d.queries * L::QUERIES + x % 2 * 8;
          *reinterpret_cast<uint2*>(at_x + place<D * 2>(r, x / 2 * 2)) = make_uint2(v[k].x, v[k].z);
          *reinterpret_cast<uint2*>(at_x + place<D * 2>(r, x / 2 * 2 + 1)) = make_uint2(v[k].y, v[k].w);
        }
    }
  }
  __device__ __forceinline__ void tile(const Tile& d, int stage) const {
    constexpr int PIECES = BYTES / 16;
    const uint32_t to = base + stage * L::STAGE;
    const uint32_t values = (uint32_t)(p.heads * p.page_tokens) * (BYTES / UNIT);
#pragma unroll
    for (int u = 0; u < TILE * PIECES / THREADS; u++) {
      const int i = u * THREADS + threadIdx.x, r = i / PIECES, x = i % PIECES;
      const uint32_t where = d.at[r];
      const bool exists = where != NOWHERE;
      const uint8_t* from = at<const uint8_t>(p.pages) + x * 16;
      copy16(to + place<BYTES>(r, x), from + (uint64_t)(exists ? where : 0) * UNIT, exists);
      copy16(to + L::KEYS + place<BYTES>(r, x), from + (uint64_t)(exists ? where + values : 0) * UNIT, exists);
    }
    if (FP8 && threadIdx.x < 2 * TILE / 4) {  // scales of four tokens, which are of one page
      const int r = threadIdx.x * 4 % TILE, part = threadIdx.x * 4 / TILE, id = d.page[r];
      const bool exists = id >= 0;
      const uint8_t* from = at<const uint8_t>(p.pages) + (exists ? id * p.page_stride + p.scales + ((part * p.heads + d.head) * p.page_tokens + (d.from + r & p.page_tokens - 1)) * 4 : 0);
      copy_some(to + 2 * L::KEYS + threadIdx.x * 16, from, exists ? min(d.end - d.from - r, 4) * 4 : 0);
    }
  }
  // What is copied asynchronously, as one group.
  __device__ __forceinline__ void start(const Tile& d, int stage) const {
    if (d.row >= 0) tile(d, stage);
    if (!FP8 && d.row >= 0 && d.first) queries(d);
    copy_commit();
  }
  // What is not.
  __device__ __forceinline__ void rest(const Tile& d) const {
    if (FP8 && d.row >= 0 && d.first) queries(d);
  }
};

// The end of an item. A thread has rows g and g + 8 of each 16 packed rows.
template <int D, bool FP8, int MT, int WARPS>
struct ItemEnd {
  static constexpr int M = 16 * MT, NT = D / 8 / WARPS;  // tiles of 8 dims a warp

  const Attend& p;
  const RowTables& rows;
  float* sums;  // [M] of the warps, in shared memory
  int warp, g, c;

  // Adds the warps' sums of weights in order, then stores: a chunk's share for attend_combine, or the whole with its gate. o:
  // sums of weights times values, m: a row's largest score, l: the sum of this thread's weights.
  __device__ __forceinline__ void operator()(const Tile& d, const float (&o)[MT][NT][4], const float (&m)[MT][2], const float (&l)[MT][2]) const {
#pragma unroll
    for (int a = 0; a < MT; a++)
#pragma unroll
      for (int i = 0; i < 2; i++) {
        float v = l[a][i];
        v += __shfl_xor_sync(~0u, v, 1);
        v += __shfl_xor_sync(~0u, v, 2);
        if (c == 0) sums[(a * 16 + i * 8 + g) * WARPS + warp] = v;
      }
    __syncthreads();
    const int n = rows.n[d.row], token0 = p.first + d.row * p.t;
#pragma unroll
    for (int a = 0; a < MT; a++)
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const int r = a * 16 + i * 8 + g, packed = d.block * M + r, j = quotient(packed, p.per_group), head = d.head * p.group + packed - j * p.group;
        if (j >= n) continue;
        float sum = 0;
#pragma unroll
        for (int x = 0; x < WARPS; x++) sum += sums[r * WARPS + x];
        const int at_dim = warp * (D / WARPS);
        if (d.chunk >= 0) {
          const int64_t part = ((int64_t)(d.row * p.t + j) * (p.heads * p.group) + head) * p.chunks + d.chunk;
          float* to = at<float>(p.partial) + part * D + at_dim;
          if (warp == 0 && c == 0) at<float2>(p.stats)[part] = make_float2(m[a][i], sum);
#pragma unroll
          for (int y = 0; y < NT / 2; y++) {
            const float *even = o[a][2 * y] + 2 * i, *odd = o[a][2 * y + 1] + 2 * i;
            if (FP8) {
              *reinterpret_cast<float4*>(to + y * 16 + 4 * c) = make_float4(even[0], odd[0], even[1], odd[1]);
            } else {
              *reinterpret_cast<float2*>(to + y * 16 + 2 * c) = make_float2(even[0], even[1]);
              *reinterpret_cast<float2*>(to + y * 16 + 8 + 2 * c) = make_float2(odd[0], odd[1]);
            }
          }
          continue;
        }
        const float one = 1.f / sum;
        bf16* to = row_of<bf16>(p.out, token0 + j) + head * D + at_dim;
        const bf16* gate = p.gate.p ? row_of<const bf16>(p.gate, token0 + j) + (int64_t)head * p.gate_stride + at_dim : nullptr;
        auto put = [&](int dim, float lo, float hi) {
          lo *= one, hi *= one;
          if (gate) lo *= sigmoid(widen(gate[dim])), hi *= sigmoid(widen(gate[dim + 1]));
          *reinterpret_cast<uint32_t*>(to + dim) = pack_bf16(lo, hi);
        };
#pragma unroll
        for (int y = 0; y < NT / 2; y++) {
          const float *even = o[a][2 * y] + 2 * i, *odd = o[a][2 * y + 1] + 2 * i;
          if (FP8)
            put(y * 16 + 4 * c, even[0], odd[0]), put(y * 16 + 4 * c + 2, even[1], odd[1]);
          else
            put(y * 16 + 2 * c, even[0], even[1]), put(y * 16 + 8 + 2 * c, odd[0], odd[1]);
        }
      }
  }
};

template <int D, bool FP8, int MT, int STAGES, int WARPS>
__device__ __forceinline__ void attend(const Attend& p) {
  using L = Layout<D, FP8, MT, STAGES, WARPS>;
  constexpr int M = 16 * MT, BYTES = L::BYTES;
  constexpr int NT = D / 8 / WARPS, KT = TILE / 8 / WARPS;  // tiles of 8 dims, and of 8 keys, a warp
  constexpr int CHAINS = MT == 1 ? 2 : 1;                   // of products, each of which waits for the one before
  extern __shared__ __align__(1024) uint8_t space[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
  const uint32_t base = shared_address(space);
  const RowTables rows = row_tables(space + L::ROWS);
  Tile* ring = reinterpret_cast<Tile*>(space + L::TILES);
  float* most = reinterpret_cast<float*>(space + L::MOST);  // [M] of the warps
  float* sums = reinterpret_cast<float*>(space + L::SUM);
  expect_shared(L::TOTAL);
  pdl_begin();
  list_rows<M, true>(p, rows);
  tell(p, rows);
  clear_others<D>(p, rows);

  const Loads<D, FP8, MT, STAGES, WARPS> loads = {p, rows, space, base};
  auto next = [](int i, int of) { return i + 1 == of ? 0 : i + 1; };
  Walk<M> walk, first[STAGES];
  int first_page[STAGES];
  walk.start(p, rows);
#pragma unroll
  for (int k = 0; k < STAGES; k++) {  // looks all pages up before it waits for one
    first[k] = walk, first_page[k] = walk.page(p);
    walk.next(p, rows);
  }
#pragma unroll
  for (int k = 0; k < STAGES; k++) first[k].template describe<BYTES>(p, &ring[k], first_page[k], STAGES);
  __syncthreads();
#pragma unroll 1
  for (int k = 0; k < STAGES - 1; k++) loads.start(ring[k], k);
#pragma unroll 1
  for (int k = 0; k < STAGES - 1; k++) loads.rest(ring[k]);

  const ItemEnd<D, FP8, MT, WARPS> end = {p, rows, sums, warp, g, c};
  float o[MT][NT][4], m[MT][2], l[MT][2];
  int limit[MT][2];  // last token that a packed row sees
#pragma unroll 1
  for (int now = 0, at_stage = 0, ahead = STAGES - 1, ahead_stage = STAGES - 1;; now = next(now, STAGES + 1), at_stage = next(at_stage, STAGES)) {
    copy_wait<STAGES - 2>();
    __syncthreads();
    const Tile& d = ring[now];
    if (d.row < 0) break;
    loads.start(ring[ahead], ahead_stage);
    loads.rest(ring[ahead]);
    ahead = next(ahead, STAGES + 1), ahead_stage = next(ahead_stage, STAGES);
    const int id = walk.page(p);

    if (d.first) {
      const int position = rows.position[d.row], n = rows.n[d.row];
#pragma unroll
      for (int a = 0; a < MT; a++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
          m[a][i] = -INFINITY, l[a][i] = 0;
          limit[a][i] = min(position + min(quotient(d.block * M + a * 16 + i * 8 + g, p.per_group), n - 1), d.end - 1);
#pragma unroll
          for (int x = 0; x < NT; x++) o[a][x][2 * i] = o[a][x][2 * i + 1] = 0;
        }
    }

    // Scores of the warp's tokens.
    const uint32_t stage = base + at_stage * L::STAGE, queries = base + L::Q + d.queries * L::QUERIES;
    float s[CHAINS][MT][KT][4] = {};
#pragma unroll
    for (int x = 0; x < D / 16; x += 2 / KT) {
      uint32_t b[4];  // sixteen keys of a step of sixteen dims, or eight of two steps
      const int key = warp * 8 * KT + lane % 8, half = lane / 8 % 2;
      if (FP8) {
        uint32_t w[2];
        load_two(w, stage + place<BYTES>(KT == 2 ? key + half * 8 : key, KT == 2 ? x : x + half));
        b[0] = low_bytes(w[0]), b[1] = high_bytes(w[0]), b[2] = low_bytes(w[1]), b[3] = high_bytes(w[1]);
      } else {
        load_matrices(b, stage + place<BYTES>(KT == 2 ? key + lane / 16 * 8 : key, 2 * x + (KT == 2 ? half : lane / 8)));
      }
#pragma unroll
      for (int y = 0; y < 2 / KT; y++)
#pragma unroll
        for (int a = 0; a < MT; a++) {
          uint32_t q[4];
          load_matrices(q, queries + place<D * 2>(a * 16 + lane % 16, 2 * (x + y) + lane / 16));
#pragma unroll
          for (int k = 0; k < KT; k++) mma(s[(x + y) % CHAINS][a][k], q, b[2 * (y + k)], b[2 * (y + k) + 1]);
        }
    }
    const int token = d.from + warp * 8 * KT + 2 * c;
    float kscale[KT][2], vscale[KT][2];
    if (FP8) {
      const float* from = reinterpret_cast<const float*>(space + at_stage * L::STAGE + 2 * L::KEYS) + warp * 8 * KT + 2 * c;
#pragma unroll
      for (int b = 0; b < KT; b++)
#pragma unroll
        for (int i = 0; i < 2; i++) kscale[b][i] = from[b * 8 + i] * p.scale, vscale[b][i] = from[TILE + b * 8 + i];
    }
#pragma unroll
    for (int a = 0; a < MT; a++)
#pragma unroll
      for (int i = 0; i < 2; i++) {
        float top = -INFINITY;
#pragma unroll
        for (int b = 0; b < KT; b++)
#pragma unroll
          for (int e = 0; e < 2; e++) {
            float v = s[0][a][b][2 * i + e];
            if (CHAINS == 2) v += s[CHAINS - 1][a][b][2 * i + e];
            v *= FP8 ? kscale[b][e] : p.scale;
            if (token + b * 8 + e > limit[a][i]) v = -INFINITY;
            s[0][a][b][2 * i + e] = v;
            top = fmaxf(top, v);
          }
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
        if (c == 0) most[(a * 16 + i * 8 + g) * WARPS + warp] = top;
      }
    __syncthreads();

    // Weights.
#pragma unroll
    for (int a = 0; a < MT; a++)
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const int r = a * 16 + i * 8 + g;
        float top = m[a][i];
#pragma unroll
        for (int x = 0; x < WARPS; x += 4) {
          const float4 w = *reinterpret_cast<const float4*>(most + r * WARPS + x);
          top = fmaxf(top, fmaxf(fmaxf(w.x, w.y), fmaxf(w.z, w.w)));
        }
        const float zero = top == -INFINITY ? 0.f : top;
        const float shrink = power2(m[a][i] - zero);
        m[a][i] = top;
        float sum = 0, x[KT][2];
#pragma unroll
        for (int b = 0; b < KT; b++) {
#pragma unroll
          for (int e = 0; e < 2; e++) {
            x[b][e] = power2(s[0][a][b][2 * i + e] - zero);
            sum += x[b][e];
            if (FP8) x[b][e] *= vscale[b][e];
          }
          *reinterpret_cast<uint32_t*>(space + L::WEIGHTS + place<TILE * 2>(r, warp * KT + b) + c * 4) = pack_bf16(x[b][0], x[b][1]);
        }
        l[a][i] = l[a][i] * shrink + sum;
        if (__any_sync(~0u, shrink != 1.f))
#pragma unroll
          for (int x = 0; x < NT; x++) o[a][x][2 * i] *= shrink, o[a][x][2 * i + 1] *= shrink;
      }
    __syncthreads();

    const uint32_t values = stage + L::KEYS;
#pragma unroll
    for (int x = 0; x < TILE / 16; x++) {
      uint32_t w[MT][4];
#pragma unroll
      for (int a = 0; a < MT; a++) load_matrices(w[a], base + L::WEIGHTS + place<TILE * 2>(a * 16 + lane % 16, 2 * x + lane / 16));
#pragma unroll
      for (int y = 0; y < NT / 2; y++) {  // sixteen dims
        uint32_t b[4];
        if (FP8) {
          uint32_t v[2];
          load_two_transposed(v, values + place<BYTES>(x * 16 + lane % 16, warp * (NT / 2) + y));
          b[0] = even_bytes(v[0]), b[1] = even_bytes(v[1]), b[2] = odd_bytes(v[0]), b[3] = odd_bytes(v[1]);
        } else {
          load_transposed(b, values + place<BYTES>(x * 16 + lane % 16, (warp * (NT / 2) + y) * 2 + lane / 16));
        }
#pragma unroll
        for (int a = 0; a < MT; a++) {
          mma(o[a][2 * y], w[a], b[0], b[1]);
          mma(o[a][2 * y + 1], w[a], b[2], b[3]);
        }
      }
    }

    walk.template describe<BYTES>(p, &ring[ahead], id, STAGES);
    walk.next(p, rows);
    if (d.last) end(d, o, m, l);
  }
  copy_wait<0>();
}

#define ATTEND(name, D, FP8, MT, STAGES, BLOCKS, WARPS)                                        \
  static_assert(Layout<D, FP8, MT, STAGES, WARPS>::TOTAL <= 227 * 1024 / BLOCKS - (BLOCKS > 1) * 1024, "shared memory of " #name); \
  extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS) name(PARAMS(Attend, p)) { attend<D, FP8, MT, STAGES, WARPS>(p); }
