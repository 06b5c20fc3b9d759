// Routing and experts.
//
// Experts: experts_sort lists the (token, choice) pairs by expert, in tiles of up to TOKENS pairs. experts_up and
// experts_down stream the weights of the tiles' experts as the skinny kernels of linear.cu do, experts_sum adds a token's
// results in the order of its choices. K is cut into slices that depend on K alone, so that the tokens that share a tile
// do not change a token's bits; nor does their order, which is that of atomics. Sums of pairs are float32.
#include "instructions.cuh"

struct Route {
  Mat logits;
  uint64_t bias, ids, weights;
  int experts, topk, groups, keep, softmax, normalize;
  float scale;
  int pad;
};

// Larger value, then lower index; index -1 is none.
struct Best {
  float value;
  int index;
};
__device__ __forceinline__ Best better(Best a, Best b) {
  if (b.index < 0) return a;
  if (a.index < 0 || b.value > a.value || (b.value == a.value && b.index < a.index)) return b;
  return a;
}
__device__ __forceinline__ Best warp_best(Best v) {
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) v = better(v, {__shfl_xor_sync(~0u, v.value, o), __shfl_xor_sync(~0u, v.index, o)});
  return v;
}

constexpr int MOST_EXPERTS = 1024;

// The best of the entries i = lane, lane + 32, ... below n that are not taken. NaN counts as the lowest.
__device__ __forceinline__ Best best_of(const float* value, const uint8_t* taken, int n, int lane) {
  Best b = {0, -1};
  for (int i = lane; i < n; i += 32)
    if (!taken[i]) b = better(b, {value[i] == value[i] ? value[i] : -INFINITY, i});
  return warp_best(b);
}

// One warp a token. Without bias logits order as their scores do, and stay apart where scores round to one number.
extern "C" __global__ void __launch_bounds__(32) route(PARAMS(Route, p)) {
  __shared__ float score[MOST_EXPERTS], key[MOST_EXPERTS], group_sum[MOST_EXPERTS];
  __shared__ uint8_t taken[MOST_EXPERTS], group_taken[MOST_EXPERTS];
  pdl_begin();
  const int lane = threadIdx.x, n = p.experts;
  const int64_t token = blockIdx.x;
  const float* logits = row_of<const float>(p.logits, token);
  float most = -INFINITY, sum = 0;
  for (int i = lane; i < n; i += 32) most = fmaxf(most, logits[i]);
  most = warp_max(most);
  for (int i = lane; i < n; i += 32) {
    score[i] = p.softmax ? expf(logits[i] - most) : sigmoid(logits[i]);
    sum += score[i];
  }
  sum = warp_sum(sum);
  for (int i = lane; i < n; i += 32) {
    if (p.softmax) score[i] /= sum;
    key[i] = p.bias ? score[i] + at<const float>(p.bias)[i] : logits[i];
    taken[i] = 0;
  }
  __syncwarp();
  if (p.groups > 1) {
    const int size = n / p.groups;
    for (int g = lane; g < p.groups; g += 32) {
      Best first = {0, -1}, second = {0, -1};
      for (int i = g * size; i < (g + 1) * size; i++) {
        const Best b = {p.bias ? key[i] : score[i], i};
        if (first.index < 0 || b.value > first.value)
          second = first, first = b;
        else if (second.index < 0 || b.value > second.value)
          second = b;
      }
      group_sum[g] = first.value + (second.index < 0 ? 0.f : second.value);
      group_taken[g] = 0;
    }
    __syncwarp();
    for (int i = 0; i < p.keep; i++) {
      const Best b = best_of(group_sum, group_taken, p.groups, lane);
      __syncwarp();
      if (lane == 0) group_taken[b.index] = 1;
      __syncwarp();
    }
    for (int i = lane; i < n; i += 32) taken[i] = !group_taken[i / size];
    __syncwarp();
  }
  int* ids = at<int>(p.ids) + token * p.topk;
  float* weights = at<float>(p.weights) + token * p.topk;
  sum = 1e-20f;
  for (int i = 0; i < p.topk; i++) {
    const Best b = best_of(key, taken, n, lane);
    __syncwarp();
    if (lane == 0) taken[b.index] = 1, ids[i] = b.index, weights[i] = score[b.index];
    __syncwarp();
    sum += score[b.index];
  }
  for (int i = lane; i < p.topk; i += 32) {
    float w = weights[i];
    if (p.normalize) w /= sum;
    weights[i] = w * p.scale;
  }
}

