// A run of products in one launch, for up to 64 tokens of bf16: Y = act(norm(X) W^T) or Y += X W^T, each behind the one in
// front. Weights never stop coming: while a product's sums are added up and all blocks wait for each other, the ring fills
// with the next product's.
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
constexpr int TOKENS = 64;            // of the warpgroup
constexpr int MOST_SHARED = 112, MOST_TILES = 33;  // rows of a shared tile; such tiles
constexpr int CONSUMERS = 128, WEIGHER = CONSUMERS / 32, THREADS = CONSUMERS + 96;  // WEIGHER: the first of three warps

struct Link {
  TensorMap w, x;  // boxes of rows of w (of half as many, gate and up) and of all tokens; 64 columns
  Mat y;           // bf16
  Mat z;           // y times factors, if there are any
  uint64_t factors;        // float [n] of the norm behind, or 0
  int n, rows, splits, chunks;  // n: outputs
  int act, add, even;           // even: four columns of y, and of factors, may be loaded at once
  int tiles;                    // of the product in front, if this one's tokens are to be normed; else 0
  float width, eps;             // tokens' columns
};

struct Chain {
  Link links[LINKS];
  uint64_t squares, counters;  // float [tile][TOKENS]; int [LINKS + 1], zero between launches
  int count, m, stages;
  int stage, weights, sums;  // bytes of a slot, of its weights; where sums lie
};

// Shared memory: barriers; scales of tokens; squares by four columns, float [TOKENS / BLOCKS][MOST_SHARED / 4]; from RING on
// the slots of the ring; behind them sums, float [tokens][stride], or [BLOCKS][tokens / BLOCKS][stride] where blocks share.
constexpr int MOST_STAGES = 16, EMPTY = 8 * MOST_STAGES, MET = 2 * EMPTY, SCALED = MET + 8, SCALES = 512, SQUARES = 1024;
constexpr int RING = SQUARES + 2048;
static_assert(TOKENS / BLOCKS * MOST_SHARED <= 2048, "squares fit");

