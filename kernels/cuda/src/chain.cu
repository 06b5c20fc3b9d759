// A run of products in one launch, for up to 64 tokens of bf16: Y = act(norm(X) W^T) or Y += X W^T, each behind the one in
// front. Weights never stop coming: while a product's sums are added up and all blocks wait for each other, the ring fills
// with the next product's, and more of them come into the L2 cache.
//
// All blocks run at once, in clusters of BLOCKS. A tile of a product is `rows` rows of w and all tokens; one block has it, or
// the blocks of a cluster share its columns, and each adds up the sums of every BLOCKS-th token, in order. So the order of all
// additions depends on the shape of w alone, never on the number of tokens.
//
// A thread copies weights, as slots come free, another tokens, when all blocks are done with the product in front. A
// warpgroup multiplies TOKENS tokens: where there are fewer it reads what lies behind them, and its sums go nowhere.
//
// A norm: the product in front leaves, beside Y, Y times the norm's factors, which is what is multiplied, and sums of Y's
// squares by tiles, of which a third warp makes what the sums are scaled by in the end.
#include "tiles.cuh"

constexpr int LINKS = 4, BLOCKS = 4;
constexpr int TOKENS = 64;                         // of the warpgroup
constexpr int MOST_SHARED = 112, MOST_TILES = 33;  // rows of a shared tile; such tiles
constexpr int CONSUMERS = 128, WEIGHER = CONSUMERS / 32, THREADS = CONSUMERS + 96;  // WEIGHER: the first of three warps

struct Link {
  TensorMap w, x;  // boxes of rows of w (of half as many, gate and up) and of all tokens; 64 columns
  Mat y;           // bf16
  Mat z;           // y times factors, if there are any
  uint64_t factors;        // float [n] of the norm behind, or 0
  int n, rows, splits, chunks;  // n: outputs
  int act, add, even;           // even: columns of y, and of z and factors, may be accessed at once: four, or eight of a whole tile
  int tiles;                    // of the product in front, if this one's tokens are to be normed; else 0
  float width, eps;             // tokens' columns
  int ahead;                    // chunks that come into the L2 cache when the ring is full of this product's for the first time
};

struct Chain {
  Link links[LINKS];
  uint64_t squares, counters;  // float [tile][TOKENS]; int [LINKS + 1], zero between launches
  int count, m, stages;
  int stage, weights, results;  // bytes of a slot, of its weights; where results lie
};

// Shared memory: barriers; scales of tokens; from RING on the slots of the ring; behind them results: bf16, or, where blocks
// share columns, sums by the block that adds them up, float [BLOCKS][tokens / BLOCKS][stride], and those of the others.
constexpr int MOST_STAGES = 16, EMPTY = 8 * MOST_STAGES, MET = 2 * EMPTY, SCALED = MET + 8, SCALES = 512, RING = 1024;

// Copies shared memory to a block of the cluster, and has a barrier there count its bytes.
__device__ __forceinline__ void copy_to(uint32_t to, uint32_t from, uint32_t bytes, uint32_t barrier, uint32_t rank) {
  asm volatile("{.reg .b32 a, b; mapa.shared::cluster.u32 a, %0, %4; mapa.shared::cluster.u32 b, %3, %4; "
               "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [a], [%1], %2, [b];}" ::"r"(to), "r"(from), "r"(bytes), "r"(barrier), "r"(rank) : "memory");
}
// The two halves of a barrier of the cluster.
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() {
  __syncwarp();
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// Brings the map's box from (row, column) on into the L2 cache.
__device__ __forceinline__ void tile_bring(const TensorMap& map, int column, int row) {
  asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.L2::cache_hint [%0, {%1, %2}], %3;" ::"l"(&map), "r"(column), "r"(row), "l"((uint64_t)KEEP_NORMAL) : "memory");
}
// A counter of all blocks.
__device__ __forceinline__ void count_up(int* counter) { asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(counter) : "memory"); }
__device__ __forceinline__ int count_before(int* counter) {
  int v;
  asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;" : "=r"(v) : "l"(counter) : "memory");
  return v;
}
__device__ __forceinline__ int counted(const int* counter) {
  int v;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(v) : "l"(counter) : "memory");
  return v;
}

