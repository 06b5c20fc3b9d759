// Attention of prefill rows over pages by products of warpgroups: bf16 activations, bf16 or e4m3 pages, head dims 64, 128
// and 256. Packed rows are those of attention.cuh; an item of work is (row, KV head, block of 128 packed rows).
//
// A block is one warpgroup that gathers and two that compute, 64 packed rows each. The context is cut into tiles of N
// tokens, whose keys and values lie in two buffers each; warp w of the first warpgroup fills buffer w: keys of even tiles,
// their values, keys and values of odd ones. e4m3 turns into bf16 on its way, exactly; its scales meet the scores and the
// weights. A computing warpgroup starts the scores of a tile together with the sums over the values of the tile before, and
// turns scores into weights while those are added up. A row's bits depend on the row and its context only.
#pragma once
#include "attention.cuh"
#include "wgmma.cuh"

template <int D, bool FP8>
struct RowsLayout {
  static constexpr int M = 128, N = D == 256 ? 64 : 128;
  static constexpr int QUERIES = M * D * 2, BUFFER = N * D * 2;
  static constexpr int PART = 2048, PARTS = 3;  // bytes of e4m3, and how many of them a warp has on their way
  static constexpr int BUFFERS = QUERIES, RAW = BUFFERS + 4 * BUFFER, SCALES = RAW + (FP8 ? 4 * PARTS * PART : 0);
  static constexpr int SCALE_TILES = 4;  // tiles whose scales are held
  static constexpr int LINES = SCALES + (FP8 ? SCALE_TILES * 2 * N * 4 : 0), BARRIERS = LINES + 4 * N * 4;
  static constexpr int ROWS = BARRIERS + 10 * 8, TOTAL = ROWS + (4 * MAX_ROWS + 8) * 4;
  static constexpr int FEW = D == 256 ? 40 : 72, MANY = (168 * 3 - FEW) / 2;  // registers of a thread
  static constexpr int FULL = BARRIERS, EMPTY = FULL + 32, QUERIES_FULL = EMPTY + 32, QUERIES_EMPTY = QUERIES_FULL + 8;
};

// Where piece c (16 bytes) of row r lies in blocks of `rows` rows of 64 bf16.
__device__ __forceinline__ uint32_t place_block(int rows, int r, int c) { return c / 8 * rows * 128 + place<128>(r, c % 8); }

struct Item {
  int row, head, block, n, position, end, tiles;  // end: behind the last token that is seen; tiles: 0 if there is none
};

// The block's item of a round. Items of a row become shorter: of two rounds the second goes through the blocks backwards,
// and every two rounds another block begins, so that with many rows no block gets the first of all.
template <int N>
__device__ __forceinline__ Item item_of(const Attend& p, const RowTables& t, int round) {
  constexpr int M = 128, APART = 29;  // of the simulated numbers the one with the shortest longest block
  const int blocks = gridDim.x, place = round & 1 ? blocks - 1 - blockIdx.x : blockIdx.x, item = round * blocks + (place + round / 2 * APART) % blocks;
  if (item >= t.item[p.count]) return {-1, 0, 0, 0, 0, 0, 0};
  int lo = 0, hi = p.count;  // item[lo] <= item < item[hi]
  while (hi - lo > 1) {
    const int mid = (lo + hi) / 2;
    if (t.item[mid] <= item)
      lo = mid;
    else
      hi = mid;
  }
  Item i;
  i.row = lo, i.n = t.n[lo], i.position = t.position[lo];
  const int rest = item - t.item[lo], from_last = quotient(rest, p.per_head);
  i.head = rest - from_last * p.heads, i.block = (i.n * p.group + M - 1) / M - 1 - from_last;
  i.end = i.position + min(quotient(i.block * M + M - 1, p.per_group), i.n - 1) + 1;
  i.tiles = (i.end + N - 1) / N;
  return i;
}

