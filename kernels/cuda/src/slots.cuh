// Rows, cursors and slots as kernels take them; rows, cursors and slots of step.go.
#pragma once
#include "common.cuh"

struct Rows {
  uint64_t slot, n, start;
  int count, first, tokens, t;
};
struct Cursors {
  uint64_t origin, h, src, dst;
};
struct Slots {
  uint64_t active, last, drafts, draft_count, params, stops;  // draft_count may be 0: all drafts are valid
  int draft_stride, max_stops;
};
struct SlotParams {
  uint64_t seed;
  float temperature, top_p, min_p;
  int top_k;
  float repetition, presence, frequency;
  uint32_t flags;
  int prompt_len, min_len, max_len, bias_count;
  uint32_t pad[10];
};
static_assert(sizeof(SlotParams) == 96, "kernels.SlotParamsBytes");

enum { USE_PENALTIES = 1, USE_ALLOWED = 2 };  // flags of SlotParams