struct Sort {
  uint64_t ids, order, tiles, trouble;  // order: i32 [pairs]; tiles: Tile [most]
  int pairs, experts, tokens, most;     // tokens of a tile at most; tiles at most
};
struct Tile {
  int expert, first, count, pad;
};

extern "C" __global__ void __launch_bounds__(1024) experts_sort(PARAMS(Sort, p)) {
  __shared__ int count[MOST_EXPERTS], next[MOST_EXPERTS], warps[2][32];
  pdl_begin();
  const int e = threadIdx.x, lane = e % 32, warp = e / 32;
  count[e] = 0;
  __syncthreads();
  const int* ids = at<const int>(p.ids);
  for (int i = e; i < p.pairs; i += 1024) {
    const int id = ids[i];
    if ((unsigned)id < (unsigned)p.experts)
      atomicAdd(&count[id], 1);
    else
      report(p.trouble, TROUBLE_EXPERT, id);
  }
  __syncthreads();
  const int mine = count[e], tiles = (mine + p.tokens - 1) / p.tokens;
  int a = mine, b = tiles;  // inclusive sums
#pragma unroll
  for (int o = 1; o < 32; o <<= 1) {
    const int x = __shfl_up_sync(~0u, a, o), y = __shfl_up_sync(~0u, b, o);
    if (lane >= o) a += x, b += y;
  }
  if (lane == 31) warps[0][warp] = a, warps[1][warp] = b;
  __syncthreads();
  int pairs_before = 0, tiles_before = 0, tiles_all = 0;
#pragma unroll 4
  for (int w = 0; w < 32; w++) {
    if (w < warp) pairs_before += warps[0][w], tiles_before += warps[1][w];
    tiles_all += warps[1][w];
  }
  const int first = pairs_before + a - mine, tile = tiles_before + b - tiles;
  next[e] = first;
  Tile* list = at<Tile>(p.tiles);
  for (int i = 0; i < tiles; i++) list[tile + i] = {e, first + i * p.tokens, min(p.tokens, mine - i * p.tokens), 0};
  for (int i = tiles_all + e; i < p.most; i += 1024) list[i] = {0, 0, 0, 0};
  __syncthreads();
  for (int i = e; i < p.pairs; i += 1024) {
    const int id = ids[i];
    if ((unsigned)id < (unsigned)p.experts) at<int>(p.order)[atomicAdd(&next[id], 1)] = i;
  }
}

struct Product {
  Mat x, y;  // up: rows of x are tokens, of y sorted pairs; down: of x sorted pairs, of y pairs
  uint64_t w, order, tiles;
  int64_t row_bytes, expert_bytes;
  int n, k, topk, slices;
};

constexpr int CHUNK = 32, WARPS = 8, ROWS = 32, STRIDE = ROWS + 4;

__device__ __forceinline__ uint4 load_weight(const void* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}
// Columns k .. k+7 of a row at an address of 16 bytes, zeros behind column `end`.
__device__ __forceinline__ uint4 load_input(const bf16* x, int k, int end) {
  if (k + 8 <= end) return *reinterpret_cast<const uint4*>(x + k);
  uint32_t v[4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const int a = k + 2 * i;
    v[i] = (a < end ? __bfloat16_as_ushort(x[a]) : 0) | (uint32_t)(a + 1 < end ? __bfloat16_as_ushort(x[a + 1]) : 0) << 16;
  }
  return make_uint4(v[0], v[1], v[2], v[3]);
}

enum { UP_SILU, UP_RELU2, DOWN };