// What a block has of a product.
struct Share {
  int tile, split, first, count;  // chunks
  __device__ __forceinline__ Share(const Link& l) {
    const int rank = cluster_rank();
    tile = l.splits > 1 ? blockIdx.x / BLOCKS : blockIdx.x, split = l.splits > 1 ? rank : 0;
    const int each = l.act == ACT_SILU_MUL ? l.rows / 2 : l.rows;
    first = l.chunks * split / l.splits, count = tile * each < l.n ? l.chunks * (split + 1) / l.splits - first : 0;
  }
};

// A place in the ring.
struct Place {
  int stage = 0, phase = 0;
  __device__ __forceinline__ void next(int stages) {
    if (++stage == stages) stage = 0, phase ^= 1;
  }
};

struct Run {
  const Chain& p;
  uint8_t* space;
  uint32_t base;
  Place at;
  int met = 0, scaled = 0;  // parities

  __device__ __forceinline__ Run(const Chain& p, uint8_t* space) : p(p), space(space), base(shared_address(space)) {}
  __device__ __forceinline__ uint32_t full(int i) const { return base + 8 * i; }
  __device__ __forceinline__ uint32_t empty(int i) const { return base + EMPTY + 8 * i; }
  __device__ __forceinline__ uint32_t slot(int i) const { return base + RING + i * p.stage; }
  __device__ __forceinline__ float* scales() const { return reinterpret_cast<float*>(space + SCALES); }
  __device__ __forceinline__ int* counter(int link) const { return ::at<int>(p.counters) + link; }

  __device__ __forceinline__ void open() const {
    const int i = threadIdx.x - CONSUMERS;
    if (i >= 0 && i < MOST_STAGES) {
      if (i < p.count) tile_prefetch(p.links[i].w), tile_prefetch(p.links[i].x);
      barrier_open(full(i), 2), barrier_open(empty(i), CONSUMERS / 32);
      if (i == 0) barrier_open(base + MET, 1), barrier_open(base + SCALED, 32);
      barriers_opened();
    }
    __syncthreads();
    cluster_arrive();
  }

  // ---------------------------------------------------------------- copies

  // One thread.
  __device__ __forceinline__ void weigh() {
    for (int i = 0; i < p.count; i++) {
      const Link& l = p.links[i];
      const Share s(l);
      const bool pairs = l.act == ACT_SILU_MUL;
      const int half = l.rows / 2, row = s.tile * (pairs ? half : l.rows);
      for (int c = s.first; c < s.first + s.count; c++, at.next(p.stages)) {
        barrier_wait(empty(at.stage), at.phase ^ 1);
        barrier_expect(full(at.stage), l.rows * ROW);
        tile_load(slot(at.stage), l.w, c * CHUNK, row, full(at.stage), KEEP_SHORT);
        if (pairs) tile_load(slot(at.stage) + half * ROW, l.w, c * CHUNK, l.n + row, full(at.stage), KEEP_SHORT);
        if (c - s.first != p.stages - 1) continue;
        for (int b = c + 1; b <= min(c + l.ahead, s.first + s.count - 1); b++) {
          tile_bring(l.w, b * CHUNK, row);
          if (pairs) tile_bring(l.w, b * CHUNK, l.n + row);
        }
      }
    }
    pdl_wait();
    pdl_trigger();
  }

