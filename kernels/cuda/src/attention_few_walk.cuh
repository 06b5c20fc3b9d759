// How a warp of attention_few.cuh walks over steps of tokens, and how these come into its ring.
#pragma once
#include "attention.cuh"

// Sixteens of tokens of a warp's turn lie APART from each other: with PAIRS its next turn's are taken along, one sixteen after
// the other, so that bits are those of a step of sixteen.
template <int TS, int WARPS, bool PAIRS>
constexpr int APART = PAIRS ? 16 * WARPS : 16;

// TS tokens of an item, as a warp's ring holds them.
struct Step {
  int row, head, block, chunk;  // row -1: there is no more work; chunk -1: the whole context
  int from, end;                // tokens; end: behind the last of the item
  int first, last;              // of the warp's steps of the item
};

// A packed row's query.
template <int D>
__device__ __forceinline__ const bf16* query(const Attend& p, int row, int head, int packed) {
  const int j = quotient(packed, p.per_group);
  return row_of<const bf16>(p.q, p.first + row * p.t + j) + (head * p.group + packed - j * p.group) * D;
}

// Walks a warp's steps. All lanes hold the same.
template <int M, int TS, int WARPS, bool PAIRS, bool OWN>
struct FewWalk {
  static constexpr int NEXT = APART<TS, WARPS, PAIRS>, TURN = PAIRS ? 16 : TS;  // tokens of a warp in front of the next warp's
  static constexpr int ROUND = OWN ? TS : WARPS * TS, SIXTEENS = TS / 16;
  static_assert(!(PAIRS && OWN), "a warp's next turn is what follows");
  int lane, warp;
  int item, row, head, block, chunk, from, end, slot;
  bool first;
  int looked_up;  // pages of 16 tokens and more: lane i has that of the i-th sixteen from the last lookup on; smaller ones: of token i
  int sixteen;    // lane that has the page of the step's first sixteen

