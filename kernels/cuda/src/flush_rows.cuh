// Which rows of a step a block takes: rows that flush take several times what the others do.
#pragma once
#include "replay_low.cuh"

// A row of a step with its cursors.
struct StepRow {
  int row, n, slot, h, origin, src, dst;
  // now: all are asked for together; else the compiler has some when they are needed, which takes less registers.
  template <class P>
  __device__ __forceinline__ StepRow(const P& p, int row, bool now) : row(row), n(at<int>(p.rows.n)[row]), slot(at<int>(p.rows.slot)[row]) {
    const int s = n > 0 ? slot : 0;  // of a row without tokens there may be none
    if (!now)
      h = at<int>(p.cursors.h)[s], origin = at<int>(p.cursors.origin)[s], src = at<int>(p.cursors.src)[s], dst = at<int>(p.cursors.dst)[s];
    else
      h = load_now(p.cursors.h, s), src = load_now(p.cursors.src, s), origin = load_now(p.cursors.origin, s), dst = load_now(p.cursors.dst, s);
  }
  __device__ bool flushes(const Replay& state) const { return n > 0 && h + n > state.window; }
};

// Which of 256 rows from `from` on flush, a bit each: lanes 0 .. 7 have 32 rows.
template <class P>
__device__ __forceinline__ uint32_t find_flushes(const P& p, int from, int lane) {
  int n[8], slot[8];
  uint32_t own = 0;
#pragma unroll
  for (int k = 0; k < 8; k++) {
    const int row = min(from + k * 32 + lane, p.row1 - 1);
    n[k] = at<int>(p.rows.n)[row], slot[k] = at<int>(p.rows.slot)[row];
  }
#pragma unroll
  for (int k = 0; k < 8; k++) {
    const bool flushes = from + k * 32 + lane < p.row1 && n[k] > 0 && at<int>(p.cursors.h)[n[k] > 0 ? slot[k] : 0] + n[k] > p.state.window;
    const uint32_t mask = __ballot_sync(~0u, flushes);
    if (lane == k) own = mask;
  }
  return own;
}
// The bits of lanes up to this one, of eight.
__device__ __forceinline__ int count_eight(uint32_t mask, int lane) {
  int count = __popc(mask);
#pragma unroll
  for (int o = 1; o < 8; o *= 2) {
    const int before = __shfl_up_sync(~0u, count, o);
    if (lane >= o) count += before;
  }
  return count;
}

// A flush takes several times what a read takes. So that none begins last, the first gridDim.z - rows blocks in z take the
// rows that flush, in their order; who finds no such row has nothing to do, nor has the block of a row that was taken. The
// row of a block without one of its own: the wanted-th that flushes, or -1.
template <class P>
__device__ __forceinline__ int flushing_row(const P& p, int wanted, int lane) {
#pragma unroll 1
  for (int from = p.row0; from < p.row1; from += 256) {
    const uint32_t own = find_flushes(p, from, lane);
    const int until = count_eight(own, lane), all = __shfl_sync(~0u, until, 7);
    if (wanted >= all) {
      wanted -= all;
      continue;
    }
    const int k = __ffs(__ballot_sync(~0u, wanted < until)) - 1;
    const uint32_t mask = __shfl_sync(~0u, own, k);
    wanted -= __shfl_sync(~0u, until, k) - __popc(mask);
    return from + k * 32 + __ffs(__ballot_sync(~0u, (mask >> lane & 1) && __popc(mask & ((1u << lane) - 1)) == wanted)) - 1;
  }
  return -1;
}
// Whether a row that flushes is among the first so many that do.
template <class P>
__device__ __forceinline__ bool taken(const P& p, int row, int first, int lane) {
  int before = 0;
#pragma unroll 1
  for (int from = p.row0; from < row; from += 256) {
    const int rows = row - from - 32 * lane;  // of this lane that are in front
    const uint32_t own = find_flushes(p, from, lane);
    before += __shfl_sync(~0u, count_eight(rows >= 32 ? own : rows > 0 ? own & ((1u << rows) - 1) : 0u, lane), 7);
  }
  return before < first;
}
// The row of this block, or -1.
template <class P>
__device__ __forceinline__ int row_of_block(const P& p, int lane) {
  const int first = gridDim.z - (p.row1 - p.row0), own = (int)blockIdx.z - first;
  return own < 0 ? flushing_row(p, blockIdx.z, lane) : p.row0 + own;
}
// The same where first blocks are there for some of the flushes alone, or none: the others begin with the last row, so that
// those flushes are the ones that would begin last.
template <class P>
__device__ __forceinline__ bool has_first(const P& p) { return (int)gridDim.z > p.row1 - p.row0; }
template <class P>
__device__ __forceinline__ int row_from_last(const P& p, int lane) {
  const int first = gridDim.z - (p.row1 - p.row0), own = (int)blockIdx.z - first;
  return own < 0 ? flushing_row(p, blockIdx.z, lane) : p.row1 - 1 - own;
}
// Whether another block has the row.
template <class P>
__device__ __forceinline__ bool has_another(const P& p, const StepRow& row, int lane) {
  const int first = gridDim.z - (p.row1 - p.row0);
  return (int)blockIdx.z >= first && row.flushes(p.state) && taken(p, row.row, first, lane);
}

// Calls step(row) for this block's rows of those from row0 to row1.
//
// Reads start when all blocks of the flushes in front have waited for the kernel in front of those: what that one wrote is
// there, nothing that the flushes write concerns them, and the last of them waits so that their end is that of both.
template <class C, class P, typename Step>
__device__ __forceinline__ void for_rows(const P& p, int lane, Step step) {
  if constexpr (C::ROLE == READS) {
    step(p.row0 + (int)blockIdx.z);
    if (blockIdx.x + 1 == gridDim.x && blockIdx.y + 1 == gridDim.y && blockIdx.z + 1 == gridDim.z) pdl_wait();
  } else if constexpr (C::ROLE == FLUSHES) {
#pragma unroll 1
    for (int i = blockIdx.z;; i += gridDim.z) {
      const int row = flushing_row(p, i, lane);
      if (row < 0) return pdl_wait();  // no launch may end before the one in front
      step(row);
      __syncthreads();
    }
  } else {
    const int row = row_of_block(p, lane);
    if (row < 0) return pdl_wait();
    step(row);
  }
}