  // One thread.
  __device__ __forceinline__ void feed() {
    pdl_wait();
    for (int i = 0; i < p.count; i++) {
      const Link& l = p.links[i];
      const Share s(l);
      if (s.count == 0) continue;
      wait_for(i - 1);
      tile_fence();
      for (int c = s.first; c < s.first + s.count; c++, at.next(p.stages)) {
        barrier_wait(empty(at.stage), at.phase ^ 1);
        barrier_expect(full(at.stage), p.m * ROW);
        tile_load(slot(at.stage) + p.weights, l.x, c * CHUNK, 0, full(at.stage), KEEP_NORMAL);
      }
    }
  }

  // One thread, until all blocks are done with a product.
  __device__ __forceinline__ void wait_for(int link) const {
    if (link >= 0)
      while (counted(counter(link)) < (int)gridDim.x);
  }

  // A warp: what a norm makes of the sums of squares of each token.
  __device__ __forceinline__ void scale() const {
    const int lane = threadIdx.x % 32;
    pdl_wait();
    for (int i = 1; i < p.count; i++) {
      const Link& l = p.links[i];
      if (l.tiles == 0 || Share(l).count == 0) continue;
      if (lane == 0) wait_for(i - 1);
      __syncwarp();
      for (int t = lane; t < p.m; t += 32) {
        const float* from = ::at<const float>(p.squares) + t;
        float part[MOST_TILES], sum = 0;
#pragma unroll
        for (int j = 0; j < MOST_TILES; j++) part[j] = j < l.tiles ? __ldcg(from + j * TOKENS) : 0.f;
#pragma unroll
        for (int j = 0; j < MOST_TILES; j++) sum += part[j];
        scales()[t] = 1.f / sqrtf(sum / l.width + l.eps);
      }
      barrier_arrive(base + SCALED);
    }
  }

  // ---------------------------------------------------------------- products

  // A product of tiles of ROWS rows.
  template <int ROWS>
  __device__ __forceinline__ void product(const Link& l, const Share& s) {
    float sum[ROWS / 2] = {};
    barrier_wait(full(at.stage), at.phase);  // what is added to is there, too
    if constexpr (SHARED<ROWS>) {
      if (l.splits > 1) {
        Beside old[PLACES];
#pragma unroll
        for (int i = 0; i < PLACES; i++) old[i] = beside(l, s, i);
        multiply(sum, s.count);
        add_up(l, s, sum, old);
        return;
      }
    }
    if (threadIdx.x == 0) prefetch_l2(row_of<bf16>(l.y, 0) + min(s.tile * ROWS, l.n - 1));  // the address is looked up
    multiply(sum, s.count);
    if (l.tiles > 0) barrier_wait(base + SCALED, scaled), scaled ^= 1;
    leave(l, sum);
    group_barrier<CONSUMERS>();
    store_whole(l, s.tile);
  }

  template <int SUMS>
  __device__ __forceinline__ void multiply(float (&sum)[SUMS], int count) {
    pin(sum);
    int before = 0;
#pragma unroll 1
    for (int c = 0; c < count; c++, at.next(p.stages)) {
      barrier_wait(full(at.stage), at.phase);
      const uint32_t a = operand(slot(at.stage) + p.weights), b = operand(slot(at.stage));
      product_fence();
#pragma unroll
      for (int k = 0; k < CHUNK / 16; k++) products(sum, further(a, 32 * k), further(b, 32 * k), 1);
      product_commit();
      if (c > 0) {
        product_wait<1>();
        release(before);
      }
      before = at.stage;
    }
    product_wait<0>();
    pin(sum);
    release(before);
  }

  __device__ __forceinline__ void product_of(const Link& l, const Share& s) {
    switch (l.rows) {
      case 64: return product<64>(l, s);
      case 88: return product<88>(l, s);
      case 104: return product<104>(l, s);
      case 112: return product<112>(l, s);
      case 152: return product<152>(l, s);
      default: return product<160>(l, s);
    }
  }

  // Tells the copiers that this warp has read a slot.
  __device__ __forceinline__ void release(int i) const {
    if (threadIdx.x % 32 == 0) barrier_arrive(empty(i));
  }

