// Cuts of prefill rows (kernels.Cuts): where a scan leaves the state and the raw rows in front of it besides.
#pragma once
#include "ssm.cuh"

// rowCuts of ssm_scan.go.
struct Cuts {
  uint64_t places, blocks;  // i32 [rows, per_row]: tokens of the row in front of a cut, and where the state goes
  uint64_t tails;           // the raw rows of cut i of all are at tails + i * tail_stride
  int64_t tail_stride;
  int per_row, pad;
  // Tokens of a row in front of cut i, or what stands for none.
  __device__ int place(int row, int i) const { return i < per_row ? at<int>(places)[row * per_row + i] : -1; }
  // The same of a row of n tokens; n for none.
  __device__ int tokens(int row, int i, int n) const {
    const int p = place(row, i);
    return p > 0 ? min(p, n) : n;
  }
  __device__ int block(int row, int i) const { return at<int>(blocks)[row * per_row + i]; }
};
// The parameters of a scan.
template <class P>
struct WithCuts : P {
  Cuts cuts;
};

// Where a walk keeps the state on its way: a step that flushes behind its committed records, a scan at cuts.
struct Stops {
  int records, block;  // the next one: records in front of it, or -1; where the state goes
  int row, next;
  __device__ Stops(const Cuts& cuts, const Sequence& s, int r, int mode, bool flush) : records(flush ? s.h : -1), block(s.dst), row(r), next(0) {
    if (mode == SCAN) find(cuts, s);
  }
  template <class P>
  __device__ void keep(const HeadState& state, const P& p, const Sequence& s, int head) {
    state.keep(p.state, block, head, s.origin + records);
    records = -1;
    if (p.mode == SCAN) find(p.cuts, s);
  }

 private:
  __device__ void find(const Cuts& cuts, const Sequence& s) {
    const int place = cuts.place(row, next);
    if (place > 0) records = s.h + place, block = cuts.block(row, next++);
  }
};

// The raw rows in front of every cut that there is; zero before the sequence.
template <typename A>
__device__ __forceinline__ void cut_tail(const WithCuts<Tail>& p) {
  pdl_begin();
  const int row = blockIdx.y, channel = blockIdx.x * 256 + threadIdx.x;
  const Sequence s = sequence(p.rows, p.cursors, row);
  const int place = p.cuts.place(row, blockIdx.z);
  if (channel >= p.cols || place < 1 || place > s.n) return;
  A* to = reinterpret_cast<A*>(p.cuts.tails + (int64_t)(row * p.cuts.per_row + blockIdx.z) * p.cuts.tail_stride) + channel;
  for (int i = 1 - p.taps; i < 0; i++, to += p.cols) *to = narrow<A>(raw<A>(p.state, s, p.fresh, p.cols, s.position() + place + i, channel));
}
