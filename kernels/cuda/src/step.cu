// Begin: one thread a row. Commit: one warp a row; the cursor rule of kernels.Cursor.
#include "common.cuh"
#include "slots.cuh"

struct Begin {
  Rows step, prefill;
  uint64_t want, prefill_ids;
  Cursors cursors;
  Slots slots;
  uint64_t ids, pos;
};

__device__ void begin_step(const Begin& p, int r) {
  int slot = at<int>(p.step.slot)[r], n = 0;
  int position = at<int>(p.cursors.origin)[slot] + at<int>(p.cursors.h)[slot];
  if (at<int>(p.slots.active)[slot] != 0) {
    int room = at<SlotParams>(p.slots.params)[slot].max_len - position - 1;
    int drafted = p.slots.draft_count ? at<int>(p.slots.draft_count)[slot] : p.slots.draft_stride;
    n = max(0, min(min(at<int>(p.want)[r], room), min(p.step.t, 1 + drafted)));
  }
  at<int>(p.step.n)[r] = n;
  for (int j = 0; j < p.step.t; j++) {
    int id = 0;
    if (j == 0 && n > 0) id = at<int>(p.slots.last)[slot];
    if (j > 0 && j < n) id = at<int>(p.slots.drafts)[slot * p.slots.draft_stride + j - 1];
    int token = p.step.first + r * p.step.t + j;
    at<int>(p.ids)[token] = id;
    at<int>(p.pos)[token] = j < n ? position + j : -1;
  }
}

// The first blocks do the step rows; then one block a prefill row.
extern "C" __global__ void __launch_bounds__(128) begin(PARAMS(Begin, p)) {
  pdl_begin();
  int blocks = (p.step.count + 127) / 128;
  if ((int)blockIdx.x < blocks) {
    int r = blockIdx.x * 128 + threadIdx.x;
    if (r < p.step.count) begin_step(p, r);
    return;
  }
  int r = blockIdx.x - blocks;
  int slot = at<int>(p.prefill.slot)[r], n = at<int>(p.prefill.n)[r], start = at<int>(p.prefill.start)[r];
  int position = at<int>(p.cursors.origin)[slot] + at<int>(p.cursors.h)[slot];
  for (int j = threadIdx.x; j < n; j += 128) {
    at<int>(p.pos)[start + j] = position + j;
    at<int>(p.ids)[start + j] = at<int>(p.prefill_ids)[start - p.prefill.first + j];
  }
}

struct Commit {
  Rows step, prefill;
  Cursors cursors;
  Slots slots;
  uint64_t counts, pos, sampled, final, accepted, finish;
  int vocab, window, sample_first, pad;
};
enum { RUNNING = 0, FINISH_STOP = 1, FINISH_LENGTH = 2 };

// Run is what is accepted of a row's samples: how many, the last one, and how the sequence ends with it.
struct Run {
  int count, last, end;
};

// is_stop says of each lane's id, of the first n lanes, whether it is one of the slot's stops.
__device__ bool is_stop(const Commit& p, int slot, int id, int n) {
  const int lane = threadIdx.x % 32;
  bool found = false;
  for (int from = 0; from < p.slots.max_stops; from += 32) {
    const int stop = from + lane < p.slots.max_stops ? at<int>(p.slots.stops)[slot * p.slots.max_stops + from + lane] : -1;
    for (int j = 0; j < n; j++) {
      const bool hit = __ballot_sync(~0u, stop == __shfl_sync(~0u, id, j)) != 0;
      found |= hit && lane == j;
    }
  }
  return found && id >= 0;
}

// accept takes n samples, the first of which has the given index in its sequence, up to one that ends the sequence or is not
// the draft that was verified behind it; a sample a lane. It counts them where the slot asks for that.
__device__ Run accept(const Commit& p, int slot, const int* samples, const int* drafts, int n, int index) {
  const SlotParams& s = at<SlotParams>(p.slots.params)[slot];
  for (int from = 0;; from += 32) {
    const int lane = threadIdx.x % 32, j = from + lane, id = j < n ? samples[j] : -1;
    const bool stops = is_stop(p, slot, id, min(32, n - from)) && index + j >= s.min_len;
    const int end = stops ? FINISH_STOP : index + j + 1 >= s.max_len ? FINISH_LENGTH : RUNNING;
    const bool goes = j + 1 < n && end == RUNNING && id == drafts[j];
    const uint32_t ends = __ballot_sync(~0u, !goes);
    const int last = ends ? __ffs(ends) - 1 : 31;
    if (lane <= last && s.flags & USE_PENALTIES) atomicAdd(&at<int>(p.counts)[(int64_t)slot * p.vocab + id], 1);
    if (ends) return {from + last + 1, __shfl_sync(~0u, id, last), __shfl_sync(~0u, end, last)};
  }
}

__device__ Run commit_step(const Commit& p, int r) {
  const int slot = at<int>(p.step.slot)[r], n = at<int>(p.step.n)[r];
  if (n == 0) return {0, 0, RUNNING};
  const int position = at<int>(p.pos)[p.step.first + r * p.step.t], h = at<int>(p.cursors.h)[slot];
  const int* drafts = at<int>(p.slots.drafts) + slot * p.slots.draft_stride;
  const Run run = accept(p, slot, at<int>(p.sampled) + p.sample_first + r * p.step.t, drafts, n, position + 1);
  if (threadIdx.x % 32 != 0) return run;
  at<int>(p.slots.last)[slot] = run.last;
  if (run.end != RUNNING) at<int>(p.slots.active)[slot] = 0;
  if (p.slots.draft_count) at<int>(p.slots.draft_count)[slot] = 0;
  const bool flushes = h + n > p.window;
  if (flushes) {
    at<int>(p.cursors.origin)[slot] += h;
    at<int>(p.cursors.src)[slot] = at<int>(p.cursors.dst)[slot];
  }
  at<int>(p.cursors.h)[slot] = (flushes ? 0 : h) + run.count;
  return run;
}

__device__ Run commit_prefill(const Commit& p, int r) {
  const int slot = at<int>(p.prefill.slot)[r], n = at<int>(p.prefill.n)[r], final = at<int>(p.final)[r];
  Run run = {0, 0, RUNNING};
  if (n == 0) return run;
  if (final >= 0) run = accept(p, slot, at<int>(p.sampled) + final, nullptr, 1, at<int>(p.pos)[at<int>(p.prefill.start)[r] + n - 1] + 1);
  if (threadIdx.x % 32 != 0) return run;
  if (p.slots.draft_count) at<int>(p.slots.draft_count)[slot] = 0;
  at<int>(p.cursors.origin)[slot] += at<int>(p.cursors.h)[slot] + n;
  at<int>(p.cursors.h)[slot] = 0;
  at<int>(p.cursors.src)[slot] = at<int>(p.cursors.dst)[slot];
  if (final >= 0) {
    at<int>(p.slots.last)[slot] = run.last;
    at<int>(p.slots.active)[slot] = run.end == RUNNING;
  }
  return run;
}

extern "C" __global__ void __launch_bounds__(128) commit(PARAMS(Commit, p)) {
  pdl_begin();
  const int r = blockIdx.x * 4 + threadIdx.x / 32;
  if (r >= p.step.count + p.prefill.count) return;
  const Run run = r < p.step.count ? commit_step(p, r) : commit_prefill(p, r - p.step.count);
  if (threadIdx.x % 32 != 0) return;
  at<int>(p.accepted)[r] = run.count;
  at<int>(p.finish)[r] = run.end;
}
