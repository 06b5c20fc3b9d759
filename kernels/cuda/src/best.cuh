// The best token of a row of logits, by a cluster of BEST_BLOCKS blocks that read it once.
#pragma once
#include <cooperative_groups.h>

#include "order.cuh"

constexpr int BEST_BLOCKS = 8;

// Best is a thread's best token so far. Tokens are offered in order of id, so that of equal logits the lowest id stays; NaN
// is never more.
struct Best {
  float logit;
  int id;
  __device__ __forceinline__ void offer(float v, int i) {
    if (v > logit) logit = v, id = i;
  }
  // The vectors begin at token first; a better token is rare.
  __device__ __forceinline__ void offer(const float4& v, int vector, int first) {
    if (fmaxf(fmaxf(v.x, v.y), fmaxf(v.z, v.w)) > logit) {
      const int i = first + 4 * vector;
      offer(v.x, i), offer(v.y, i + 1), offer(v.z, i + 2), offer(v.w, i + 3);
    }
  }
};

// slice_best is the place of a thread's best token of [from, to), of which a block reads every one; 0 if it has none.
template <int THREADS>
__device__ uint64_t slice_best(const float* logits, int from, int to) {
  constexpr int BATCH = 4;  // loads in flight
  const int lead = min(to - from, (int)(-(reinterpret_cast<uint64_t>(logits + from) / 4) & 3)), t = threadIdx.x;
  const int first = from + lead, vectors = (to - first) / 4, rest = first + 4 * vectors;
  const int mine = t < lead ? from + t : t < vectors ? first + 4 * t : rest + t;  // this thread's first token
  if (mine >= to) return 0;
  Best best = {comparable(logits[mine]), mine};
  if (t < lead) best.offer(logits[mine], mine);
  const float4* v = reinterpret_cast<const float4*>(logits + first);
  int i = t;
  for (; i + (BATCH - 1) * THREADS < vectors; i += BATCH * THREADS) {
    float4 batch[BATCH];
#pragma unroll
    for (int k = 0; k < BATCH; k++) batch[k] = v[i + k * THREADS];
#pragma unroll
    for (int k = 0; k < BATCH; k++) best.offer(batch[k], i + k * THREADS, first);
  }
  for (; i < vectors; i += THREADS) best.offer(v[i], i, first);
  if (rest + t < to) best.offer(logits[rest + t], rest + t);
  return place_of(comparable(best.logit), best.id);
}

// row_best is the place of the best of all tokens, in every thread of the first warp of each block. Every block has to wait
// for the cluster before it ends: others read its memory.
template <int THREADS>
__device__ uint64_t row_best(const float* logits, int vocab) {
  __shared__ uint64_t warps[THREADS / 32], mine;
  namespace cg = cooperative_groups;
  const int rank = (int)cg::this_cluster().block_rank(), slice = ((vocab + BEST_BLOCKS - 1) / BEST_BLOCKS + 31) / 32 * 32;
  const int from = min(vocab, rank * slice);
  uint64_t best = warp_best(slice_best<THREADS>(logits, from, min(vocab, from + slice)));
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = best;
  __syncthreads();
  if (threadIdx.x < 32) {
    best = warp_best(threadIdx.x < THREADS / 32 ? warps[threadIdx.x] : 0);
    if (threadIdx.x == 0) mine = best;
  }
  cg::this_cluster().sync();
  if (threadIdx.x < 32) best = warp_best(threadIdx.x < BEST_BLOCKS ? *cg::this_cluster().map_shared_rank(&mine, threadIdx.x) : 0);
  return best;
}