// The gathering warps.
template <int D, bool FP8>
struct Gather {
  using L = RowsLayout<D, FP8>;
  static constexpr int N = L::N, BYTES = D * (FP8 ? 1 : 2);
  const Attend& p;
  uint32_t base;
  uint8_t* space;
  int warp, lane;

  // A fourth of the item's queries.
  __device__ __forceinline__ void queries(const Item& i, int token) const {
    constexpr int PIECES = D / 8;
#pragma unroll 8
    for (int u = 0; u < PIECES; u++) {
      const int at = u * 32 + lane, r = warp * 32 + at / PIECES, x = at % PIECES, packed = i.block * L::M + r, j = quotient(packed, p.per_group);
      const bool exists = j < i.n;
      const bf16* from = row_of<const bf16>(p.q, token + (exists ? j : 0)) + (i.head * p.group + (exists ? packed - j * p.group : 0)) * D + x * 8;
      copy16(base + r / 64 * (L::QUERIES / 2) + place_block(64, r % 64, x), from, exists);
    }
  }
  // Looks up where the keys of a tile's tokens begin, in units of UNIT bytes.
  __device__ __forceinline__ void look_up(const Item& i, int slot, int from) const {
    uint32_t* lines = reinterpret_cast<uint32_t*>(space + L::LINES) + warp * N;
#pragma unroll
    for (int u = 0; u < N / 32; u++) {
      const int token = from + u * 32 + lane;
      uint32_t at_line = NOWHERE;
      if (token < i.end) {
        const int id = at<const int>(p.table)[(int64_t)slot * p.table_stride + (token >> p.page_shift)];
        if ((unsigned)id < (unsigned)p.page_count)
          at_line = (uint32_t)(id * (p.page_stride / UNIT)) + (i.head * p.page_tokens + (token & (p.page_tokens - 1))) * (BYTES / UNIT);
        else
          report(p.trouble, TROUBLE_PAGE, id);
      }
      lines[u * 32 + lane] = at_line;
    }
    __syncwarp();
  }
  // Starts the copy of the 16 bytes of number `at` of a tile's keys or values.
  __device__ __forceinline__ void copy(int at_piece, uint32_t to, uint64_t from) const {
    constexpr int PIECES = BYTES / 16;
    const uint32_t line = reinterpret_cast<const uint32_t*>(space + L::LINES)[warp * N + at_piece / PIECES];
    const bool exists = line != NOWHERE;
    copy16(to, at<const uint8_t>(from + (uint64_t)(exists ? line : 0) * UNIT + at_piece % PIECES * 16), exists);
  }
  __device__ __forceinline__ void fill(uint32_t to, uint64_t from) const {
    constexpr int PIECES = BYTES / 16;
#pragma unroll 8
    for (int u = 0; u < N * PIECES / 32; u++) {
      const int at_piece = u * 32 + lane;
      copy(at_piece, to + place_block(N, at_piece / PIECES, at_piece % PIECES), from);
    }
    copy_commit();
  }
  // Part of the e4m3 keys or values of a tile: fetch starts its copy, expand widens it. Each lane widens what it copied.
  static constexpr int PARTS_OF_TILE = N * D / L::PART, PIECES_OF_LANE = L::PART / 512;
  __device__ __forceinline__ uint32_t raw(int part) const { return L::RAW + (warp * L::PARTS + part % L::PARTS) * L::PART + lane * 16; }
  __device__ __forceinline__ void fetch(int part, uint64_t from) const {
    if (part < PARTS_OF_TILE)
#pragma unroll
      for (int u = 0; u < PIECES_OF_LANE; u++) copy((part * PIECES_OF_LANE + u) * 32 + lane, base + raw(part) + u * 512, from);
    copy_commit();
  }
  __device__ __forceinline__ void expand(int part, uint32_t buffer) const {
    constexpr int PIECES = BYTES / 16;
    const uint8_t* from = space + raw(part);
#pragma unroll
    for (int u = 0; u < PIECES_OF_LANE; u++) {
      const int at_piece = (part * PIECES_OF_LANE + u) * 32 + lane, r = at_piece / PIECES, x = at_piece % PIECES;
      const uint4 v = *reinterpret_cast<const uint4*>(from + u * 512);
      const uint4 low = make_uint4(low_bytes(v.x), high_bytes(v.x), low_bytes(v.y), high_bytes(v.y));
      const uint4 high = make_uint4(low_bytes(v.z), high_bytes(v.z), low_bytes(v.w), high_bytes(v.w));
      const bool swap = x / 4 & 1;  // or two blocks' pieces would share banks
      *reinterpret_cast<uint4*>(space + buffer + place_block(N, r, 2 * x + swap)) = swap ? high : low;
      *reinterpret_cast<uint4*>(space + buffer + place_block(N, r, 2 * x + !swap)) = swap ? low : high;
    }
  }
  // Scales of the tile's keys, then of its values: four tokens a copy.
  __device__ __forceinline__ void scales(const Item& i, int slot, int from, int tile) const {
    const uint32_t to = base + L::SCALES + tile % L::SCALE_TILES * (2 * N * 4);
    for (int u = lane; u < 2 * N / 4; u += 32) {
      const int part = u / (N / 4), token = from + u % (N / 4) * 4;
      int id = token < i.end ? at<const int>(p.table)[(int64_t)slot * p.table_stride + (token >> p.page_shift)] : -1;
      const bool exists = (unsigned)id < (unsigned)p.page_count;
      const int64_t line = ((int64_t)part * p.heads + i.head) * p.page_tokens + (token & (p.page_tokens - 1));
      copy_some(to + u * 16, at<const uint8_t>(p.pages + (exists ? id * p.page_stride + p.scales + line * 4 : 0)), exists ? min(i.end - token, 4) * 4 : 0);
    }
  }
  // What the warp has copied is there for products.
  __device__ __forceinline__ void publish(uint32_t barrier) const {
    copy_wait<0>();
    show_products();
    barrier_arrive(barrier);
    __syncwarp();
  }

