// Sample: a row of logits is read once by a cluster of small blocks if its token is the best of the raw logits
// (sample_greedy), and by a cluster of 8 blocks that hold an eighth of the vocabulary each in shared memory if not.
//
// Tokens are ordered by place (order.cuh); what min-p, top-k and top-p leave is everything from some place on. A cut is found without sorting: a histogram over the distance from the
// largest logit finds the bin in which the count or the weight reaches the target, halving narrows bins with too many
// tokens, and the few that are left are compared with each other. Weights are added up as integers (units of 2^-32 of the
// heaviest), so the order of atomics does not matter.
#include <cooperative_groups.h>

#include "best.cuh"
#include "common.cuh"
#include "order.cuh"
#include "slots.cuh"
namespace cg = cooperative_groups;

constexpr int BLOCKS = 8, THREADS = 512, WARPS = THREADS / 32, BINS = 1024, OWN_BINS = BINS / BLOCKS, FEW = 1024;
constexpr uint64_t NO_CEILING = ~0ull;

struct Sample {
  Mat logits;
  uint64_t token, slot, target, depth, ids, pos;
  uint64_t params, stops, counts, seen, allowed, bias_id, bias;
  uint64_t out, log_prob, rank, top_id, top_prob;
  int vocab, max_bias, max_stops, top_n, slice;  // slice: tokens a block, a multiple of 32
  int rows, apart, pad;                          // apart: sample_greedy does the rows it can do
};

// The largest of a and b, the sums of c and d.
struct Four {
  uint64_t a, b, c, d;
};

struct Shared {
  Four exchange[2], warps[WARPS];
  uint32_t count[BINS], low[BINS], high[BINS];
  uint64_t bin_weight[OWN_BINS];
  uint32_t bin_count[OWN_BINS];
  uint64_t place[FEW], value[FEW];  // of tokens that are compared; in block 0
  uint32_t found[2];
  uint64_t cut, bin, before, inside;
  uint64_t scan[WARPS];
  double segment[WARPS], segments[BLOCKS * WARPS];
  uint64_t groups[BLOCKS * WARPS];  // the best token of every warp's share
  int chosen, owner;
  double start;
};

// The bytes of shared memory before the logits, which lie at an address of 16 bytes.
constexpr int BESIDE = 36 << 10;
static_assert(sizeof(Shared) <= BESIDE, "sampleShared in sample.go");

// Row is what a block knows of its row.
struct Row {
  Shared& s;
  float* logits;  // of this block's tokens
  int first, n;   // first token, tokens
  int rank, phase;
  float most, temperature;

  __device__ float weight(float v) const { return expf((v - most) / temperature); }
  __device__ uint64_t units(float v) const { return __float2ull_rn(weight(v) * 4294967296.f); }
  __device__ Shared& of(int rank) const { return *cg::this_cluster().map_shared_rank(&s, rank); }
};

__device__ __forceinline__ Four combine(Four x, Four y) { return {max(x.a, y.a), max(x.b, y.b), x.c + y.c, x.d + y.d}; }

// reduce combines over all threads of the cluster.
__device__ Four reduce(Row& r, Four v) {
  for (int o = 16; o > 0; o >>= 1)
    v = combine(v, {__shfl_xor_sync(~0u, v.a, o), __shfl_xor_sync(~0u, v.b, o), __shfl_xor_sync(~0u, v.c, o), __shfl_xor_sync(~0u, v.d, o)});
  if (threadIdx.x % 32 == 0) r.s.warps[threadIdx.x / 32] = v;
  __syncthreads();
  Four& mine = r.s.exchange[r.phase & 1];
  if (threadIdx.x == 0) {
    for (int w = 1; w < WARPS; w++) v = combine(v, r.s.warps[w]);
    mine = v;
  }
  cg::this_cluster().sync();
  Four all = {};
  for (int b = 0; b < BLOCKS; b++) all = combine(all, r.of(b).exchange[r.phase & 1]);
  r.phase++;
  return all;
}

// The bin of a token, falling with its logit.
__device__ __forceinline__ int bin_of(float v, float top, float scale) { return (int)fminf((top - v) * scale, BINS - 1); }

