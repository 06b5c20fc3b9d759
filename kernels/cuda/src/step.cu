// Begin and Commit: one thread a row; the cursor rule of kernels.Cursor.
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

// accept makes id the last token of a slot, at the given index of its sequence, and says whether it ends it.
__device__ int accept(const Commit& p, int slot, int id, int index) {
  at<int>(p.slots.last)[slot] = id;
  const SlotParams& s = at<SlotParams>(p.slots.params)[slot];
  if (s.flags & USE_PENALTIES) at<int>(p.counts)[(int64_t)slot * p.vocab + id] += 1;
  if (index >= s.min_len && id >= 0)
    for (int i = 0; i < p.slots.max_stops; i++)
      if (at<int>(p.slots.stops)[slot * p.slots.max_stops + i] == id) return FINISH_STOP;
  return index + 1 >= s.max_len ? FINISH_LENGTH : RUNNING;
}

__device__ void commit_step(const Commit& p, int r) {
  int slot = at<int>(p.step.slot)[r], n = at<int>(p.step.n)[r], a = 0, end = RUNNING;
  if (n > 0) {
    int position = at<int>(p.pos)[p.step.first + r * p.step.t];
    for (bool more = true; more;) {
      int id = at<int>(p.sampled)[p.sample_first + r * p.step.t + a];
      a++;
      end = accept(p, slot, id, position + a);
      more = end == RUNNING && a < n && id == at<int>(p.slots.drafts)[slot * p.slots.draft_stride + a - 1];
    }
    if (end != RUNNING) at<int>(p.slots.active)[slot] = 0;
    if (p.slots.draft_count) at<int>(p.slots.draft_count)[slot] = 0;
    int h = at<int>(p.cursors.h)[slot];
    if (h + n > p.window) {
      at<int>(p.cursors.origin)[slot] += h;
      at<int>(p.cursors.src)[slot] = at<int>(p.cursors.dst)[slot];
      h = 0;
    }
    at<int>(p.cursors.h)[slot] = h + a;
  }
  at<int>(p.accepted)[r] = a;
  at<int>(p.finish)[r] = end;
}

__device__ void commit_prefill(const Commit& p, int r) {
  int slot = at<int>(p.prefill.slot)[r], n = at<int>(p.prefill.n)[r], a = 0, end = RUNNING;
  if (n > 0) {
    if (p.slots.draft_count) at<int>(p.slots.draft_count)[slot] = 0;
    at<int>(p.cursors.origin)[slot] += at<int>(p.cursors.h)[slot] + n;
    at<int>(p.cursors.h)[slot] = 0;
    at<int>(p.cursors.src)[slot] = at<int>(p.cursors.dst)[slot];
    int final = at<int>(p.final)[r];
    if (final >= 0) {
      a = 1;
      end = accept(p, slot, at<int>(p.sampled)[final], at<int>(p.pos)[at<int>(p.prefill.start)[r] + n - 1] + 1);
      at<int>(p.slots.active)[slot] = end == RUNNING;
    }
  }
  at<int>(p.accepted)[p.step.count + r] = a;
  at<int>(p.finish)[p.step.count + r] = end;
}

extern "C" __global__ void __launch_bounds__(128) commit(PARAMS(Commit, p)) {
  pdl_begin();
  int r = blockIdx.x * 128 + threadIdx.x;
  if (r < p.step.count)
    commit_step(p, r);
  else if (r < p.step.count + p.prefill.count)
    commit_prefill(p, r - p.step.count);
}