  __device__ __forceinline__ void tile(const Item& i, int slot, int tile_of_item, int tile, int uses) const {
    const int from = tile_of_item * N, value = warp & 1;
    const uint64_t pages = p.pages + (value ? (uint64_t)p.heads * p.page_tokens * BYTES : 0);
    const uint32_t buffer = L::BUFFERS + warp * L::BUFFER;
    look_up(i, slot, from);
    if constexpr (FP8)
      for (int part = 0; part < L::PARTS; part++) fetch(part, pages);
    if (uses > 0) barrier_wait(base + L::EMPTY + warp * 8, uses - 1 & 1);
    if constexpr (FP8) {
#pragma unroll 1
      for (int part = 0; part < PARTS_OF_TILE; part++) {
        copy_wait<L::PARTS - 1>();
        expand(part, buffer);
        fetch(part + L::PARTS, pages);
      }
      if (!value) scales(i, slot, from, tile), copy_commit();
    } else {
      fill(base + buffer, pages);
    }
    publish(base + L::FULL + warp * 8);
  }

  __device__ __forceinline__ void run(const RowTables& t) const {
    int tiles = 0, uses = 0;
#pragma unroll 1
    for (int round = 0;; round++) {
      const Item i = item_of<N>(p, t, round);
      if (!i.tiles) return;
      if (round > 0) barrier_wait(base + L::QUERIES_EMPTY, round - 1 & 1);
      queries(i, at<const int>(p.start)[i.row]);
      copy_commit();
      publish(base + L::QUERIES_FULL);
#pragma unroll 1
      for (int x = (tiles ^ warp >> 1) & 1; x < i.tiles; x += 2) tile(i, t.slot[i.row], x, tiles + x, uses++);
      tiles += i.tiles;
    }
  }
};