// histogram counts the tokens of [floor, ceiling) by bin and finds the bin in which the running count, or weight, reaches
// the target: s.bin, s.before (of the bins before), s.inside (tokens in it).
__device__ void histogram(Row& r, uint64_t floor, uint64_t ceiling, bool by_weight, uint64_t target, float top, float scale) {
  Shared& s = r.s;
  for (int i = threadIdx.x; i < BINS; i += THREADS) s.count[i] = s.low[i] = s.high[i] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < r.n; i += THREADS) {
    float v = r.logits[i];
    uint64_t place = place_of(v, r.first + i);
    if (place < floor || place >= ceiling) continue;
    int bin = bin_of(v, top, scale);
    atomicAdd(&s.count[bin], 1u);
    if (by_weight) {
      uint64_t u = r.units(v);
      atomicAdd(&s.low[bin], (uint32_t)u & 0xffffu);
      atomicAdd(&s.high[bin], (uint32_t)(u >> 16));
    }
  }
  cg::this_cluster().sync();
  if (threadIdx.x < OWN_BINS) {
    uint32_t count = 0;
    uint64_t weight = 0;
    for (int b = 0; b < BLOCKS; b++) {
      Shared& o = r.of(b);
      int bin = r.rank * OWN_BINS + threadIdx.x;
      count += o.count[bin];
      weight += o.low[bin] + ((uint64_t)o.high[bin] << 16);
    }
    s.bin_count[threadIdx.x] = count;
    s.bin_weight[threadIdx.x] = weight;
  }
  cg::this_cluster().sync();
  // Two bins a thread.
  uint64_t v[2];
  for (int i = 0; i < 2; i++) {
    int bin = 2 * threadIdx.x + i;
    Shared& o = r.of(bin / OWN_BINS);
    v[i] = by_weight ? o.bin_weight[bin % OWN_BINS] : o.bin_count[bin % OWN_BINS];
  }
  uint64_t sum = v[0] + v[1];
  for (int o = 1; o < 32; o <<= 1) {
    uint64_t below = __shfl_up_sync(~0u, sum, o);
    if (threadIdx.x % 32 >= o) sum += below;
  }
  if (threadIdx.x % 32 == 31) s.scan[threadIdx.x / 32] = sum;
  __syncthreads();
  uint64_t before = sum - v[0] - v[1];
  for (int w = 0; w < threadIdx.x / 32; w++) before += s.scan[w];
  for (int i = 0; i < 2; i++) {
    if (before < target && target <= before + v[i]) {
      int bin = 2 * threadIdx.x + i;
      s.bin = bin;
      s.before = before;
      s.inside = r.of(bin / OWN_BINS).bin_count[bin % OWN_BINS];
    }
    before += v[i];
  }
  __syncthreads();
}

// collect puts the tokens that accept(place, logit) names into the list of block 0.
template <typename Accept>
__device__ void collect(Row& r, int list, bool by_weight, Accept accept) {
  Shared& zero = r.of(0);
  for (int i = threadIdx.x; i < r.n; i += THREADS) {
    float v = r.logits[i];
    uint64_t place = place_of(v, r.first + i);
    if (!accept(place, v)) continue;
    uint32_t at = atomicAdd(&zero.found[list], 1u);
    if (at >= FEW) continue;
    zero.place[at] = place;
    zero.value[at] = by_weight ? r.units(v) : 1;
  }
  cg::this_cluster().sync();
}

