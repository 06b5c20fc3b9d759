// The tiles of step attention: which tokens of which item a block computes next.
#pragma once
#include "attention.cuh"

// What a tile is, written one iteration before its loads.
struct Tile {
  int row, head, block, chunk;  // row -1: there is no more work; chunk -1: the whole context
  int from, end;                // tokens; end: behind the last of the item
  int first, last;              // of its item
  int queries;                  // where the item's queries lie
  uint32_t at[TILE];            // keys of the tokens in units of UNIT bytes, NOWHERE for none
  int page[TILE];
};
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
    const int size = chunk_of(p, position + n);
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