  // ---------------------------------------------------------------- results of a tile that this block has

  // The first of this thread's two tokens; the other one is 8 behind it.
  __device__ __forceinline__ static int token() { return threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4; }
  // Bytes of a token's bf16: rows start in banks of their own.
  __device__ __forceinline__ static constexpr int pitch_of(int rows) { return (rows / 8 | 1) * 16; }

  // What is multiplied, bf16.
  template <int SUMS>
  __device__ __forceinline__ void leave(const Link& l, const float (&sum)[SUMS]) const {
    constexpr int PITCH = pitch_of(2 * SUMS);
    uint8_t* to = space + p.results + token() * PITCH + threadIdx.x % 4 * 4;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      if (token() + 8 * i >= p.m) break;
      const float f = l.tiles > 0 ? scales()[token() + 8 * i] : 1.f;
#pragma unroll
      for (int j = 0; j < SUMS / 4; j++) *reinterpret_cast<uint32_t*>(to + i * 8 * PITCH + j * 16) = pack_bf16(sum[4 * j + 2 * i] * f, sum[4 * j + 2 * i + 1] * f);
    }
  }

  // Activations are of rounded numbers.
  __device__ __forceinline__ static float low(uint32_t v) { return __uint_as_float(v << 16); }
  __device__ __forceinline__ static float high(uint32_t v) { return __uint_as_float(v & 0xffff0000u); }
  __device__ __forceinline__ static uint32_t gated(uint32_t gate, uint32_t up) {
    return pack_bf16(quick_silu(low(gate)) * low(up), quick_silu(high(gate)) * high(up));
  }
  __device__ __forceinline__ static uint32_t squared(uint32_t v) {
    const float a = fmaxf(low(v), 0.f), b = fmaxf(high(v), 0.f);
    return pack_bf16(a * a, b * b);
  }

  // Eight outputs of a token at a time.
  __device__ __forceinline__ void store_whole(const Link& l, int tile) const {
    const bool pairs = l.act == ACT_SILU_MUL;
    const int outputs = pairs ? l.rows / 2 : l.rows, eights = outputs / 8, pitch = pitch_of(l.rows), magic = (1 << 22) / eights + 1;
#pragma unroll 2
    for (int e = threadIdx.x; e < p.m * eights; e += CONSUMERS) {
      const int token = e * magic >> 22, column = (e - token * eights) * 8, n = tile * outputs + column;
      if (n >= l.n) continue;
      const uint8_t* from = space + p.results + token * pitch + column * 2;
      uint4 v = *reinterpret_cast<const uint4*>(from);
      if (pairs) {
        const uint4 up = *reinterpret_cast<const uint4*>(from + outputs * 2);
        v = make_uint4(gated(v.x, up.x), gated(v.y, up.y), gated(v.z, up.z), gated(v.w, up.w));
      } else if (l.act == ACT_RELU2) {
        v = make_uint4(squared(v.x), squared(v.y), squared(v.z), squared(v.w));
      }
      bf16* y = row_of<bf16>(l.y, token) + n;
      if (l.even && n + 8 <= l.n) {
        *reinterpret_cast<uint4*>(y) = v;
      } else {
        const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 8; i++)
          if (n + i < l.n) y[i] = __ushort_as_bfloat16((unsigned short)(words[i / 2] >> i % 2 * 16));
      }
    }
  }

  // ---------------------------------------------------------------- results of a tile that a cluster shares

  // Each block adds up every BLOCKS-th token, each warp every fourth one of these: up to PLACES, and each lane four columns.
  template <int ROWS>
  static constexpr bool SHARED = ROWS == 88 || ROWS == MOST_SHARED;
  static constexpr int PLACES = TOKENS / BLOCKS / (CONSUMERS / 32);
  struct Fours {
    int index, token, n;  // token of this block's share, of all; column of y
    bool exists, whole;
  };
  __device__ __forceinline__ Fours fours(const Link& l, const Share& s, int i) const {
    const int index = i * (CONSUMERS / 32) + threadIdx.x / 32, token = index * BLOCKS + s.split, column = threadIdx.x % 32 * 4, n = s.tile * l.rows + column;
    return {index, token, n, token < p.m && column < l.rows && n < l.n, l.even && n + 4 <= l.n};
  }

  // What four outputs are added to, and the factors of the norm behind. Where those go is looked up by then.
  struct Beside {
    uint2 y;
    float4 factors;
  };
  __device__ __forceinline__ Beside beside(const Link& l, const Share& s, int i) const {
    Beside b = {make_uint2(0, 0), make_float4(0, 0, 0, 0)};
    const Fours at = fours(l, s, i);
    if (!at.exists) return b;
    const bf16* y = row_of<const bf16>(l.y, at.token) + at.n;
    const float* factors = ::at<const float>(l.factors) + at.n;
    if (at.whole) {
      if (l.add) b.y = __ldcg(reinterpret_cast<const uint2*>(y));
      if (l.factors) b.factors = *reinterpret_cast<const float4*>(factors), prefetch_l2(row_of<bf16>(l.z, at.token) + at.n);
    } else {
      const int end = l.n - at.n;
      if (l.add) b.y = make_uint2(pair(y, 0, end), pair(y, 2, end));
      if (l.factors) b.factors = make_float4(factors[0], end > 1 ? factors[1] : 0.f, end > 2 ? factors[2] : 0.f, end > 3 ? factors[3] : 0.f);
    }
    return b;
  }

  // Of a token's sums: rows of eight floats apart are in banks of their own.
  __device__ __forceinline__ static constexpr int stride_of(int rows) { return rows + (rows % 16 == 8 ? 0 : 8); }
  __device__ __forceinline__ int share_of_tokens() const { return (p.m + BLOCKS - 1) / BLOCKS; }

  // Sums of all blocks of the cluster, in order, and what is there.
  template <int SUMS>
  __device__ __forceinline__ void add_up(const Link& l, const Share& s, const float (&sum)[SUMS], const Beside (&old)[PLACES]) {
    constexpr int STRIDE = stride_of(2 * SUMS);
    const int lane = threadIdx.x % 32, piece = share_of_tokens() * STRIDE * 4;
    float* to = reinterpret_cast<float*>(space + p.results) + ((token() % BLOCKS * share_of_tokens() + token() / BLOCKS) * STRIDE + lane % 4 * 2);
#pragma unroll
    for (int i = 0; i < 2; i++)
      if (token() + 8 * i < p.m)
#pragma unroll
        for (int j = 0; j < SUMS / 4; j++) *reinterpret_cast<float2*>(to + i * 8 / BLOCKS * STRIDE + j * 8) = make_float2(sum[4 * j + 2 * i], sum[4 * j + 2 * i + 1]);
    show_products();
    group_barrier<CONSUMERS>();
    // those of other blocks lie behind all that this one left, in order
    const int block = threadIdx.x;
    if (block == s.split) barrier_expect(base + MET, (BLOCKS - 1) * piece);
    if (block < BLOCKS && block != s.split)
      copy_to(base + p.results + (BLOCKS + s.split - (s.split > block)) * piece, base + p.results + block * piece, piece, base + MET, block);
    barrier_wait(base + MET, met), met ^= 1;
#pragma unroll
    for (int i = 0; i < PLACES; i++) {
      const Fours at = fours(l, s, i);
      if (at.index * BLOCKS + s.split >= p.m) break;
      float4 v = make_float4(0, 0, 0, 0);
#pragma unroll
      for (int from = 0; from < BLOCKS; from++) {
        const int where = from == s.split ? from : BLOCKS + from - (from > s.split);
        const float4 part = *reinterpret_cast<const float4*>(space + p.results + where * piece + (at.index * STRIDE + min(lane * 4, 2 * SUMS - 4)) * 4);
        v.x += part.x, v.y += part.y, v.z += part.z, v.w += part.w;
      }
      float square = store_four(l, at, v, old[i]);
      if (!l.factors) continue;
#pragma unroll
      for (int d = 16; d > 0; d /= 2) square += __shfl_xor_sync(~0u, square, d);
      if (lane == 0) ::at<float>(p.squares)[s.tile * TOKENS + at.token] = square;
    }
  }

  // Stores four outputs of a token, and what the norm behind wants of them; returns the sum of their squares.
  __device__ __forceinline__ float store_four(const Link& l, const Fours& at, const float4& v, const Beside& b) const {
    if (!at.exists) return 0;
    const uint2 r = make_uint2(pack_bf16(v.x + __uint_as_float(b.y.x << 16), v.y + __uint_as_float(b.y.x & 0xffff0000u)),
                               pack_bf16(v.z + __uint_as_float(b.y.y << 16), v.w + __uint_as_float(b.y.y & 0xffff0000u)));
    const float w[4] = {__uint_as_float(r.x << 16), __uint_as_float(r.x & 0xffff0000u), __uint_as_float(r.y << 16), __uint_as_float(r.y & 0xffff0000u)};
    const uint2 z = make_uint2(pack_bf16(w[0] * b.factors.x, w[1] * b.factors.y), pack_bf16(w[2] * b.factors.z, w[3] * b.factors.w));
    bf16* y = row_of<bf16>(l.y, at.token) + at.n;
    if (at.whole) {
      *reinterpret_cast<uint2*>(y) = r;
      if (l.factors) *reinterpret_cast<uint2*>(row_of<bf16>(l.z, at.token) + at.n) = z;
      return fmaf(w[0], w[0], fmaf(w[1], w[1], fmaf(w[2], w[2], w[3] * w[3])));
    }
    float squares = 0;
#pragma unroll
    for (int i = 0; i < 4; i++)
      if (at.n + i < l.n) {
        y[i] = __ushort_as_bfloat16((unsigned short)((i < 2 ? r.x : r.y) >> i % 2 * 16));
        squares = fmaf(w[i], w[i], squares);
        if (l.factors) row_of<bf16>(l.z, at.token)[at.n + i] = __ushort_as_bfloat16((unsigned short)((i < 2 ? z.x : z.y) >> i % 2 * 16));
      }
    return squares;
  }

  __device__ __forceinline__ void consume() {
    cluster_wait();  // for barriers of other blocks to be open
    pdl_wait();
#pragma unroll 1
    for (int i = 0; i < p.count; i++) {
      const Link& l = p.links[i];
      const Share s(l);
      if (s.count > 0) product_of(l, s);
      group_barrier<CONSUMERS>();
      if (threadIdx.x == 0) finish(i);
    }
  }

  // This block is done with a product. The last block that is done with all of them sets the counters back: nobody waits.
  __device__ __forceinline__ void finish(int link) const {
    if (link < p.count - 1) {
      count_up(counter(link));
    } else if (count_before(counter(LINKS)) == (int)gridDim.x - 1) {
      for (int i = 0; i <= LINKS; i++) *counter(i) = 0;
    }
  }

  __device__ __forceinline__ void run() {
    open();
    const int warp = threadIdx.x / 32;
    if (warp < WEIGHER)
      consume();
    else if (warp == WEIGHER + 2)
      scale();
    else if (threadIdx.x % 32 == 0)
      warp == WEIGHER ? weigh() : feed();
    if (warp >= WEIGHER) cluster_wait();
    cluster_barrier_relaxed();  // nobody leaves while others read its sums
  }
};

extern __shared__ __align__(1024) uint8_t space[];

extern "C" __global__ void __launch_bounds__(THREADS, 1) chain(PARAMS(Chain, p)) { Run(p, space).run(); }
