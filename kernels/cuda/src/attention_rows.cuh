// Attention of prefill rows over pages by products of warpgroups: bf16 activations, bf16 or e4m3 pages, head dims 64, 128
// and 256. Packed rows are those of attention.cuh; an item of work is (row, KV head, block of 128 packed rows).
//
// A block is warps that gather and two warpgroups that compute, 64 packed rows each. The context is cut into tiles of N
// tokens, whose keys and values lie in two buffers each: keys of even tiles, their values, keys and values of odd ones. A
// warp fills a buffer with bf16 by boxes of tensor maps; e4m3 comes as it is and is widened on its way, exactly, by two warps a
// buffer, since one alone waits for its own instructions most of the time; its scales meet the scores and the weights. A
// computing warpgroup starts the scores of a tile together with the sums over the values of the tile before, and turns scores
// into weights while those are added up; where there is memory for the next item's queries, its first scores come beside the
// last sums of an item. A row's bits depend on the row and its context only.
#pragma once
#include "attention.cuh"
#include "tiles.cuh"

struct AttendRows {
  TensorMap boxes;  // of bf16 pages: 16 tokens of a KV head's keys or values, laid out as place_token does
  Attend attend;
  int boxed;  // whether there are such boxes: pages of 16 tokens and more
};

template <int D, bool FP8>
struct RowsLayout {
  static constexpr int M = 128, N = D == 256 ? 64 : 128;
  static constexpr int EIGHT = 16 * D;  // bytes of eight tokens
  static constexpr int QUERIES = M * D * 2, BUFFER = N * D * 2;
  static constexpr int QUERY_BUFFERS = D <= 128 && !FP8 ? 2 : 1;
  static constexpr int WARPS = FP8 ? 8 : 4, SHARE = WARPS / 4;  // that gather; that fill a buffer
  // e4m3 is copied and widened by groups of tokens: how many of a tile a warp has, their bytes, and how many of them are on their way.
  static constexpr int GROUP = D == 256 ? 4 : 16, GROUPS = N / GROUP / SHARE, PART = GROUP * D, PARTS = D == 64 ? 4 : 3;
  static constexpr int BUFFERS = QUERY_BUFFERS * QUERIES, RAW = BUFFERS + 4 * BUFFER, SCALES = RAW + (FP8 ? WARPS * PARTS * PART : 0);
  static constexpr int SCALE_TILES = 4;  // tiles whose scales are held
  static constexpr int BARRIERS = SCALES + (FP8 ? SCALE_TILES * 2 * N * 4 : 0);
  static constexpr int FULL = BARRIERS, EMPTY = FULL + 32, QUERIES_FULL = EMPTY + 32, QUERIES_EMPTY = QUERIES_FULL + 16, RAW_FULL = QUERIES_EMPTY + 16;
  static constexpr int ROWS = RAW_FULL + (FP8 ? WARPS * PARTS * 8 : 0), TOTAL = ROWS + (4 * MAX_ROWS + 8) * 4;
  static constexpr int THREADS = 32 * WARPS + 256;
  static constexpr int FEW = FP8 ? 48 : 56, MANY = FP8 ? 256 - FEW : (168 * 3 - FEW) / 2;  // registers of a thread
  static constexpr int PASSES = FP8 && D == 256 ? 2 : 1, SUMS = D / 2 / PASSES;  // over the columns of sums: ptxas gives no product more than 65536 / THREADS registers
};

// Where piece c (16 bytes) of row r lies in blocks of `rows` rows of 64 bf16.
__device__ __forceinline__ uint32_t place_block(int rows, int r, int c) { return c / 8 * rows * 128 + place<128>(r, c % 8); }
// Where piece c of token r of a tile's keys or values lies: eight tokens are D / 64 such blocks.
template <int D>
__device__ __forceinline__ uint32_t place_token(int r, int c) { return r / 8 * (16 * D) + place_block(8, r % 8, c); }

