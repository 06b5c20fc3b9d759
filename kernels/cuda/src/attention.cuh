// Attention of step rows over pages by tensor cores: bf16 activations, bf16 or e4m3 pages, head dims 64, 128 and 256.
//
// The query heads of a KV head and the tokens of a row are packed as rows of one matrix: packed row i is token i / group,
// query head i % group. An item of work is (row, KV head, block of 16 * MT packed rows, chunk of the context). Those of a
// whole context finish here; other chunks leave unnormalised sums for attend_combine. The chunks of a row depend on its own
// context only, so a row's bits do not depend on its neighbours.
//
// A block of W warps takes items blockIdx.x, + gridDim.x, ... as one stream of tiles of 64 tokens, so that loads of the next
// item start while this one ends. In a tile, warp w multiplies all queries by its 64 / W keys; scores become weights in
// shared memory; then warp w adds up its D / W dims of all 64 values. So every key and value is read, and converted, by one
// warp once. e4m3 turns into bf16 exactly; its scales meet the scores and the weights.
#pragma once
#include "common.cuh"

struct Attend {
  Mat q, gate, out;
  uint64_t slot, n, start, origin, h;  // i32
  uint64_t pages, table, partial, stats, trouble;
  int64_t page_stride;
  int64_t scales;  // byte of a page where they start
  int count, first, t, heads, group, gate_stride;
  int table_stride, page_shift, page_tokens, page_count;
  int chunks;  // at most, of a row
  int dim, dtype, tokens;
  uint32_t per_group, per_head;  // for quotient
  float scale;
  int pad;
};

// x / d for 0 <= x < 2^20 and d < 2^11 by per = ceil(2^32 / d), which is 0 for d = 1.
__device__ __forceinline__ int quotient(int x, uint32_t per) { return per ? (int)__umulhi((uint32_t)x, per) : x; }

constexpr int MAX_ROWS = 256;  // of a launch
constexpr int TILE = 64;       // tokens
constexpr int WHOLE = 384;     // tokens: a shorter context is one chunk
constexpr int LEAST_CHUNK = 128;
constexpr int ITEMS = 264;  // chunks times heads that a long context is cut into, two for each multiprocessor

// Tokens of a chunk of a context.
__device__ __forceinline__ int chunk_of(int context, int heads) {
  if (context < WHOLE) return WHOLE;
  int64_t c = ((int64_t)context * heads + ITEMS - 1) / ITEMS;
  c = (c + TILE - 1) / TILE * TILE;
  return max((int)c, LEAST_CHUNK);
}