// select is the place from which the best tokens of [floor, ceiling) lie whose count, or weight, just reaches the target:
// count tokens, or the given share of the weight. With fewer tokens than count it is floor.
__device__ uint64_t select(Row& r, uint64_t floor, uint64_t ceiling, bool by_weight, uint64_t count, float share) {
  Shared& s = r.s;
  if (r.rank == 0 && threadIdx.x == 0) s.found[0] = 0;
  Four v = {};
  for (int i = threadIdx.x; i < r.n; i += THREADS) {
    float l = r.logits[i];
    uint64_t place = place_of(l, r.first + i);
    if (place < floor || place >= ceiling) continue;
    uint32_t key = place >> 32;
    v.a = max(v.a, (uint64_t)key);
    if (key > KEY_MINUS_INFINITY) v.b = max(v.b, (uint64_t)(1ull << 32 | (uint32_t)~key));
    v.c++;
    if (by_weight) v.d += r.units(l);
  }
  v = reduce(r, v);
  if (!by_weight && v.c <= count) return floor;
  uint64_t target = by_weight ? max((uint64_t)1, (uint64_t)ceil((double)share * (double)v.d)) : count;
  float top = logit_of((uint32_t)v.a), range = v.b ? top - logit_of(~(uint32_t)v.b) : 0.f;
  float scale = range > 0 && range < 3e38f ? (BINS - 1) / range : 0.f;
  if (!(scale < 3e38f)) scale = 0.f;
  histogram(r, floor, ceiling, by_weight, target, top, scale);
  int bin = (int)s.bin;
  uint64_t inside = s.inside;
  target -= s.before;

  uint64_t low = floor, high = ceiling - 1;  // the cut is in [low, high] and in the bin
  auto open = [&](uint64_t place, float l) { return place >= low && place <= high && bin_of(l, top, scale) == bin; };
  if (inside > FEW) {
    Four ends = {};
    for (int i = threadIdx.x; i < r.n; i += THREADS) {
      uint64_t place = place_of(r.logits[i], r.first + i);
      if (!open(place, r.logits[i])) continue;
      ends.a = max(ends.a, place);
      ends.b = max(ends.b, ~place);
    }
    ends = reduce(r, ends);
    low = ~ends.b, high = ends.a;
  }
  while (inside > FEW) {
    uint64_t middle = low + (high - low) / 2;
    Four upper = {};
    for (int i = threadIdx.x; i < r.n; i += THREADS) {
      float l = r.logits[i];
      uint64_t place = place_of(l, r.first + i);
      if (place <= middle || !open(place, l)) continue;
      upper.c++;
      if (by_weight) upper.d += r.units(l);
    }
    upper = reduce(r, upper);
    uint64_t reached = by_weight ? upper.d : upper.c;
    if (reached >= target) {
      low = middle + 1;
      inside = upper.c;
    } else {
      high = middle;
      inside -= upper.c;
      target -= reached;
    }
  }
  collect(r, 0, by_weight, open);
  if (r.rank == 0) {
    for (int i = threadIdx.x; i < inside; i += THREADS) {
      uint64_t sum = 0;
      for (int j = 0; j < inside; j++)
        if (s.place[j] >= s.place[i]) sum += s.value[j];
      if (sum >= target && sum - s.value[i] < target) s.cut = s.place[i];
    }
  }
  cg::this_cluster().sync();
  return r.of(0).cut;
}

// load fetches this block's logits.
__device__ void load(Row& r, const float* logits) {
  logits += r.first;
  const int vectors = reinterpret_cast<uint64_t>(logits) % 16 == 0 ? r.n / 4 : 0;
  const float4* from = reinterpret_cast<const float4*>(logits);
  float4* to = reinterpret_cast<float4*>(r.logits);
#pragma unroll 8
  for (int i = threadIdx.x; i < vectors; i += THREADS) {
    const float4 v = from[i];
    to[i] = make_float4(comparable(v.x), comparable(v.y), comparable(v.z), comparable(v.w));
  }
  for (int i = 4 * vectors + threadIdx.x; i < r.n; i += THREADS) r.logits[i] = comparable(logits[i]);
  __syncthreads();
}

__device__ __forceinline__ void forbid(Row& r, int id) {
  if (id >= r.first && id < r.first + r.n) r.logits[id - r.first] = -INFINITY;
}

