// DraftBegin, DraftNext and DraftLookup.
#include <cooperative_groups.h>

#include "best.cuh"
#include "common.cuh"
#include "order.cuh"
#include "slots.cuh"
namespace cg = cooperative_groups;

struct Committed {
  Rows step, prefill;
  uint64_t ids, pos, sampled, final, accepted, want;
  Slots slots;
  int64_t sample_first;
};
struct Drafting {
  uint64_t pairs, base, ahead;
};

// One row of a step behind its commit: count pairs from token first on.
struct Pairs {
  int slot, first, n, count, final, want;
  bool prefill, goes;  // goes: the sequence may go on behind them
};

__device__ Pairs pairs_of(const Committed& c, int r) {
  Pairs p;
  p.prefill = r >= c.step.count;
  p.want = at<int>(c.want)[r];
  if (!p.prefill) {
    p.slot = at<int>(c.step.slot)[r];
    p.n = at<int>(c.step.n)[r];
    p.first = c.step.first + r * c.step.t;
    p.count = at<int>(c.accepted)[r];
    p.final = -1;
  } else {
    int q = r - c.step.count;
    p.slot = at<int>(c.prefill.slot)[q];
    p.n = p.count = at<int>(c.prefill.n)[q];
    p.first = at<int>(c.prefill.start)[q];
    p.final = at<int>(c.final)[q];
  }
  p.goes = p.n > 0 && (!p.prefill || p.final >= 0) && at<int>(c.slots.active)[p.slot] != 0;
  return p;
}

// The token behind pair j; following for the end of a chunk that is not the prompt's.
__device__ int next_of(const Committed& c, const Pairs& p, int r, int j, int following) {
  if (!p.prefill) return at<int>(c.sampled)[c.sample_first + r * c.step.t + j];
  if (j + 1 < p.n) return at<int>(c.ids)[p.first + j + 1];
  return p.final >= 0 ? at<int>(c.sampled)[p.final] : following;
}

struct DraftBegin {
  Committed c;
  Drafting d;
  uint64_t following, next, n, last, left;
};
extern "C" __global__ void __launch_bounds__(128) draft_begin(PARAMS(DraftBegin, p)) {
  pdl_begin();
  const int r = blockIdx.x;
  const Pairs row = pairs_of(p.c, r);
  const int count = !row.prefill && row.want <= 0 ? 0 : row.count, span = row.prefill ? row.n : p.c.step.t;
  const int following = row.prefill ? max(0, at<int>(p.following)[r - p.c.step.count]) : 0;
  for (int j = threadIdx.x; j < span; j += 128) at<int>(p.next)[row.first + j] = j < count ? next_of(p.c, row, r, j, following) : 0;
  if (threadIdx.x > 0) return;
  at<int>(p.n)[r] = count;
  at<int>(p.last)[r] = count > 0 ? row.first + count - 1 : -1;
  at<int>(p.left)[r] = count > 0 && row.goes ? max(0, row.want) : 0;
  if (count == 0) return;
  int pairs = at<int>(p.d.pairs)[row.slot];
  at<int>(p.d.base)[row.slot] = pairs;
  at<int>(p.d.pairs)[row.slot] = pairs + count;
  at<int>(p.d.ahead)[row.slot] = 0;
}

struct DraftNext {
  Mat logits;
  uint64_t slot, last, left, pos, drafts, draft_count, ahead, n, next, next_pos;
  int vocab, index, draft_stride, pad;
};
constexpr int NEXT_THREADS = 128;

extern "C" __global__ void __cluster_dims__(BEST_BLOCKS, 1, 1) __launch_bounds__(NEXT_THREADS, 2048 / NEXT_THREADS) draft_next(PARAMS(DraftNext, p)) {
  pdl_begin();
  const int r = blockIdx.x / BEST_BLOCKS, left = at<int>(p.left)[r];
  const bool writes = blockIdx.x % BEST_BLOCKS == 0 && threadIdx.x == 0;
  int n = 0, next = 0, place = -1;
  if (left > p.index) {
    const int id = id_of(row_best<NEXT_THREADS>(row_of<const float>(p.logits, r), p.vocab)), slot = at<int>(p.slot)[r];
    if (writes) {
      at<int>(p.drafts)[slot * p.draft_stride + p.index] = id;
      at<int>(p.draft_count)[slot] = p.index + 1;
      at<int>(p.ahead)[slot] = p.index;
    }
    if (left > p.index + 1) n = 1, next = id, place = at<int>(p.pos)[at<int>(p.last)[r]] + 1 + p.index;
  }
  if (writes) {
    at<int>(p.n)[r] = n;
    at<int>(p.next)[r] = next;
    at<int>(p.next_pos)[r] = place;
  }
  cg::this_cluster().sync();  // nobody leaves while others read its memory
}

struct DraftLookup {
  Committed c;
  uint64_t history;
  int64_t stride;
  int least, most;
};
extern "C" __global__ void __launch_bounds__(1024) draft_lookup(PARAMS(DraftLookup, p)) {
  __shared__ uint64_t warps[32];
  pdl_begin();
  const int r = blockIdx.x;
  const Pairs row = pairs_of(p.c, r);
  if (row.want < 0 || row.count == 0) return;
  const int first = at<int>(p.c.pos)[row.first], known = first + row.count + 1;
  int* tokens = at<int>(p.history) + row.slot * p.stride;
  if (row.prefill && threadIdx.x == 0) tokens[first] = at<int>(p.c.ids)[row.first];
  for (int j = threadIdx.x; j < row.count; j += 1024)
    if (!row.prefill || j + 1 < row.n || row.final >= 0) tokens[first + 1 + j] = next_of(p.c, row, r, j, 0);
  if (row.want == 0 || !row.goes) return;
  __syncthreads();

  uint64_t best = 0;  // the longest match, of these the latest end
  for (int e = threadIdx.x; e < known - 1; e += 1024) {
    int m = 0;
    while (m < p.most && m <= e && tokens[e - m] == tokens[known - 1 - m]) m++;
    if (m >= p.least) {
      uint64_t match = (uint64_t)m << 32 | (uint32_t)e;
      best = match > best ? match : best;
    }
  }
  best = warp_best(best);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = best;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  best = warp_best(warps[threadIdx.x]);
  if (best == 0 || threadIdx.x > 0) return;
  int* drafts = at<int>(p.c.slots.drafts) + row.slot * p.c.slots.draft_stride;
  for (int i = 0, from = (int)(uint32_t)best + 1; i < row.want; i++, from++) drafts[i] = from < known ? tokens[from] : drafts[from - known];
  at<int>(p.c.slots.draft_count)[row.slot] = row.want;
}