// NT tiles of 8 pairs. A block has WARPS / slices groups of 32 rows, with SiLU 16 of the gate and the 16 of up that go
// with them. A warp does one slice of a group: chunks of 32 columns slice, slice + slices, ...
template <int NT, int KIND>
__device__ __forceinline__ void product(const Product& p) {
  constexpr int TOKENS = 8 * NT, UNROLL = NT > 4 ? 1 : 2, OUT = KIND == UP_SILU ? 16 : 32;
  extern __shared__ float partial[];  // [WARPS][TOKENS][STRIDE]
  pdl_begin();
  const Tile tile = at<const Tile>(p.tiles)[blockIdx.y];
  if (tile.count == 0) return;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int slice = warp % p.slices, group = warp / p.slices, groups = WARPS / p.slices, row0 = (blockIdx.x * groups + group) * OUT;
  const int chunks = (p.k + CHUNK - 1) / CHUNK;
  const int* order = at<const int>(p.order) + tile.first;

  const uint8_t* matrix = at<const uint8_t>(p.w) + tile.expert * p.expert_bytes + t * 16;
  const uint8_t* w[2][2];
#pragma unroll
  for (int r = 0; r < 2; r++)
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int row = min(row0 + (KIND == UP_SILU ? 0 : r * 16) + i * 8 + g, p.n - 1);
      w[r][i] = matrix + (int64_t)(row + (KIND == UP_SILU ? r * p.n : 0)) * p.row_bytes;
    }
  const bf16* x[NT];
#pragma unroll
  for (int j = 0; j < NT; j++) {
    const int i = j * 8 + g;
    x[j] = i >= tile.count ? nullptr : KIND == DOWN ? row_of<const bf16>(p.x, tile.first + i) : row_of<const bf16>(p.x, order[i] / p.topk);
  }

  uint4 a[UNROLL][2][2];
  auto fetch = [&](int u, int chunk) {
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
      for (int i = 0; i < 2; i++) a[u][r][i] = load_weight(w[r][i] + chunk * (CHUNK * 2));
  };
#pragma unroll
  for (int u = 0; u < UNROLL; u++)
    if (slice + u * p.slices < chunks) fetch(u, slice + u * p.slices);
  float c[2][NT][4] = {};
  for (int from = slice; from < chunks; from += p.slices * UNROLL) {
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
      const int chunk = from + u * p.slices, next = chunk + p.slices * UNROLL;
      if (chunk >= chunks) break;
      uint4 b[NT];
#pragma unroll
      for (int j = 0; j < NT; j++) b[j] = x[j] ? load_input(x[j], chunk * CHUNK + t * 8, p.k) : make_uint4(0, 0, 0, 0);
#pragma unroll
      for (int r = 0; r < 2; r++)
#pragma unroll
        for (int j = 0; j < NT; j++) {
          mma(c[r][j], a[u][r][0].x, a[u][r][1].x, a[u][r][0].y, a[u][r][1].y, b[j].x, b[j].y);
          mma(c[r][j], a[u][r][0].z, a[u][r][1].z, a[u][r][0].w, a[u][r][1].w, b[j].z, b[j].w);
        }
      if (next < chunks) fetch(u, next);
    }
  }
  float* mine = partial + warp * TOKENS * STRIDE;
#pragma unroll
  for (int r = 0; r < 2; r++)
#pragma unroll
    for (int j = 0; j < NT; j++)