// adjust applies bias, masks and penalties in that order.
__device__ void adjust(const Sample& p, Row& r, int row, int slot, const SlotParams& q, int index) {
  for (int e = threadIdx.x; e < q.bias_count; e += THREADS) {
    int id = at<int>(p.bias_id)[slot * p.max_bias + e] - r.first;
    if (id >= 0 && id < r.n) atomicAdd(&r.logits[id], at<float>(p.bias)[slot * p.max_bias + e]);
  }
  __syncthreads();
  const int64_t words = (int64_t)slot * ((p.vocab + 31) / 32) + r.first / 32;
  if (q.flags & USE_ALLOWED)
    for (int i = threadIdx.x; i < r.n; i += THREADS)
      if (!(at<uint32_t>(p.allowed)[words + i / 32] >> i % 32 & 1)) r.logits[i] = -INFINITY;
  if (index < q.min_len)
    for (int i = threadIdx.x; i < p.max_stops; i += THREADS) forbid(r, at<int>(p.stops)[slot * p.max_stops + i]);
  __syncthreads();
  if (!(q.flags & USE_PENALTIES)) return;
  const int depth = at<int>(p.depth)[row], token = at<int>(p.token)[row];
  for (int i = threadIdx.x; i < r.n; i += THREADS) {
    int id = r.first + i, count = at<int>(p.counts)[(int64_t)slot * p.vocab + id];
    for (int d = 0; d < depth; d++) count += at<int>(p.ids)[token - d] == id;
    float v = r.logits[i];
    if (count > 0 || at<uint32_t>(p.seen)[words + i / 32] >> i % 32 & 1) v = v > 0 ? v / q.repetition : v * q.repetition;
    if (count > 0) v -= q.frequency * count + q.presence;
    r.logits[i] = v + 0.f;
  }
  __syncthreads();
}

// best is the place of the best token.
__device__ uint64_t best(Row& r) {
  Four v = {};
  for (int i = threadIdx.x; i < r.n; i += THREADS) v.a = max(v.a, place_of(r.logits[i], r.first + i));
  return reduce(r, v).a;
}

// above_share is the place from which the tokens lie whose weight is at least share of the heaviest.
__device__ uint64_t above_share(Row& r, uint64_t floor, float share) {
  Four v = {};
  for (int i = threadIdx.x; i < r.n; i += THREADS) {
    uint64_t place = place_of(r.logits[i], r.first + i);
    if (place >= floor && r.weight(r.logits[i]) >= share) v.a = max(v.a, (uint64_t)(uint32_t)~(uint32_t)(place >> 32));
  }
  return (uint64_t)(uint32_t)~(uint32_t)reduce(r, v).a << 32;
}

// A warp owns a run of this block's tokens.
__device__ __forceinline__ void segment_of(const Row& r, int& from, int& to) {
  int size = ((r.n + WARPS - 1) / WARPS + 31) / 32 * 32, warp = threadIdx.x / 32;
  from = min(r.n, warp * size), to = min(r.n, from + size);
}
__device__ __forceinline__ float kept_weight(const Row& r, int i, int to, uint64_t floor) {
  if (i >= to || place_of(r.logits[i], r.first + i) < floor) return 0.f;
  return r.weight(r.logits[i]);
}

// pick is the first token, in order of id, at which the running sum of the weights from floor on passes the share u.
__device__ int pick(Row& r, uint64_t floor, float u) {
  Shared& s = r.s;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int from, to;
  segment_of(r, from, to);
  double sum = 0;
  for (int i = from + lane; i < to; i += 32) sum += kept_weight(r, i, to, floor);
  sum = warp_sum(sum);
  if (lane == 0) s.segment[warp] = sum;
  cg::this_cluster().sync();
  if (threadIdx.x < BLOCKS * WARPS) s.segments[threadIdx.x] = r.of(threadIdx.x / WARPS).segment[threadIdx.x % WARPS];
  __syncthreads();
  if (threadIdx.x == 0) {
    double all = 0, run = 0;
    for (int i = 0; i < BLOCKS * WARPS; i++) all += s.segments[i];
    s.owner = 0;
    for (int i = 0; i < BLOCKS * WARPS; i++) {
      if (s.segments[i] > 0) {
        s.owner = i, s.start = (double)u * all - run;
        if (s.segments[i] > s.start) break;
      }
      run += s.segments[i];
    }
  }
  __syncthreads();
  if (s.owner == r.rank * WARPS + warp) {
    double goal = s.start, run = 0;
    int chosen = -1, last = r.first + from;
    for (int base = from; base < to && chosen < 0; base += 32) {
      float w = kept_weight(r, base + lane, to, floor);
      double upto = w;
      for (int o = 1; o < 32; o <<= 1) {
        double below = __shfl_up_sync(~0u, upto, o);
        if (lane >= o) upto += below;
      }
      uint32_t some = __ballot_sync(~0u, w > 0), past = __ballot_sync(~0u, w > 0 && run + upto > goal);
      if (some) last = r.first + base + 31 - __clz(some);
      if (past) chosen = r.first + base + __ffs(past) - 1;
      run += __shfl_sync(~0u, upto, 31);
    }
    if (lane < BLOCKS) r.of(lane).chosen = chosen < 0 ? last : chosen;
  }
  cg::this_cluster().sync();
  return s.chosen;
}