__device__ __forceinline__ uint32_t shared_address(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }
// 16 or 4 bytes; zeros if there is nothing to copy.
__device__ __forceinline__ void copy16(uint32_t to, const void* from, bool exists) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(exists ? 16 : 0) : "memory");
}
__device__ __forceinline__ void copy_some(uint32_t to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void copy4(uint32_t to, const void* from, bool exists) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(exists ? 4 : 0) : "memory");
}
__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N>
__device__ __forceinline__ void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
__device__ __forceinline__ void load_matrices(uint32_t r[4], uint32_t at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
__device__ __forceinline__ void load_two(uint32_t r[2], uint32_t at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(at) : "memory");
}
__device__ __forceinline__ void load_transposed(uint32_t r[4], uint32_t at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
__device__ __forceinline__ void load_two_transposed(uint32_t r[2], uint32_t at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(at) : "memory");
}
__device__ __forceinline__ void multiply(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ float power2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ uint32_t pack2(float lo, float hi) {
  __nv_bfloat162 v = __floats2bfloat162_rn(lo, hi);
  return *reinterpret_cast<uint32_t*>(&v);
}

// Two e4m3, of which v has the magnitudes in bits 4-10 and the signs in bit 15 of each half, as bf16: the exponent is 120
// too small, subnormals included.
__device__ __forceinline__ uint32_t raise(uint32_t v) {
  __nv_bfloat162 x = *reinterpret_cast<__nv_bfloat162*>(&v);
  const __nv_bfloat162_raw factor = {0x7b80, 0x7b80};
  x = __hmul2(x, __nv_bfloat162(factor));
  return *reinterpret_cast<uint32_t*>(&x);
}
// Bytes 0 and 2, bytes 1 and 3, and any two neighbours of a word of e4m3.
__device__ __forceinline__ uint32_t even_bytes(uint32_t w) { return raise(w << 8 & 0x80008000u | w << 4 & 0x07f007f0u); }
__device__ __forceinline__ uint32_t odd_bytes(uint32_t w) { return raise(w & 0x80008000u | w >> 4 & 0x07f007f0u); }
__device__ __forceinline__ uint32_t low_bytes(uint32_t w) { return odd_bytes(__byte_perm(w, 0, 0x1404)); }
__device__ __forceinline__ uint32_t high_bytes(uint32_t w) { return odd_bytes(__byte_perm(w, 0, 0x3424)); }

// Where 16-byte piece c of row r lies in rows of BYTES: eight rows' pieces c never share a bank.
template <int BYTES>
__device__ __forceinline__ uint32_t place(int r, int c) {
  return r * BYTES + ((c ^ (BYTES >= 128 ? r & 7 : r >> 1 & 3)) << 4);
}

// What a tile is, written one iteration before its loads.
struct Tile {
  int row, head, block, chunk;  // row -1: there is no more work; chunk -1: the whole context
  int from, end;                // tokens; end: behind the last of the item
  int first, last;              // of its item
  int queries;                  // where the item's queries lie
  uint32_t at[TILE];            // keys of the tokens in units of UNIT bytes, NOWHERE for none
  int page[TILE];
};
constexpr int UNIT = 64;
constexpr uint32_t NOWHERE = ~0u;

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

// Row tables in shared memory: first item, position, n, slot.
struct RowTables {
  int *item, *position, *n, *slot;
};

template <int M, bool STEP>
__device__ __forceinline__ int items_of(const Attend& p, int position, int n) {
  if (n <= 0) return 0;
  int blocks = (n * p.group + M - 1) / M, context = position + n, chunk = chunk_of(context, p.heads);
  return p.heads * blocks * (STEP ? (context + chunk - 1) / chunk : 1);
}

// Fills the row tables; item[count] is the number of items.
template <int M, bool STEP>
__device__ __forceinline__ void list_rows(const Attend& p, const RowTables& t) {
  const int *slot = at<const int>(p.slot), *n = at<const int>(p.n);
  for (int r = threadIdx.x; r < p.count; r += blockDim.x) {
    int s = slot[r], length = n[r];
    int position = at<const int>(p.origin)[s] + at<const int>(p.h)[s];
    t.slot[r] = s, t.n[r] = length, t.position[r] = position;
    t.item[r + 1] = items_of<M, STEP>(p, position, length);
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    int before = 0;
    for (int from = 0; from < p.count; from += 32) {
      int r = from + threadIdx.x, v = r < p.count ? t.item[r + 1] : 0;
#pragma unroll
      for (int o = 1; o < 32; o <<= 1) {
        int w = __shfl_up_sync(~0u, v, o);
        if (threadIdx.x >= o) v += w;
      }
      if (r < p.count) t.item[r + 1] = before + v;
      before += __shfl_sync(~0u, v, 31);
    }
    if (threadIdx.x == 0) t.item[0] = 0;
  }
  __syncthreads();
}

// Walks the block's tiles. All threads hold the same.
template <int M>
struct Walk {
  int item, tile, tiles, row, head, block, chunk, from, end, held, slot;

  __device__ __forceinline__ void open(const Attend& p, const RowTables& t) {
    if (item >= t.item[p.count]) {
      row = -1, tiles = 1, from = end = 0;
      return;
    }
    int lo = 0, hi = p.count;  // item[lo] <= item < item[hi]
    while (hi - lo > 1) {
      int mid = (lo + hi) / 2;
      if (t.item[mid] <= item)
        lo = mid;
      else
        hi = mid;
    }
    row = lo, slot = t.slot[row];
    const int n = t.n[row], position = t.position[row], blocks = (n * p.group + M - 1) / M;
    int rest = item - t.item[row];
    chunk = quotient(rest, p.per_head), head = rest - chunk * p.heads, block = 0;
    if (blocks > 1) block = chunk % blocks, chunk /= blocks;
    const int last = min(quotient(block * M + M - 1, p.per_group), n - 1);
    const int size = chunk_of(position + n, p.heads);
    from = chunk * size, end = min(position + last + 1, from + size);
    if (size >= position + n) chunk = -1;
    tiles = max(1, (end - from + TILE - 1) / TILE);
  }
  __device__ __forceinline__ void start(const Attend& p, const RowTables& t) {
    item = blockIdx.x, tile = 0, held = 0, head = block = chunk = slot = 0;
    open(p, t);
  }
  __device__ __forceinline__ void next(const Attend& p, const RowTables& t) {
    if (row < 0 || ++tile < tiles) return;
    item += gridDim.x, tile = 0, held++;
    open(p, t);
  }
  // The page of the tile's token that this thread looks up, or -1.
  __device__ __forceinline__ int page(const Attend& p) const {
    const int token = from + tile * TILE + threadIdx.x;
    if (row < 0 || threadIdx.x >= TILE || token >= end) return -1;
    const int id = at<const int>(p.table)[(int64_t)slot * p.table_stride + (token >> p.page_shift)];
    if ((unsigned)id < (unsigned)p.page_count) return id;
    report(p.trouble, TROUBLE_PAGE, id);
    return -1;
  }
  template <int BYTES>
  __device__ __forceinline__ void describe(const Attend& p, Tile* d, int id, int held_items) const {
    if (threadIdx.x < TILE) {
      const int line = head * p.page_tokens + ((from + tile * TILE + threadIdx.x) & (p.page_tokens - 1));
      d->at[threadIdx.x] = id < 0 ? NOWHERE : (uint32_t)(id * (p.page_stride / UNIT)) + line * (BYTES / UNIT);
      d->page[threadIdx.x] = id;
    }
    if (threadIdx.x == 64) d->row = row, d->head = head, d->block = block, d->chunk = chunk;
    if (threadIdx.x == 65) d->from = from + tile * TILE, d->end = end, d->first = tile == 0, d->last = tile == tiles - 1, d->queries = held % held_items;
  }
};

template <int D, bool FP8, int MT, int STAGES, int WARPS>
__device__ __forceinline__ void attend(const Attend& p) {
  using L = Layout<D, FP8, MT, STAGES, WARPS>;
  constexpr int THREADS = 32 * WARPS, M = 16 * MT, BYTES = L::BYTES;
  constexpr int NT = D / 8 / WARPS, KT = TILE / 8 / WARPS;  // tiles of 8 dims, and of 8 keys, a warp
  extern __shared__ __align__(1024) uint8_t space[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
  const uint32_t base = shared_address(space);
  int* table = reinterpret_cast<int*>(space + L::ROWS);
  const RowTables rows = {table, table + MAX_ROWS + 4, table + 2 * MAX_ROWS + 4, table + 3 * MAX_ROWS + 4};
  Tile* ring = reinterpret_cast<Tile*>(space + L::TILES);
  float* most = reinterpret_cast<float*>(space + L::MOST);  // [M] of the warps
  float* sums = reinterpret_cast<float*>(space + L::SUM);
  uint32_t given;
  asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(given));
  if (given < L::TOTAL) __trap();  // attention.go computes the same size
  pdl_begin();
  list_rows<M, true>(p, rows);

  auto token_of = [&](int row) { return p.first + row * p.t; };
  // Packed row i of an item of a row with n tokens.
  auto load_queries = [&](const Tile& d) {
    const int n = rows.n[d.row], token = token_of(d.row);
    const uint32_t to = base + L::Q + d.queries * L::QUERIES;
    constexpr int PIECES = D / 8, EACH_THREAD = M * PIECES / THREADS, AT_ONCE = MT == 4 ? 1 : EACH_THREAD < 4 ? EACH_THREAD : 4;
    auto from = [&](int i, bool& exists) {
      const int r = i / PIECES, x = i % PIECES, packed = d.block * M + r, j = quotient(packed, p.per_group);
      exists = j < n;
      return row_of<const bf16>(p.q, token + (exists ? j : 0)) + (d.head * p.group + (exists ? packed - j * p.group : 0)) * D + x * 8;
    };
#pragma unroll(MT == 4 ? 1 : 8)
    for (int u = 0; u < EACH_THREAD; u += AT_ONCE) {
      uint4 v[AT_ONCE];
#pragma unroll
      for (int k = 0; k < AT_ONCE; k++) {
        const int i = (u + k) * THREADS + threadIdx.x;
        bool exists;
        const bf16* q = from(i, exists);
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
  };
  auto load_tile = [&](const Tile& d, int stage) {
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
  };
  auto load = [&](int described, int stage) {
    const Tile& d = ring[described];
    if (d.row >= 0) load_tile(d, stage);
    if (!FP8 && d.row >= 0 && d.first) load_queries(d);
    copy_commit();
  };
  auto load_new_queries = [&](int described) {  // those that are not copied asynchronously
    const Tile& d = ring[described];
    if (FP8 && d.row >= 0 && d.first) load_queries(d);
  };
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
  for (int k = 0; k < STAGES - 1; k++) load(k, k);
#pragma unroll 1
  for (int k = 0; k < STAGES - 1; k++) load_new_queries(k);

  float o[MT][NT][4], m[MT][2], l[MT][2];
  int limit[MT][2];  // last token that a packed row sees
#pragma unroll 1
  for (int now = 0, at_stage = 0, ahead = STAGES - 1, ahead_stage = STAGES - 1;; now = next(now, STAGES + 1), at_stage = next(at_stage, STAGES)) {
    copy_wait<STAGES - 2>();
    __syncthreads();
    const Tile& d = ring[now];
    if (d.row < 0) break;
    load(ahead, ahead_stage);
    load_new_queries(ahead);
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
    constexpr int CHAINS = MT == 1 ? 2 : 1;
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
          for (int k = 0; k < KT; k++) multiply(s[(x + y) % CHAINS][a][k], q, b[2 * (y + k)], b[2 * (y + k) + 1]);
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
          *reinterpret_cast<uint32_t*>(space + L::WEIGHTS + place<TILE * 2>(r, warp * KT + b) + c * 4) = pack2(x[b][0], x[b][1]);
        }
        l[a][i] = l[a][i] * shrink + sum;
        if (__any_sync(~0u, shrink != 1.f))
#pragma unroll
          for (int x = 0; x < NT; x++) o[a][x][2 * i] *= shrink, o[a][x][2 * i + 1] *= shrink;
      }
    __syncthreads();

    // Sums of the warp's dims.
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
          multiply(o[a][2 * y], w[a], b[0], b[1]);
          multiply(o[a][2 * y + 1], w[a], b[2], b[3]);
        }
      }
    }

    walk.template describe<BYTES>(p, &ring[ahead], id, STAGES);
    walk.next(p, rows);
    if (!d.last) continue;

    // The item ends: add the warps' sums of weights in order, then store.
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
    const int n = rows.n[d.row], token0 = token_of(d.row);
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
          *reinterpret_cast<uint32_t*>(to + dim) = pack2(lo, hi);
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
  copy_wait<0>();
}

#define ATTEND(name, D, FP8, MT, STAGES, BLOCKS, WARPS)                                        \
  static_assert(Layout<D, FP8, MT, STAGES, WARPS>::TOTAL <= 227 * 1024 / BLOCKS - (BLOCKS > 1) * 1024, "shared memory of " #name); \
  extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS) name(PARAMS(Attend, p)) { attend<D, FP8, MT, STAGES, WARPS>(p); }