// Copies the box from one of the eights of tokens of a page on; the barrier counts its bytes.
__device__ __forceinline__ void box_load(uint32_t to, const TensorMap& map, int eight, int page, uint32_t barrier) {
  asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %3, %3, %4, %5}], [%2];" ::"r"(to),
               "l"(&map), "r"(barrier), "r"(0), "r"(eight), "r"(page) : "memory");
}
__device__ __forceinline__ void bulk_load(uint32_t to, uint64_t from, int bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}

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
  // Where a group of e4m3 tokens lies, and bytes of those that exist. Lane g has the warp's group g of a tile.
  struct Source {
    uint64_t at;
    int bytes;
  };
  static constexpr uint64_t PIECEMEAL = ~0ull;  // in several pages, which are looked up when they are copied
  const AttendRows& all;
  const Attend& p;
  uint32_t base;
  uint8_t* space;
  int warp, lane;
  int part = 0, phase = 0;  // the group that is widened next is in this part
  Source source = {};       // of the tile that is filled

  __device__ __forceinline__ int buffer() const { return warp / L::SHARE; }
  __device__ __forceinline__ int value() const { return buffer() & 1; }
  __device__ __forceinline__ int page_of(int slot, int token) const { return at<const int>(p.table)[(int64_t)slot * p.table_stride + (token >> p.page_shift)]; }
  __device__ __forceinline__ bool exists(int page) const { return (unsigned)page < (unsigned)p.page_count; }
  // Tokens of a page in front of a token of the item's keys or values.
  __device__ __forceinline__ int line(const Item& i, int token) const { return (value() * p.heads + i.head) * p.page_tokens + (token & (p.page_tokens - 1)); }
  __device__ __forceinline__ uint64_t address(const Item& i, int page, int token) const { return p.pages + page * p.page_stride + (int64_t)line(i, token) * BYTES; }

  // The warp's share of the item's queries.
  __device__ __forceinline__ void queries(const Item& i, int token, int round) const {
    constexpr int PIECES = D / 8;
    const int buffer = round % L::QUERY_BUFFERS, use = round / L::QUERY_BUFFERS;
    if (use > 0) barrier_wait(base + L::QUERIES_EMPTY + buffer * 8, use - 1 & 1);
#pragma unroll 4
    for (int u = 0; u < 4 * PIECES / L::WARPS; u++) {
      const int at = u * 32 + lane, r = warp * (L::M / L::WARPS) + at / PIECES, x = at % PIECES, packed = i.block * L::M + r, j = quotient(packed, p.per_group);
      const bool exists = j < i.n;
      const bf16* from = row_of<const bf16>(p.q, token + (exists ? j : 0)) + (i.head * p.group + (exists ? packed - j * p.group : 0)) * D + x * 8;
      copy16(base + buffer * L::QUERIES + r / 64 * (L::QUERIES / 2) + place_block(64, r % 64, x), from, exists);
    }
    copy_commit();
    publish(base + L::QUERIES_FULL + buffer * 8);
  }
  // What the warp has copied is there for products.
  __device__ __forceinline__ void publish(uint32_t barrier) const {
    copy_wait<0>();
    show_products();
    barrier_arrive(barrier);
    __syncwarp();
  }

  // Sixteen tokens of bf16, or zeros behind the last one, by copies of lanes.
  __device__ __forceinline__ void fill(const Item& i, int slot, int from, uint32_t to) const {
    constexpr int PIECES = BYTES / 16;
#pragma unroll 2
    for (int u = 0; u < 16 * PIECES / 32; u++) {
      const int at_piece = u * 32 + lane, r = at_piece / PIECES, x = at_piece % PIECES, token = from + r;
      const int page = token < i.end ? page_of(slot, token) : -1;
      if (token < i.end && !exists(page)) report(p.trouble, TROUBLE_PAGE, page);
      copy16(to + place_token<D>(r, x), at<const uint8_t>(exists(page) ? address(i, page, token) + x * 16 : p.pages), exists(page));
    }
  }
  // A tile of bf16: lane g has a box of sixteen tokens copied if all of them exist.
  __device__ __forceinline__ void tile_of_boxes(const Item& i, int slot, int x, int uses) const {
    constexpr int GROUPS = N / 16, BOX = 2 * L::EIGHT;
    const int token = x * N + 16 * lane;
    const uint32_t to = base + L::BUFFERS + warp * L::BUFFER, full = base + L::FULL + warp * 8;
    const int page = lane < GROUPS && token + 16 <= i.end && all.boxed ? page_of(slot, token) : -1;
    const bool boxed = exists(page);
    if (uses > 0) barrier_wait(base + L::EMPTY + warp * 8, uses - 1 & 1);
    __syncwarp();
    const uint32_t others = ~__ballot_sync(~0u, boxed) & (1u << GROUPS) - 1;
    if (others) {
#pragma unroll 1
      for (int g = 0; g < GROUPS; g++)
        if (others >> g & 1) fill(i, slot, x * N + 16 * g, to + g * BOX);
      copy_commit();
      copy_wait<0>();
      show_products();
    }
    barrier_expect(full, boxed ? BOX : 0);
    if (boxed) box_load(to + lane * BOX, all.boxes, line(i, token) / 8, page, full);
    __syncwarp();
  }

  // The first token of one of the warp's groups of a tile.
  __device__ __forceinline__ int first_of(int group) const { return (group * L::SHARE + warp % L::SHARE) * L::GROUP; }
  __device__ __forceinline__ Source look_up(const Item& i, int slot, int x) const {
    const int token = x * N + first_of(lane);
    if (lane >= L::GROUPS || token >= i.end) return {0, 0};
    const int bytes = min(L::GROUP, i.end - token) * D;
    if (p.page_tokens < L::GROUP) return {PIECEMEAL, bytes};
    const int page = page_of(slot, token);
    if (exists(page)) return {address(i, page, token), bytes};
    report(p.trouble, TROUBLE_PAGE, page);
    return {0, 0};
  }
  // Starts the copy of a group of tile x.
  __device__ __forceinline__ void fetch(const Item& i, int slot, const Source& s, int x, int group) const {
    if (lane == group) {
      const uint32_t full = base + L::RAW_FULL + (warp * L::PARTS + part) * 8, to = base + L::RAW + (warp * L::PARTS + part) * L::PART;
      barrier_expect(full, s.bytes);
      if (s.at != PIECEMEAL) {
        if (s.bytes) bulk_load(to, s.at, s.bytes, full);
      } else {
#pragma unroll 1
        for (int done = 0; done < s.bytes; done += p.page_tokens * D) {
          const int token = x * N + first_of(group) + done / D, page = page_of(slot, token);
          if (!exists(page)) report(p.trouble, TROUBLE_PAGE, page);
          bulk_load(to + done, address(i, exists(page) ? page : 0, token), min(p.page_tokens * D, s.bytes - done), full);
        }
      }
    }
    __syncwarp();
  }
  // The piece (16 bytes) of 512 bytes that a lane widens: of eight lanes, four have pieces of a row and four others of the next
  // row, so that neither what they load nor what they store shares banks.
  __device__ __forceinline__ int piece() const {
    if (D == 64) return lane;
    const int x = lane % 4 + (lane / 4 + lane / 8 & 1) * 4;
    return D == 128 ? lane / 16 * 16 + lane / 4 % 2 * 8 + x : lane / 4 % 2 * 16 + lane / 16 * 8 + x;
  }
  // Widens a group, of which so many bytes exist; zeros for the others.
  __device__ __forceinline__ void expand(int bytes, uint32_t buffer, int first) const {
    constexpr int PIECES = D / 16;
    uint8_t* raw = space + L::RAW + (warp * L::PARTS + part) * L::PART;
    if (bytes < L::PART) {
      for (int at = bytes + lane * 16; at < L::PART; at += 512) *reinterpret_cast<uint4*>(raw + at) = make_uint4(0, 0, 0, 0);
      __syncwarp();
    }
#pragma unroll
    for (int u = 0; u < L::PART / 512; u++) {
      const int at_piece = u * 32 + piece(), r = first + at_piece / PIECES, x = at_piece % PIECES;
      const uint4 v = *reinterpret_cast<const uint4*>(raw + at_piece * 16);
      *reinterpret_cast<uint4*>(space + buffer + place_token<D>(r, 2 * x)) = make_uint4(low_bytes(v.x), high_bytes(v.x), low_bytes(v.y), high_bytes(v.y));
      *reinterpret_cast<uint4*>(space + buffer + place_token<D>(r, 2 * x + 1)) = make_uint4(low_bytes(v.z), high_bytes(v.z), low_bytes(v.w), high_bytes(v.w));
    }
    __syncwarp();
  }
  // Starts the copies of scales of the tile's keys, then of its values: four tokens a copy.
  __device__ __forceinline__ void scales(const Item& i, int slot, int x, int tile) const {
    const uint32_t to = base + L::SCALES + tile % L::SCALE_TILES * (2 * N * 4);
    const int token = x * N + 4 * lane;
    if (lane < N / 4) {
      const int page = token < i.end ? page_of(slot, token) : -1;
#pragma unroll
      for (int k = 0; k < 2; k++) {
        const int64_t line = ((int64_t)k * p.heads + i.head) * p.page_tokens + (token & (p.page_tokens - 1));
        const uint64_t from = exists(page) ? p.pages + page * p.page_stride + p.scales + line * 4 : p.pages;
        copy_some(to + (k * N + 4 * lane) * 4, at<const uint8_t>(from), exists(page) ? min(i.end - token, 4) * 4 : 0);
      }
    }
    copy_commit();
  }
  // Starts the copies of the first groups of an item's tile.
  __device__ __forceinline__ void first_groups(const Item& i, int slot, int x) {
    source = look_up(i, slot, x);
#pragma unroll 1
    for (int group = 0; group < L::PARTS; group++) {
      fetch(i, slot, source, x, group);
      if (++part == L::PARTS) part = 0;
    }
  }
  // A tile of e4m3, whose first groups are on their way; those of the warp's next tile follow.
  __device__ __forceinline__ void tile_of_bytes(const Item& i, int slot, int x, int tile, int uses) {
    const bool more = x + 2 < i.tiles;
    const Source next = more ? look_up(i, slot, x + 2) : Source{0, 0};
    if (uses > 0) barrier_wait(base + L::EMPTY + buffer() * 8, uses - 1 & 1);
    __syncwarp();
    if (!value() && warp % L::SHARE == 0) scales(i, slot, x, tile);
#pragma unroll 1
    for (int group = 0; group < L::GROUPS; group++) {
      barrier_wait(base + L::RAW_FULL + (warp * L::PARTS + part) * 8, phase);
      expand(__shfl_sync(~0u, source.bytes, group), L::BUFFERS + buffer() * L::BUFFER, first_of(group));
      const int ahead = group + L::PARTS;
      if (ahead < L::GROUPS)
        fetch(i, slot, source, x, ahead);
      else if (more)
        fetch(i, slot, next, x + 2, ahead - L::GROUPS);
      if (++part == L::PARTS) part = 0, phase ^= 1;
    }
    source = next;
    publish(base + L::FULL + buffer() * 8);
  }

  __device__ __forceinline__ void run(const RowTables& t) {
    int tiles = 0, uses = 0;
#pragma unroll 1
    for (int round = 0;; round++) {
      const Item i = item_of<N>(p, t, round);
      if (!i.tiles) return;
      const int start = at<const int>(p.start)[i.row], slot = t.slot[i.row], first = (tiles ^ buffer() >> 1) & 1;
      // Buffers of the item's first tile are free before those of its queries, the others only when the item before has ended.
      bool asked = L::QUERY_BUFFERS > 1 || first > 0;
      if (FP8 && first < i.tiles) first_groups(i, slot, first);
      if (asked) queries(i, start, round);
#pragma unroll 1
      for (int x = first; x < i.tiles; x += 2) {
        if constexpr (FP8)
          tile_of_bytes(i, slot, x, tiles + x, uses++);
        else
          tile_of_boxes(i, slot, x, uses++);
        if (!asked) asked = true, queries(i, start, round);
      }
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
  float o[L::PASSES][L::SUMS], s[N / 2], m[2], l[2], shrink[2];
  uint32_t w[N / 4];
  int limit[2];  // last token that the row sees
  int queries;   // where the item's lie

  __device__ __forceinline__ void scores(int tile) {
    const uint32_t q = here(operand(base + queries + half * (L::QUERIES / 2))), k = operand(base + L::BUFFERS + (tile & 1) * 2 * L::BUFFER);
    product_fence();
#pragma unroll
    for (int x = 0; x < D / 16; x++) products<L::EIGHT>(s, further(q, x / 4 * (64 * 128) + x % 4 * 32), further(k, x / 4 * 1024 + x % 4 * 32), x > 0);
    product_commit();
  }
  __device__ __forceinline__ void add_up(int tile, bool first) {
    const uint32_t v = operand(base + L::BUFFERS + ((tile & 1) * 2 + 1) * L::BUFFER, 1024);
    product_fence();
#pragma unroll
    for (int x = 0; x < N / 16; x++)
#pragma unroll
      for (int b = 0; b < L::PASSES; b++) sums<L::EIGHT>(o[b], w + 4 * x, further(v, x * 2 * L::EIGHT + b * (L::EIGHT / L::PASSES)), x > 0 || !first);
    product_commit();
  }
  __device__ __forceinline__ void wait_full(int tile, int part) const { barrier_wait(base + L::FULL + ((tile & 1) * 2 + part) * 8, tile >> 1 & 1); }
  // The warp's products have read what they read.
  __device__ __forceinline__ void release(uint32_t barrier) const {
    __syncwarp();
    if (g + c == 0) barrier_arrive(base + barrier);
  }
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
  __device__ __forceinline__ void pack(int tile) {
    if (FP8) scale_values(tile);
#pragma unroll
    for (int j = 0; j < N / 4; j++) w[j] = pack_bf16(s[2 * j], s[2 * j + 1]);
  }
  __device__ __forceinline__ float sum_of(int j) const { return o[j / L::SUMS][j % L::SUMS]; }
  __device__ __forceinline__ void pin_sums() {
#pragma unroll
    for (int b = 0; b < L::PASSES; b++) pin(o[b]);
  }
  __device__ __forceinline__ void shrink_sums() {
    if (!__any_sync(~0u, shrink[0] != 1.f || shrink[1] != 1.f)) return;
#pragma unroll
    for (int j = 0; j < D / 2; j++) o[j / L::SUMS][j % L::SUMS] *= shrink[j / 2 % 2];
  }
  template <bool FIRST, bool HIDE>
  __device__ __forceinline__ void weigh_tile(int tile, int from) {
    if (FP8) scale_keys(tile);
    if (HIDE) hide(from);
    weigh<FIRST>();
    pin(s);
    if (l[0] + l[1] < 0) __trap();  // never; a branch, over which ptxas does not move the wait that follows
  }
  // The scores of the item's tile x beside the sums of the tile before it.
  template <bool HIDE>
  __device__ __forceinline__ void step(int tile, int x) {
    wait_full(tile, 0);
    wait_full(tile - 1, 1);
    pin(s);
    pin_sums();
    scores(tile);
    add_up(tile - 1, x == 1);
    product_wait<1>();
    pin(s);
    release(tile, 0);
    weigh_tile<false, HIDE>(tile, x * N);
    product_wait<0>();
    pin_sums();
    release(tile - 1, 1);
    shrink_sums();
    pack(tile);
  }

  // Waits for what the scores of an item's first tile need.
  __device__ __forceinline__ void wait_first(int tiles, int round) {
    const int buffer = round % L::QUERY_BUFFERS;
    queries = buffer * L::QUERIES;
    barrier_wait(base + L::QUERIES_FULL + buffer * 8, round / L::QUERY_BUFFERS & 1);
    wait_full(tiles, 0);
  }
  // An item whose first scores are there, but for the sums of the last tile.
  __device__ __forceinline__ void item(const Item& i, int tiles, int round) {
    const int first_row = i.block * L::M + half * 64, least = i.position + min(quotient(first_row, p.per_group), i.n - 1);
#pragma unroll
    for (int x = 0; x < 2; x++) limit[x] = i.position + min(quotient(first_row + warp * 16 + x * 8 + g, p.per_group), i.n - 1);
    release(tiles, 0);
    weigh_tile<true, true>(tiles, 0);
    pack(tiles);
    int x = 1;
#pragma unroll 1
    for (; x < min(i.tiles, (least + 1) / N); x++) step<false>(tiles + x, x);  // tiles that all rows see
#pragma unroll 1
    for (; x < i.tiles; x++) step<true>(tiles + x, x);
    release(L::QUERIES_EMPTY + round % L::QUERY_BUFFERS * 8);
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
        for (int r = 0; r < 4; r++) v[r][0] = sum_of(16 * b + 4 * r + 2 * x) * one, v[r][1] = sum_of(16 * b + 4 * r + 2 * x + 1) * one;
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
    constexpr bool AHEAD = L::QUERY_BUFFERS > 1;  // the next item's first scores beside the last sums
    Item i = item_of<N>(p, t, 0);
    if (!i.tiles) return;
    wait_first(0, 0);
    pin(s);
    scores(0);
    product_wait<0>();
    pin(s);
#pragma unroll 1
    for (int round = 0;; round++) {
      item(i, tiles, round);
      const int start = at<const int>(p.start)[i.row], last = tiles + i.tiles - 1;
      const Item next = item_of<N>(p, t, round + 1);
      tiles += i.tiles;
      wait_full(last, 1);
      if (AHEAD && next.tiles) wait_first(tiles, round + 1);
      pin(s);
      pin_sums();
      add_up(last, i.tiles == 1);
      if (AHEAD) {  // of what is there, if there is no next item
        scores(tiles);
        product_wait<1>();
      } else {
        product_wait<0>();
      }
      pin_sums();
      release(last, 1);
      store(i, start);
      if (!next.tiles) break;
      if (!AHEAD) {
        wait_first(tiles, round + 1);
        pin(s);
        scores(tiles);
      }
      product_wait<0>();
      pin(s);
      i = next;
    }
    product_wait<0>();
  }
};

template <int D, bool FP8>
__device__ __forceinline__ void attend_rows(const AttendRows& all) {
  using L = RowsLayout<D, FP8>;
  const Attend& p = all.attend;
  extern __shared__ __align__(1024) uint8_t space[];
  const uint32_t base = shared_address(space);
  const RowTables rows = row_tables(space + L::ROWS);
  expect_shared(L::TOTAL);
  if (threadIdx.x == 0) {
    for (int i = 0; i < 4; i++) barrier_open(base + L::FULL + i * 8, 32 * L::SHARE), barrier_open(base + L::EMPTY + i * 8, 8);
    for (int i = 0; i < L::QUERY_BUFFERS; i++) barrier_open(base + L::QUERIES_FULL + i * 8, 32 * L::WARPS), barrier_open(base + L::QUERIES_EMPTY + i * 8, 8);
    for (int i = 0; i < (FP8 ? L::WARPS * L::PARTS : 0); i++) barrier_open(base + L::RAW_FULL + i * 8, 1);
    if (!FP8) tile_prefetch(all.boxes);
    barriers_opened();
  }
  pdl_begin();
  tile_fence();
  list_rows<L::M, false>(p, rows);
  if (threadIdx.x < 32 * L::WARPS) {
    fewer_registers<L::FEW>();
    Gather<D, FP8> gather{all, p, base, space, (int)threadIdx.x / 32, (int)threadIdx.x % 32};
    gather.run(rows);
  } else {
    more_registers<L::MANY>();
    const int lane = threadIdx.x % 32;
    Compute<D, FP8> compute{p, base, space, ((int)threadIdx.x - 32 * L::WARPS) / 128, (int)threadIdx.x / 32 % 4, lane / 4, lane % 4};
    compute.run(rows);
  }
}

#define ATTEND_ROWS(name, D, FP8)                                                                  \
  static_assert(RowsLayout<D, FP8>::TOTAL <= 227 * 1024, "shared memory of " #name);              \
  extern "C" __global__ void __launch_bounds__(RowsLayout<D, FP8>::THREADS, 1) name(PARAMS(AttendRows, p)) { attend_rows<D, FP8>(p); }