// Philox4x32-10, the first word; kernels.Uniform.
__device__ float uniform(uint64_t seed, uint32_t index) {
  uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32), c0 = index, c1 = 0, c2 = 0, c3 = 0;
  for (int i = 0; i < 10; i++) {
    uint32_t h0 = __umulhi(0xD2511F53u, c0), l0 = 0xD2511F53u * c0, h1 = __umulhi(0xCD9E8D57u, c2), l1 = 0xCD9E8D57u * c2;
    c0 = h1 ^ c1 ^ k0, c1 = l1, c2 = h0 ^ c3 ^ k1, c3 = l0;
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  return (float)(c0 >> 8) * (1.f / 16777216.f);
}

// A top-k of up to SHORT tokens leaves so few that one warp does the rest, SHORT / 32 tokens a lane.
constexpr int SHORT = 64;

__device__ __forceinline__ uint64_t warp_total(uint64_t v) {
  for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
  return v;
}

// candidates lists the tokens that top-k can leave, in block 0, best first in value, and returns how many there are; more than
// FEW are not listed. The best tokens of k shares are k tokens, so that the worst of those bounds the k best of all.
__device__ int candidates(Row& r, int k) {
  Shared& s = r.s;
  const int t = threadIdx.x;
  if (t < BLOCKS * WARPS) s.groups[t] = r.of(t / WARPS).warps[t % WARPS].a;  // of best
  if (t == 0) s.found[0] = 0, s.cut = NO_CEILING;
  cg::this_cluster().sync();
  if (t < BLOCKS * WARPS) {
    int better = 0;
    for (int i = 0; i < BLOCKS * WARPS; i++) better += s.groups[i] > s.groups[t];
    if (better < k) atomicMin(reinterpret_cast<unsigned long long*>(&s.cut), (unsigned long long)s.groups[t]);
  }
  __syncthreads();
  const uint64_t bound = max(s.cut, (uint64_t)(KEY_MINUS_INFINITY + 1) << 32);
  collect(r, 0, false, [&](uint64_t place, float) { return place >= bound; });
  const int found = (int)r.of(0).found[0];
  if (r.rank == 0 && found <= FEW) {
    for (int i = t; i < found; i += THREADS) {
      int before = 0;
      for (int j = 0; j < found; j++) before += s.place[j] > s.place[i];
      s.value[before] = s.place[i];
    }
    __syncthreads();
  }
  return found;
}

// pick_short is pick among the n best tokens, in order in s.value, behind min-p and top-p; n is SHORT at most. By one warp.
__device__ int pick_short(Row& r, const SlotParams& q, int n, float u) {
  constexpr int HELD = SHORT / 32;
  const uint64_t* sorted = r.s.value;
  const int lane = threadIdx.x % 32;
  float weight[HELD];
  uint64_t before[HELD], total = 0;
  for (int h = 0; h < HELD; h++) {
    const int i = h * 32 + lane;
    const float v = i < n ? logit_of((uint32_t)(sorted[i] >> 32)) : 0.f;
    const bool kept = i < n && r.weight(v) >= fminf(q.min_p, 1.f);
    weight[h] = kept ? r.weight(v) : 0.f;
    uint64_t units = kept ? r.units(v) : 0, upto = units;
    for (int o = 1; o < 32; o <<= 1) {
      uint64_t below = __shfl_up_sync(~0u, upto, o);
      if (lane >= o) upto += below;
    }
    before[h] = total + upto - units;
    total += warp_total(units);
  }
  const uint64_t target = q.top_p < 1 ? max((uint64_t)1, (uint64_t)ceil((double)q.top_p * (double)total)) : NO_CEILING;
  double all = 0, run[HELD] = {};
  for (int h = 0; h < HELD; h++) {
    if (before[h] >= target) weight[h] = 0;
    all += warp_sum((double)weight[h]);
  }
#pragma unroll
  for (int from = 0; from < HELD; from++)
    for (int j = 0; j < min(32, n - from * 32); j++) {
      const float w = __shfl_sync(~0u, weight[from], j);
      const int id = id_of(sorted[from * 32 + j]);
#pragma unroll
      for (int h = 0; h < HELD; h++)
        if (h * 32 + lane < n && id <= id_of(sorted[h * 32 + lane])) run[h] += w;
    }
  uint64_t first = 0, last = 0;  // the inverted id of the first token past the goal; the last token of all
  for (int h = 0; h < HELD; h++) {
    if (weight[h] == 0) continue;
    const uint64_t id = (uint32_t)id_of(sorted[h * 32 + lane]);
    last = max(last, id + 1);
    if (run[h] > (double)u * all) first = max(first, (uint64_t)(uint32_t)~id + 1);
  }
  first = warp_best(first), last = warp_best(last);
  return first ? (int)~(uint32_t)(first - 1) : (int)last - 1;
}