// A warpgroup that computes. Thread of warp w, lane 4 g + c: rows 16 w + g and 8 more of the warpgroup's 64.
template <int D, bool FP8>
struct Compute {
  using L = RowsLayout<D, FP8>;
  static constexpr int N = L::N;
  const Attend& p;
  uint32_t base;
  const uint8_t* space;
  int half, warp, g, c;
  float o[D / 2], s[N / 2], m[2], l[2], shrink[2];
  uint32_t w[N / 4];
  int limit[2];  // last token that the row sees

  __device__ __forceinline__ void scores(int tile) {
    const uint32_t q = here(operand(base + half * (L::QUERIES / 2))), k = operand(base + L::BUFFERS + (tile & 1) * 2 * L::BUFFER);
    product_fence();
#pragma unroll
    for (int x = 0; x < D / 16; x++) products(s, further(q, x / 4 * (64 * 128) + x % 4 * 32), further(k, x / 4 * (N * 128) + x % 4 * 32), x > 0);
    product_commit();
  }
  __device__ __forceinline__ void add_up(int tile, bool first) {
    const uint32_t v = operand(base + L::BUFFERS + ((tile & 1) * 2 + 1) * L::BUFFER, N * 128);
    product_fence();
#pragma unroll
    for (int x = 0; x < N / 16; x++) sums(o, w + 4 * x, further(v, x * 16 * 128), x > 0 || !first);
    product_commit();
  }
  __device__ __forceinline__ void wait_full(int tile, int part) const { barrier_wait(base + L::FULL + ((tile & 1) * 2 + part) * 8, tile >> 1 & 1); }
  __device__ __forceinline__ void release(uint32_t barrier) const { barrier_arrive(base + barrier); }
  __device__ __forceinline__ void release(int tile, int part) const { release(L::EMPTY + ((tile & 1) * 2 + part) * 8); }