  // Tokens of a turn of all warps in front of this one's.
  __device__ __forceinline__ int ahead() const { return OWN ? 0 : warp * TURN; }
  // The last row whose first item is not behind `item`.
  __device__ __forceinline__ int find(const Attend& p, const RowTables& t) const {
    constexpr int EACH = MAX_ROWS / 32;
    const int coarse = lane * EACH;
    const int lo = (__popc(__ballot_sync(~0u, coarse < p.count && t.item[min(coarse, p.count)] <= item)) - 1) * EACH;
    const int r = lo + lane;
    return lo + __popc(__ballot_sync(~0u, lane < EACH && r < p.count && t.item[min(r, p.count)] <= item)) - 1;
  }
  __device__ __forceinline__ void open(const Attend& p, const RowTables& t) {
    first = true, sixteen = 0;
    if (item >= t.item[p.count]) {
      row = -1, from = end = 0;
      return;
    }
    row = find(p, t), slot = t.slot[row];
    const int n = t.n[row], context = t.position[row] + n, blocks = (n * p.group + M - 1) / M;
    const int rest = item - t.item[row];
    chunk = quotient(rest, p.per_head), head = rest - chunk * (OWN ? p.heads / WARPS : p.heads), block = 0;
    if (OWN) head = head * WARPS + warp;
    if (blocks > 1) block = chunk % blocks, chunk /= blocks;
    const int last = min(quotient(block * M + M - 1, p.per_group), n - 1), size = chunk_of(p, context);
    from = chunk * size, end = min(context - n + last + 1, from + size);
    from += ahead();
    if (size >= context) chunk = -1;
  }
  __device__ __forceinline__ bool last() const { return from + ROUND - ahead() >= end; }
  // The token of number i of the step.
  __device__ __forceinline__ int token(int i) const { return from + i / 16 * NEXT + i % 16; }
  __device__ __forceinline__ void start(const Attend& p, const RowTables& t) {
    item = blockIdx.x, head = block = chunk = slot = 0;
    open(p, t);
  }
  __device__ __forceinline__ void next(const Attend& p, const RowTables& t) {
    if (row < 0) return;
    if (!last()) {
      from += ROUND, first = false, sixteen = (sixteen + SIXTEENS) % 32;
      return;
    }
    item += gridDim.x;
    open(p, t);
  }
  // Looks pages up, 32 sixteens of the item at once, or the step's tokens one by one. Nothing waits for them here.
  __device__ __forceinline__ void look_up(const Attend& p) {
    const bool small = p.page_tokens < 16;
    if (row < 0 || sixteen > 0 && !small) return;
    const int t = small ? (lane < TS ? token(lane) : end) : from + lane / SIXTEENS * ROUND + lane % SIXTEENS * NEXT;
    looked_up = t < end ? at<const int>(p.table)[(int64_t)slot * p.table_stride + (t >> p.page_shift)] : -1;
  }
  // What was looked up for a token that exists, -1 if there is no such page.
  __device__ __forceinline__ int check(const Attend& p, int id) const {
    if ((unsigned)id < (unsigned)p.page_count) return id;
    report(p.trouble, TROUBLE_PAGE, id);
    return -1;
  }
  // The page of the step's token that is this lane's, -1 if there is none.
  __device__ __forceinline__ int page(const Attend& p) const {
    const bool exists = lane < TS && token(lane) < end;
    const int id = p.page_tokens < 16 ? looked_up : __shfl_sync(~0u, looked_up, sixteen + lane % TS / 16);
    return exists ? check(p, id) : -1;
  }
  // Starts to load the step's keys and values, and with e4m3 their scales.
  template <int D, int BYTES, bool FP8>
  __device__ __forceinline__ void load(const Attend& p, const RowTables& t, Step* step, uint32_t to) const {
    if (lane == 0) *step = Step{row, head, block, chunk, from, end, first, last()};
    if (row < 0) return;
    if (first && (OWN || warp == 0)) fetch_queries<D>(p, t.n[row]);
    if (load_whole<BYTES, FP8>(p, to)) return;
    const int id = page(p);
    if (FP8) scales(p, id, to + 2 * TS * BYTES);
    load_tokens<BYTES>(p, id, to);
  }
  // The same for whole sixteens that lie side by side in pages that exist; false: not all do.
  template <int BYTES, bool FP8>
  __device__ __forceinline__ bool load_whole(const Attend& p, uint32_t to) const {
    constexpr int PIECES = BYTES / 16, EACH = 32 / PIECES;  // rows that a warp copies at once
    if (p.page_tokens < 16 || token(TS - 1) >= end) return false;
    int of[SIXTEENS];
    bool exist = true;
#pragma unroll
    for (int b = 0; b < SIXTEENS; b++) of[b] = __shfl_sync(~0u, looked_up, sixteen + b), exist &= (unsigned)of[b] < (unsigned)p.page_count;
    if (!exist) return false;
    const uint64_t values = (uint64_t)(p.heads * p.page_tokens) * BYTES;
    const uint32_t place0 = to + place<BYTES>(lane / PIECES, lane % PIECES);
#pragma unroll
    for (int b = 0; b < SIXTEENS; b++) {
      const int inside = from + b * NEXT & p.page_tokens - 1;
      const uint8_t* page = at<const uint8_t>(p.pages) + (uint64_t)of[b] * p.page_stride;
      const uint8_t* keys = page + (head * p.page_tokens + inside) * BYTES + lane * 16;
#pragma unroll
      for (int u = 0; u < PIECES / 2; u++) {
        const uint32_t here = (place0 ^ (BYTES >= 128 ? (u * EACH & 7) << 4 : 0)) + b * 16 * BYTES + u * 512;
        copy16(here, keys + u * 512);
        copy16(here + TS * BYTES, keys + values + u * 512);
      }
      const int part = lane / 4, four = lane % 4 * 4;  // scales of four tokens
      if (FP8 && lane < 8)
        copy16(to + 2 * TS * BYTES + (part * TS + b * 16 + four) * 4, page + p.scales + ((part * p.heads + head) * p.page_tokens + inside + four) * 4);
    }
    return true;
  }
  // The same token by token; id: the page of this lane's.
  template <int BYTES>
  __device__ __forceinline__ void load_tokens(const Attend& p, int id, uint32_t to) const {
    constexpr int PIECES = BYTES / 16, EACH = 32 / PIECES;
    const uint64_t values = (uint64_t)(p.heads * p.page_tokens) * BYTES;
    const int line = head * p.page_tokens + (token(lane) & p.page_tokens - 1);
    const uint32_t mine = id < 0 ? NOWHERE : (uint32_t)(id * (p.page_stride / UNIT)) + line * (BYTES / UNIT);
    const uint8_t* keys = at<const uint8_t>(p.pages) + lane % PIECES * 16;
#pragma unroll 1
    for (int u = 0; u < TS / EACH; u++) {
      const int r = u * EACH + lane / PIECES;
      const uint32_t where = __shfl_sync(~0u, mine, r);
      const bool exists = where != NOWHERE;
      const uint64_t at_line = (uint64_t)(exists ? where : 0) * UNIT;
      copy16(to + place<BYTES>(r, lane % PIECES), keys + at_line, exists);
      copy16(to + TS * BYTES + place<BYTES>(r, lane % PIECES), keys + values + at_line, exists);
    }
  }
  // Brings the item's queries into the L2 cache.
  template <int D>
  __device__ __forceinline__ void fetch_queries(const Attend& p, int n) const {
    constexpr int LINES = D / 64;  // of 128 bytes, of a query
#pragma unroll 1
    for (int i = lane; i < M * LINES; i += 32) {
      const int packed = block * M + i / LINES;
      if (packed < n * p.group) prefetch_l2(query<D>(p, row, head, packed) + i % LINES * 64);
    }
  }
  // Scales of four tokens, which are of one page.
  __device__ __forceinline__ void scales(const Attend& p, int id, uint32_t to) const {
    const int r = lane * 4 % TS, part = lane * 4 / TS, of = __shfl_sync(~0u, id, r);
    if (lane >= TS / 2) return;
    const int64_t line = (part * p.heads + head) * p.page_tokens + (token(r) & p.page_tokens - 1);
    const uint8_t* source = at<const uint8_t>(p.pages) + (of >= 0 ? of * p.page_stride + p.scales + line * 4 : 0);
    copy_some(to + lane * 16, source, of >= 0 ? min(end - token(r), 4) * 4 : 0);
  }
};