// draw_short draws where top-k leaves few tokens, behind best; -1 if too many are as good as those.
__device__ int draw_short(Row& r, const SlotParams& q, float u) {
  const int found = candidates(r, q.top_k);
  if (r.rank == 0 && threadIdx.x < 32 && found <= FEW) {
    const int id = pick_short(r, q, min(found, q.top_k), u);
    if (threadIdx.x < BLOCKS) r.of(threadIdx.x).chosen = id;
  }
  cg::this_cluster().sync();
  return found <= FEW ? r.s.chosen : -1;
}

__device__ int draw(const Sample& p, Row& r, int row, int slot) {
  const SlotParams& q = at<SlotParams>(p.params)[slot];
  const int index = at<int>(p.pos)[at<int>(p.token)[row]] + 1;
  adjust(p, r, row, slot, q, index);
  const uint64_t top = best(r);
  r.most = logit_of((uint32_t)(top >> 32)), r.temperature = q.temperature;
  if (q.temperature == 0 || !(fabsf(r.most) < INFINITY)) return id_of(top);  // weights need a finite largest logit
  const float u = uniform(q.seed, (uint32_t)index);
  if (q.top_k > 0 && q.top_k <= SHORT) {
    const int id = draw_short(r, q, u);
    if (id >= 0) return id;
  }
  uint64_t floor = (uint64_t)(KEY_MINUS_INFINITY + 1) << 32;
  if (q.min_p > 0) floor = above_share(r, floor, fminf(q.min_p, 1.f));
  if (q.top_k > 0 && q.top_k < p.vocab) floor = select(r, floor, NO_CEILING, false, q.top_k, 0);
  if (q.top_p < 1) floor = select(r, floor, NO_CEILING, true, 0, q.top_p);
  return pick(r, floor, u);
}

// list_best writes the best tokens of the raw logits, FEW at a time.
__device__ void list_best(const Sample& p, Row& r, int row, double log_sum) {
  Shared& s = r.s;
  uint64_t ceiling = NO_CEILING;
  for (int done = 0; done < p.top_n;) {
    int n = min(FEW, p.top_n - done);
    if (r.rank == 0 && threadIdx.x == 0) s.found[1] = 0;
    uint64_t floor = select(r, 0, ceiling, false, n, 0);
    collect(r, 1, false, [&](uint64_t place, float) { return place >= floor && place < ceiling; });
    if (r.rank == 0)
      for (int i = threadIdx.x; i < n; i += THREADS) {
        int before = 0;
        for (int j = 0; j < n; j++) before += s.place[j] > s.place[i];
        int64_t to = (int64_t)row * p.top_n + done + before;
        at<int>(p.top_id)[to] = id_of(s.place[i]);
        at<float>(p.top_prob)[to] = (float)(logit_of((uint32_t)(s.place[i] >> 32)) - log_sum);
      }
    ceiling = floor;
    done += n;
  }
}