#pragma unroll
      for (int i = 0; i < 4; i++) mine[(j * 8 + 2 * t + i % 2) * STRIDE + r * 16 + g + i / 2 * 8] = c[r][j][i];
  __syncthreads();
  for (int i = threadIdx.x; i < groups * tile.count * OUT; i += WARPS * 32) {
    const int r = i % OUT, token = i / OUT % tile.count, of = i / OUT / tile.count, row = (blockIdx.x * groups + of) * OUT + r;
    if (row >= p.n) continue;
    const float* from = partial + (of * p.slices * TOKENS + token) * STRIDE + r;
    float sum = 0, up = 0;
    for (int s = 0; s < p.slices; s++) {
      sum += from[s * TOKENS * STRIDE];
      if (KIND == UP_SILU) up += from[s * TOKENS * STRIDE + 16];
    }
    if (KIND == DOWN) {
      row_of<float>(p.y, order[token])[row] = sum;
    } else {
      const float v = fmaxf(sum, 0.f);
      row_of<bf16>(p.y, tile.first + token)[row] = __float2bfloat16_rn(KIND == UP_SILU ? silu(sum) * up : v * v);
    }
  }
}
#define PRODUCTS(tokens, NT, BLOCKS)                                                                                        \
  extern "C" __global__ void __launch_bounds__(256, BLOCKS) experts_up_0_##tokens(PARAMS(Product, p)) { product<NT, UP_SILU>(p); }  \
  extern "C" __global__ void __launch_bounds__(256, BLOCKS) experts_up_1_##tokens(PARAMS(Product, p)) { product<NT, UP_RELU2>(p); } \
  extern "C" __global__ void __launch_bounds__(256, BLOCKS) experts_down_##tokens(PARAMS(Product, p)) { product<NT, DOWN>(p); }
PRODUCTS(8, 1, 3)
PRODUCTS(16, 2, 2)
PRODUCTS(32, 4, 2)
PRODUCTS(64, 8, 1)

struct Sum {
  Mat y, out;
  uint64_t weights;
  int topk, cols;
};

// Out[t] = sum of weight * y over the token's pairs, in order.
template <typename T>
__device__ __forceinline__ void sum_pairs(const Sum& p) {
  pdl_begin();
  const int64_t token = blockIdx.y;
  const int col = blockIdx.x * 256 + threadIdx.x;
  if (col >= p.cols) return;
  const float* weights = at<const float>(p.weights) + token * p.topk;
  float sum = 0;
#pragma unroll 8
  for (int i = 0; i < p.topk; i++) sum = fmaf(weights[i], row_of<const float>(p.y, token * p.topk + i)[col], sum);
  row_of<T>(p.out, token)[col] = narrow<T>(sum);
}
extern "C" __global__ void __launch_bounds__(256) experts_sum_f32(PARAMS(Sum, p)) { sum_pairs<float>(p); }
extern "C" __global__ void __launch_bounds__(256) experts_sum_bf16(PARAMS(Sum, p)) { sum_pairs<bf16>(p); }

// Any types: a warp a row of a pair's product. The hidden values are float32.
struct Plain {
  Mat x, y;
  uint64_t w, ids, trouble;
  int64_t row_bytes, expert_bytes;
  int n, k, topk, experts, wtype, xtype, kind, pad;
};

__device__ __forceinline__ float dot_row(const Plain& p, uint64_t w, uint64_t x, int lane) {
  float sum = 0;
  for (int i = lane; i < p.k; i += 32) sum = fmaf(load_as(p.wtype, w, i), load_as(p.xtype, x, i), sum);
  return warp_sum(sum);
}

extern "C" __global__ void __launch_bounds__(256) experts_plain(PARAMS(Plain, p)) {
  pdl_begin();
  const int pair = blockIdx.x, row = blockIdx.y * 8 + threadIdx.x / 32, lane = threadIdx.x % 32, id = at<const int>(p.ids)[pair];
  if ((unsigned)id >= (unsigned)p.experts) {
    if (threadIdx.x == 0) report(p.trouble, TROUBLE_EXPERT, id);
    return;
  }
  if (row >= p.n) return;
  const int size = p.xtype == F32 ? 4 : 2;
  const uint64_t x = p.x.p + (p.kind == DOWN ? pair : pair / p.topk) * p.x.stride * size;
  const uint64_t w = p.w + id * p.expert_bytes + row * p.row_bytes;
  float v = dot_row(p, w, x, lane);
  if (p.kind == UP_SILU) v = silu(v) * dot_row(p, w + p.n * p.row_bytes, x, lane);
  if (p.kind == UP_RELU2) v = fmaxf(v, 0.f), v *= v;
  if (lane == 0) row_of<float>(p.y, pair)[row] = v;
}