// The same place in a block of the cluster.
__device__ __forceinline__ uint32_t place_at(uint32_t shared, uint32_t rank) {
  uint32_t a;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(a) : "r"(shared), "r"(rank));
  return a;
}
// Stores two floats in a block of the cluster, and has a barrier there count their bytes.
__device__ __forceinline__ void push_two(uint32_t to, float x, float y, uint32_t barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(to), "f"(x), "f"(y), "r"(barrier) : "memory");
}
__device__ __forceinline__ void barrier_wait_cluster(uint32_t barrier, uint32_t parity) {
  uint32_t passed;
  do {
    asm volatile("{.reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}" : "=r"(passed) : "r"(barrier), "r"(parity) : "memory");
  } while (!passed);
}
// The two halves of a barrier of the cluster.
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() {
  __syncwarp();
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
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
    if (threadIdx.x == CONSUMERS) {
      for (int i = 0; i < p.count; i++) tile_prefetch(p.links[i].w), tile_prefetch(p.links[i].x);
      for (int i = 0; i < p.stages; i++) barrier_open(full(i), 2), barrier_open(empty(i), CONSUMERS / 32);
      barrier_open(base + MET, 1), barrier_open(base + SCALED, 32);
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

  // Multiplies a tile of ROWS rows, and leaves the sums where they are added up.
  template <int ROWS>
  __device__ __forceinline__ void multiply(int count, int splits, int split) {
    float sum[ROWS / 2] = {};
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
    if (splits > 1)
      push<ROWS>(sum, split);
    else
      leave<ROWS>(sum);
  }

  template <int ROWS>
  __device__ __forceinline__ void leave(const float (&sum)[ROWS / 2]) const {
    const int lane = threadIdx.x % 32, token = threadIdx.x / 32 * 16 + lane / 4;
    float* to = reinterpret_cast<float*>(space + p.sums) + token * stride_of(ROWS) + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 2; i++)
      if (token + 8 * i < p.m)
#pragma unroll
        for (int j = 0; j < ROWS / 8; j++) *reinterpret_cast<float2*>(to + i * 8 * stride_of(ROWS) + j * 8) = make_float2(sum[4 * j + 2 * i], sum[4 * j + 2 * i + 1]);
  }

  // To the block of the cluster that adds up the token: [block it comes from][tokens / BLOCKS][stride].
  template <int ROWS>
  __device__ __forceinline__ void push(const float (&sum)[ROWS / 2], int split) const {
    const int lane = threadIdx.x % 32, token = threadIdx.x / 32 * 16 + lane / 4, rank = token % BLOCKS;
    const uint32_t barrier = place_at(base + MET, rank);
    const uint32_t to = place_at(base + p.sums + ((split * share_of_tokens() + token / BLOCKS) * stride_of(ROWS) + lane % 4 * 2) * 4, rank);
#pragma unroll
    for (int i = 0; i < 2; i++)
      if (token + 8 * i < p.m)
#pragma unroll
        for (int j = 0; j < ROWS / 8; j++) push_two(to + (i * 8 / BLOCKS * stride_of(ROWS) + j * 8) * 4, sum[4 * j + 2 * i], sum[4 * j + 2 * i + 1], barrier);
  }
  __device__ __forceinline__ int share_of_tokens() const { return (p.m + BLOCKS - 1) / BLOCKS; }

  // Of a token's sums: rows of eight floats apart are in banks of their own.
  __device__ __forceinline__ static constexpr int stride_of(int rows) { return rows + (rows % 16 == 8 ? 0 : 8); }

  __device__ __forceinline__ void multiply(int rows, int count, int splits, int split) {
    switch (rows) {
      case 64: return multiply<64>(count, splits, split);
      case 88: return multiply<88>(count, splits, split);
      case 104: return multiply<104>(count, splits, split);
      case 112: return multiply<112>(count, splits, split);
      case 152: return multiply<152>(count, splits, split);
      default: return multiply<160>(count, splits, split);
    }
  }

  // Tells the copiers that this warp has read a slot.
  __device__ __forceinline__ void release(int i) const {
    if (threadIdx.x % 32 == 0) barrier_arrive(empty(i));
  }

  // ---------------------------------------------------------------- results

  // What four outputs are added to, and the factors of the norm behind; nothing where they are stored one by one.
  struct Beside {
    uint2 y;
    float4 factors;
  };
  __device__ __forceinline__ static bool at_once(const Link& l, int column) { return l.even && column + 4 <= l.n; }
  __device__ __forceinline__ Beside beside(const Link& l, int token, int column) const {
    Beside b = {make_uint2(0, 0), make_float4(0, 0, 0, 0)};
    if (!at_once(l, column) || token >= p.m) return b;
    if (l.add) b.y = *reinterpret_cast<const uint2*>(row_of<const bf16>(l.y, token) + column);
    if (l.factors) b.factors = *reinterpret_cast<const float4*>(::at<const float>(l.factors) + column);
    return b;
  }

  // Four outputs of a token: stores them, and what the norm behind wants of them; returns the sum of their squares.
  __device__ __forceinline__ float store(const Link& l, int token, int column, const float4& v, const Beside& b) const {
    if (!at_once(l, column)) return store_each(l, token, column, v);
    const uint2 r = make_uint2(pack_bf16(v.x + __uint_as_float(b.y.x << 16), v.y + __uint_as_float(b.y.x & 0xffff0000u)),
                               pack_bf16(v.z + __uint_as_float(b.y.y << 16), v.w + __uint_as_float(b.y.y & 0xffff0000u)));
    *reinterpret_cast<uint2*>(row_of<bf16>(l.y, token) + column) = r;
    if (!l.factors) return 0;
    const float w[4] = {__uint_as_float(r.x << 16), __uint_as_float(r.x & 0xffff0000u), __uint_as_float(r.y << 16), __uint_as_float(r.y & 0xffff0000u)};
    *reinterpret_cast<uint2*>(row_of<bf16>(l.z, token) + column) = make_uint2(pack_bf16(w[0] * b.factors.x, w[1] * b.factors.y), pack_bf16(w[2] * b.factors.z, w[3] * b.factors.w));
    return fmaf(w[0], w[0], fmaf(w[1], w[1], fmaf(w[2], w[2], w[3] * w[3])));
  }
  __device__ __forceinline__ float store_each(const Link& l, int token, int column, const float4& v) const {
    const float list[4] = {v.x, v.y, v.z, v.w};
    float squares = 0;
#pragma unroll
    for (int i = 0; i < 4; i++)
      if (column + i < l.n) {
        bf16* y = row_of<bf16>(l.y, token) + column + i;
        const bf16 r = narrow<bf16>(list[i] + (l.add ? widen(*y) : 0.f));
        *y = r;
        squares = fmaf(widen(r), widen(r), squares);
        if (l.factors) row_of<bf16>(l.z, token)[column + i] = narrow<bf16>(widen(r) * ::at<const float>(l.factors)[column + i]);
      }
    return squares;
  }

  // Activations are of rounded numbers, as if they were stored.
  __device__ __forceinline__ static float rounded(float x) { return widen(narrow<bf16>(x)); }
  __device__ __forceinline__ static float gated(float gate, float up) { return quick_silu(rounded(gate)) * rounded(up); }
  __device__ __forceinline__ static float squared(float x) {
    x = fmaxf(rounded(x), 0.f);
    return x * x;
  }
  __device__ __forceinline__ static float4 times(float4 v, float f) { return make_float4(v.x * f, v.y * f, v.z * f, v.w * f); }

  // Of a tile that this block has.
  __device__ __forceinline__ void store_whole(const Link& l, int tile) const {
    const bool pairs = l.act == ACT_SILU_MUL;
    const int outputs = pairs ? l.rows / 2 : l.rows, fours = outputs / 4, stride = stride_of(l.rows), magic = (1 << 22) / fours + 1;
    const float* sums = reinterpret_cast<const float*>(space + p.sums);
#pragma unroll 4
    for (int e = threadIdx.x; e < p.m * fours; e += CONSUMERS) {
      const int token = e * magic >> 22, column = (e - token * fours) * 4;
      if (tile * outputs + column >= l.n) continue;
      const float f = l.tiles > 0 ? scales()[token] : 1.f;
      float4 v = times(*reinterpret_cast<const float4*>(sums + token * stride + column), f);
      if (pairs) {
        const float4 up = times(*reinterpret_cast<const float4*>(sums + token * stride + outputs + column), f);
        v = make_float4(gated(v.x, up.x), gated(v.y, up.y), gated(v.z, up.z), gated(v.w, up.w));
      } else if (l.act == ACT_RELU2) {
        v = make_float4(squared(v.x), squared(v.y), squared(v.z), squared(v.w));
      }
      store(l, token, tile * outputs + column, v, beside(l, token, tile * outputs + column));
    }
  }

  // Of a tile that a cluster shares: each block adds up every BLOCKS-th token. What sums are added to is on its way while
  // they come.
  __device__ __forceinline__ void store_shared(const Link& l, int tile, int rank) {
    const int stride = stride_of(l.rows), fours = l.rows / 4, tokens = (p.m - rank + BLOCKS - 1) / BLOCKS, magic = (1 << 22) / fours + 1;
    const float* sums = reinterpret_cast<const float*>(space + p.sums);
    float* const squares = reinterpret_cast<float*>(space + SQUARES);
    int mine = threadIdx.x * magic >> 22, column = tile * l.rows + (threadIdx.x - mine * fours) * 4;
    Beside b = beside(l, mine * BLOCKS + rank, column);
    if (threadIdx.x == 0) barrier_expect(base + MET, BLOCKS * tokens * l.rows * 4);
    barrier_wait_cluster(base + MET, met), met ^= 1;
    for (int e = threadIdx.x; e < tokens * fours; e += CONSUMERS) {
      const int next = (e + CONSUMERS) * magic >> 22, column_next = tile * l.rows + (e + CONSUMERS - next * fours) * 4;
      const Beside b_next = beside(l, next * BLOCKS + rank, column_next);
      float4 part[BLOCKS], v = make_float4(0, 0, 0, 0);
#pragma unroll
      for (int s = 0; s < BLOCKS; s++) part[s] = *reinterpret_cast<const float4*>(sums + (s * share_of_tokens() + mine) * stride + column - tile * l.rows);
#pragma unroll
      for (int s = 0; s < BLOCKS; s++) v.x += part[s].x, v.y += part[s].y, v.z += part[s].z, v.w += part[s].w;
      const float square = column < l.n ? store(l, mine * BLOCKS + rank, column, v, b) : 0.f;
      if (l.factors) squares[e] = square;
      mine = next, column = column_next, b = b_next;
    }
    if (!l.factors) return;
    group_barrier<CONSUMERS>();
    if ((int)threadIdx.x < tokens) {
      float sum = 0;
#pragma unroll 4
      for (int i = 0; i < fours; i++) sum += squares[threadIdx.x * fours + i];
      ::at<float>(p.squares)[tile * TOKENS + threadIdx.x * BLOCKS + rank] = sum;
    }
  }

  __device__ __forceinline__ void product(const Link& l, const Share& s) {
    multiply(l.rows, s.count, l.splits, s.split);
    if (l.tiles > 0) barrier_wait(base + SCALED, scaled), scaled ^= 1;
    if (l.splits > 1) {
      store_shared(l, s.tile, s.split);
    } else {
      group_barrier<CONSUMERS>();
      store_whole(l, s.tile);
    }
  }

  __device__ __forceinline__ void consume() {
    cluster_wait();  // for barriers of other blocks to be open
    pdl_wait();
#pragma unroll 1
    for (int i = 0; i < p.count; i++) {
      const Link& l = p.links[i];
      const Share s(l);
      if (s.count > 0) product(l, s);
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