// write_report writes the log probabilities of the raw logits.
__device__ void write_report(const Sample& p, Row& r, int row, int id, const float* logits) {
  Shared& s = r.s;
  load(r, logits);
  const float most = logit_of((uint32_t)(best(r) >> 32));
  const float raw = comparable(logits[id]);
  double sum = 0;
  Four v = {};
  for (int i = threadIdx.x; i < r.n; i += THREADS) {
    sum += expf(r.logits[i] - most);
    v.c += r.logits[i] > raw;
  }
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) s.segment[threadIdx.x / 32] = sum;
  v = reduce(r, v);
  double all = 0;
  for (int i = 0; i < BLOCKS * WARPS; i++) all += r.of(i / WARPS).segment[i % WARPS];
  const double log_sum = most + log(all);
  if (r.rank == 0 && threadIdx.x == 0) {
    at<float>(p.log_prob)[row] = (float)(raw - log_sum);
    at<int>(p.rank)[row] = 1 + (int)v.c;
  }
  list_best(p, r, row, log_sum);
}

// quick says whether a row's token needs no more than the best of the raw logits.
__device__ bool quick(const Sample& p, int row, int slot) {
  if (slot == 0 || at<int>(p.target)[row] >= 0) return true;
  const SlotParams& q = at<SlotParams>(p.params)[slot];
  if (q.temperature != 0 || q.flags != 0 || q.bias_count != 0) return false;
  return at<int>(p.pos)[at<int>(p.token)[row]] + 1 >= q.min_len;
}

// quick_token is the token of such a row, in the first warp of each block; behind it the cluster has to meet.
template <int N>
__device__ int quick_token(const Sample& p, int row, int slot) {
  if (slot == 0) return -1;
  const int target = at<int>(p.target)[row];
  return target >= 0 ? target : id_of(row_best<N>(row_of<const float>(p.logits, row), p.vocab));
}

constexpr int QUICK_THREADS = 128;

extern "C" __global__ void __cluster_dims__(BEST_BLOCKS, 1, 1) __launch_bounds__(QUICK_THREADS, 2048 / QUICK_THREADS) sample_greedy(PARAMS(Sample, p)) {
  pdl_begin();
  const int row = blockIdx.x / BEST_BLOCKS, slot = at<int>(p.slot)[row];
  if (!quick(p, row, slot)) return;
  const int id = quick_token<QUICK_THREADS>(p, row, slot);
  if (blockIdx.x % BEST_BLOCKS == 0 && threadIdx.x == 0) at<int>(p.out)[row] = id;
  cg::this_cluster().sync();
}

// sample_row does a row in any way.
__device__ void sample_row(const Sample& p, Row& r, int row, int slot) {
  const float* logits = row_of<const float>(p.logits, row);
  int id;
  if (quick(p, row, slot)) {
    id = quick_token<THREADS>(p, row, slot);
    if (slot != 0 && p.top_n > 0) {
      if (threadIdx.x == 0) r.s.chosen = id;
      __syncthreads();
      id = r.s.chosen;
    }
  } else {
    load(r, logits);
    id = draw(p, r, row, slot);
  }
  if (r.rank == 0 && threadIdx.x == 0) at<int>(p.out)[row] = id;
  if (slot != 0 && p.top_n > 0) write_report(p, r, row, id, logits);
}

extern "C" __global__ void __cluster_dims__(BLOCKS, 1, 1) __launch_bounds__(THREADS) sample(PARAMS(Sample, p)) {
  extern __shared__ __align__(16) unsigned char memory[];
  pdl_begin();
  const int rank = (int)cg::this_cluster().block_rank();
  const int first = min(p.vocab, rank * p.slice), n = min(p.vocab - first, p.slice);
  const int clusters = gridDim.x / BLOCKS, lane = threadIdx.x % 32;
  for (int next = blockIdx.x / BLOCKS; next < p.rows; next += 32 * clusters) {  // 32 rows are looked at together
    const int mine = next + lane * clusters;
    const bool left = mine < p.rows && !(p.apart && quick(p, mine, at<int>(p.slot)[mine]));
    for (uint32_t rows = __ballot_sync(~0u, left); rows; rows &= rows - 1) {
      const int row = next + (__ffs(rows) - 1) * clusters;
      Row r = {*reinterpret_cast<Shared*>(memory), reinterpret_cast<float*>(memory + BESIDE), first, n, rank, 0, 0.f, 1.f};
      sample_row(p, r, row, at<int>(p.slot)[row]);
      cg::this_cluster().sync();  // nobody goes on while others read its memory
    }
  }
}