  __device__ __forceinline__ void scale_keys(int tile) {
    const float* scale = reinterpret_cast<const float*>(space + L::SCALES) + tile % L::SCALE_TILES * 2 * N + 2 * c;
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
      const float2 k = *reinterpret_cast<const float2*>(scale + 8 * j);
      s[4 * j] *= k.x, s[4 * j + 1] *= k.y, s[4 * j + 2] *= k.x, s[4 * j + 3] *= k.y;
    }
  }
  __device__ __forceinline__ void scale_values(int tile) {
    const float* scale = reinterpret_cast<const float*>(space + L::SCALES) + tile % L::SCALE_TILES * 2 * N + N + 2 * c;
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
      const float2 v = *reinterpret_cast<const float2*>(scale + 8 * j);
      s[4 * j] *= v.x, s[4 * j + 1] *= v.y, s[4 * j + 2] *= v.x, s[4 * j + 3] *= v.y;
    }
  }
  __device__ __forceinline__ void hide(int from) {
#pragma unroll
    for (int j = 0; j < N / 2; j++)
      if (from + 8 * (j / 4) + 2 * c + j % 2 > limit[j / 2 % 2]) s[j] = -INFINITY;
  }
  // Scores become weights, m and l those of all tiles so far. The first tile holds token 0, which every row sees.
  template <bool FIRST>
  __device__ __forceinline__ void weigh() {
#pragma unroll
    for (int i = 0; i < 2; i++) {
      float top = fmaxf(s[2 * i], s[2 * i + 1]), other = fmaxf(s[2 * i + 4], s[2 * i + 5]);
#pragma unroll
      for (int j = 2; j < N / 8; j += 2) {
        top = fmaxf(top, fmaxf(s[4 * j + 2 * i], s[4 * j + 2 * i + 1]));
        other = fmaxf(other, fmaxf(s[4 * j + 2 * i + 4], s[4 * j + 2 * i + 5]));
      }
      top = fmaxf(top, other);
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
      if (!FIRST) top = fmaxf(top, m[i]);
      const float zero = top * p.scale;
      shrink[i] = FIRST ? 0.f : power2(fmaf(m[i], p.scale, -zero));
      m[i] = top;
      float sum = 0, more = 0;
#pragma unroll
      for (int j = 0; j < N / 8; j++) {
        float &x = s[4 * j + 2 * i], &y = s[4 * j + 2 * i + 1];
        x = power2(fmaf(x, p.scale, -zero)), y = power2(fmaf(y, p.scale, -zero));
        sum += x, more += y;
      }
      l[i] = FIRST ? sum + more : fmaf(l[i], shrink[i], sum + more);
    }
  }
  __device__ __forceinline__ void pack() {
#pragma unroll
    for (int j = 0; j < N / 4; j++) w[j] = pack_bf16(s[2 * j], s[2 * j + 1]);
  }
  __device__ __forceinline__ void shrink_sums() {
    if (!__any_sync(~0u, shrink[0] != 1.f || shrink[1] != 1.f)) return;
#pragma unroll
    for (int j = 0; j < D / 2; j++) o[j] *= shrink[j / 2 % 2];
  }
  template <bool FIRST, bool HIDE>
  __device__ __forceinline__ void weigh_tile(int tile, int from) {
    if (FP8) scale_keys(tile);
    if (HIDE) hide(from);
    weigh<FIRST>();
    if (FP8) scale_values(tile);
    pin(s);
    if (l[0] + l[1] < 0) __trap();  // never; a branch, over which ptxas does not move the wait that follows
  }
  // The scores of the item's tile x beside the sums of the tile before it.
  template <bool HIDE>
  __device__ __forceinline__ void step(int tile, int x) {
    wait_full(tile, 0);
    pin(s);
    pin(o);
    scores(tile);
    wait_full(tile - 1, 1);
    add_up(tile - 1, x == 1);
    product_wait<1>();
    pin(s);
    release(tile, 0);
    weigh_tile<false, HIDE>(tile, x * N);
    product_wait<0>();
    pin(o);
    release(tile - 1, 1);
    shrink_sums();
    pack();
  }

  __device__ __forceinline__ void item(const Item& i, int tiles, int round) {
    const int first_row = i.block * L::M + half * 64, least = i.position + min(quotient(first_row, p.per_group), i.n - 1);
#pragma unroll
    for (int x = 0; x < 2; x++) limit[x] = i.position + min(quotient(first_row + warp * 16 + x * 8 + g, p.per_group), i.n - 1);
    barrier_wait(base + L::QUERIES_FULL, round & 1);
    wait_full(tiles, 0);
    pin(s);
    scores(tiles);
    product_wait<0>();
    pin(s);
    release(tiles, 0);
    weigh_tile<true, true>(tiles, 0);
    pack();
    int x = 1;
#pragma unroll 1
    for (; x < min(i.tiles, (least + 1) / N); x++) step<false>(tiles + x, x);  // tiles that all rows see
#pragma unroll 1
    for (; x < i.tiles; x++) step<true>(tiles + x, x);
    release(L::QUERIES_EMPTY);
    const int last = tiles + i.tiles - 1;
    wait_full(last, 1);
    pin(o);
    add_up(last, i.tiles == 1);
    product_wait<0>();
    pin(o);
    release(last, 1);
  }

  // Eight neighbouring dims of a row for each thread of a quad that holds two of each of four groups.
  __device__ __forceinline__ void trade(float (&v)[4][2]) const {
#pragma unroll
    for (int bit = 1; bit <= 2; bit *= 2)
#pragma unroll
      for (int r = 0; r < 4; r++) {
        if (r & bit) continue;
#pragma unroll
        for (int e = 0; e < 2; e++) {
          const bool odd = c & bit;
          const float got = __shfl_xor_sync(~0u, odd ? v[r][e] : v[r | bit][e], bit);
          (odd ? v[r][e] : v[r | bit][e]) = got;
        }
      }
  }
  __device__ __forceinline__ void store(const Item& i, int token) {
    const bool aligned = ((p.gate.p | (uint64_t)(p.gate.stride * 2) | (uint64_t)(p.gate_stride * 2)) & 15) == 0;
#pragma unroll
    for (int x = 0; x < 2; x++) {
      float sum = l[x];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      const float one = 1.f / sum;
      const int packed = i.block * L::M + half * 64 + warp * 16 + x * 8 + g, j = quotient(packed, p.per_group), head = i.head * p.group + packed - j * p.group;
      bf16* to = row_of<bf16>(p.out, token + j) + head * D + 8 * c;
      const bf16* gate = row_of<const bf16>(p.gate, token + j) + (int64_t)head * p.gate_stride + 8 * c;
#pragma unroll
      for (int b = 0; b < D / 32; b++) {
        float v[4][2];
#pragma unroll
        for (int r = 0; r < 4; r++) v[r][0] = o[16 * b + 4 * r + 2 * x] * one, v[r][1] = o[16 * b + 4 * r + 2 * x + 1] * one;
        trade(v);
        if (j >= i.n) continue;
        float y[8];
#pragma unroll
        for (int r = 0; r < 8; r++) y[r] = v[r / 2][r % 2];
        if (p.gate.p) multiply_gate(y, gate + 32 * b, aligned);
        store8(to + 32 * b, y);
      }
    }
  }
  __device__ __forceinline__ void multiply_gate(float (&y)[8], const bf16* gate, bool aligned) const {
    float v[8];
    if (aligned)
      load8(gate, v);
    else
#pragma unroll
      for (int r = 0; r < 8; r++) v[r] = widen(gate[r]);
#pragma unroll
    for (int r = 0; r < 8; r++) y[r] *= __fdividef(1.f, 1.f + __expf(-v[r]));
  }

  __device__ __forceinline__ void run(const RowTables& t) {
    int tiles = 0;
#pragma unroll 1
    for (int round = 0;; round++) {
      const Item i = item_of<N>(p, t, round);
      if (!i.tiles) return;
      item(i, tiles, round);
      store(i, at<const int>(p.start)[i.row]);
      tiles += i.tiles;
    }
  }
};

template <int D, bool FP8>
__device__ __forceinline__ void attend_rows(const Attend& p) {
  using L = RowsLayout<D, FP8>;
  extern __shared__ __align__(1024) uint8_t space[];
  const uint32_t base = shared_address(space);
  const RowTables rows = row_tables(space + L::ROWS);
  expect_shared(L::TOTAL);
  if (threadIdx.x < 8) barrier_open(base + L::FULL + threadIdx.x * 8, threadIdx.x < 4 ? 32 : 256);  // all threads arrive
  if (threadIdx.x == 8) barrier_open(base + L::QUERIES_FULL, 128);
  if (threadIdx.x == 9) barrier_open(base + L::QUERIES_EMPTY, 256);
  pdl_begin();
  list_rows<L::M, false>(p, rows);
  if (threadIdx.x < 128) {
    fewer_registers<L::FEW>();
    Gather<D, FP8>{p, base, space, (int)threadIdx.x / 32, (int)threadIdx.x % 32}.run(rows);
  } else {
    more_registers<L::MANY>();
    const int lane = threadIdx.x % 32;
    Compute<D, FP8> compute{p, base, space, (int)threadIdx.x / 128 - 1, (int)threadIdx.x / 32 % 4, lane / 4, lane % 4};
    compute.run(rows);
  }
}

#define ATTEND_ROWS(name, D, FP8)                                                                  \
  static_assert(RowsLayout<D, FP8>::TOTAL <= 227 * 1024, "shared memory of " #name);              \
  extern "C" __global__ void __launch_bounds__(384, 1) name(PARAMS(Attend, p)) { attend_rows<D, FP8>(p); }
