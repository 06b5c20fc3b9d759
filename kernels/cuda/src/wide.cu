// Y = X W^T, Y += ..., or Y = act(X W^T), for up to 256 tokens of bf16: two blocks, each with its half of the tokens, share a
// tile's weights, which each copies half of, for both.
//
// A tile is ROWS rows of w and all tokens. SPLITS pairs of blocks, a cluster, share its columns; each has as many chunks of 64
// side by side, at least one. Their sums are added in order: so the order of all additions depends on the shape of w alone,
// never on the number of tokens. With gates and values a tile's first half are gates, the other one the values that belong to
// them.
//
// One thread copies: the weights of the whole ring while the kernel in front still runs, tokens behind them when it has
// ended; the next launch may start when the last chunk is asked for. A warpgroup multiplies 64 tokens; those that are not
// there are zeros.
#include "tiles.cuh"

struct Wide {
  TensorMap w, x;  // boxes of half of a tile's rows, and of TOKENS tokens; 64 columns
  Mat y;           // bf16
  Mat z;           // y times factors, if there are any
  uint64_t factors, squares;  // float [n] of the norm behind, or 0; float [tile][2 * TOKENS]
  int m, n, chunks, stages;   // n: outputs
  int act, add, even;         // even: eight columns of y, and of z and factors, may be accessed at once
  int tiles;                  // of the product in front, if this one's tokens are to be normed; else 0
  float width, eps;           // tokens' columns
};

constexpr int MOST_TILES = 40;  // of a product in front of a norm
// Shared memory: barriers of the ring, full and empty, and of sums; from RING on slots, or results: bf16, by warps, or sums,
// float [TOKENS][STRIDE], behind them those of other blocks, [block][MINE][STRIDE], and squares by four columns.
constexpr int MOST_STAGES = 16, EMPTY = 8 * MOST_STAGES, MET = 2 * EMPTY, RING = 1024;

// tile_load for the blocks of a cluster whose bits are set, at the same places.
__device__ __forceinline__ void tile_load_pair(uint32_t to, const TensorMap& map, int column, int row, uint32_t barrier, int mask, uint64_t keep) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint [%0], [%1, {%3, %4}], [%2], %5, %6;" ::"r"(to),
               "l"(&map), "r"(barrier), "r"(column), "r"(row), "h"((uint16_t)mask), "l"(keep) : "memory");
}
// Arrives at a block of the cluster, with nothing written to be seen there: that would cost a fence of the GPU.
__device__ __forceinline__ void barrier_arrive_at(uint32_t barrier, uint32_t rank) {
  asm volatile("{.reg .b32 a; mapa.shared::cluster.u32 a, %0, %1; mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [a];}" ::"r"(barrier), "r"(rank) : "memory");
}
// Copies shared memory to a block of the cluster, and has a barrier there count its bytes.
__device__ __forceinline__ void copy_to(uint32_t to, uint32_t from, uint32_t bytes, uint32_t barrier, uint32_t rank) {
  asm volatile("{.reg .b32 a, b; mapa.shared::cluster.u32 a, %0, %4; mapa.shared::cluster.u32 b, %3, %4; "
               "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [a], [%1], %2, [b];}" ::"r"(to), "r"(from), "r"(bytes), "r"(barrier), "r"(rank) : "memory");
}

// PARTS: products of a chunk's 16 columns, each of ROWS / PARTS rows.
template <int ROWS, int PARTS, int SPLITS, int TOKENS>
struct Block {
  static constexpr int CONSUMERS = 2 * TOKENS, PRODUCER = CONSUMERS;
  static constexpr int HALF = ROWS / 2, EACH = ROWS / PARTS, SUMS = EACH / 2;
  static constexpr int WEIGHTS = ROWS * ROW, STAGE = WEIGHTS + TOKENS * ROW;
  static constexpr int STRIDE = ROWS + 8;  // rows of eight floats apart are in banks of their own
  static constexpr int FOURS = ROWS / 4, MINE = TOKENS / SPLITS, PLACES = (MINE * FOURS + CONSUMERS - 1) / CONSUMERS;
  static constexpr int PIECE = MINE * STRIDE * 4;  // bytes of sums that a block adds up
  static constexpr bool MOVES = SUMS * PARTS > 104 && TOKENS > 64;  // registers, from the copying warpgroup to the others
  static constexpr int THREADS = CONSUMERS + (MOVES ? 128 : 32);
  static_assert(ROWS % 16 == 0, "halves are whole swizzled blocks");
  const Wide& p;
  uint8_t* space;
  uint32_t base;
  int tile, half, split;
  int first, count;  // chunks

  __device__ __forceinline__ Block(const Wide& p, uint8_t* space) : p(p), space(space) {
    const int rank = cluster_rank();
    base = shared_address(space), tile = blockIdx.x / (2 * SPLITS), half = rank % 2, split = rank / 2;
    first = p.chunks * split / SPLITS, count = p.chunks * (split + 1) / SPLITS - first;
  }

  __device__ __forceinline__ uint32_t full(int i) const { return base + 8 * i; }
  __device__ __forceinline__ uint32_t empty(int i) const { return base + EMPTY + 8 * i; }
  __device__ __forceinline__ uint32_t slot(int i) const { return base + RING + i * STAGE; }
  __device__ __forceinline__ bool gated() const { return PARTS == 2 && SPLITS == 1 && p.act == ACT_SILU_MUL; }

  __device__ __forceinline__ void open() const {
    if (threadIdx.x == PRODUCER) {
      tile_prefetch(p.w), tile_prefetch(p.x);
      for (int i = 0; i < p.stages; i++) barrier_open(full(i), 1), barrier_open(empty(i), 2 * CONSUMERS / 32);
      barrier_open(base + MET, 1);
      barriers_opened();
    }
    __syncthreads();
    cluster_barrier_relaxed();
  }

  // ---------------------------------------------------------------- copies

  __device__ __forceinline__ void copy_weights(int i, int chunk) const {
    const int row = gated() ? half * p.n + tile * HALF : tile * ROWS + half * HALF;
    barrier_expect(full(i), STAGE);
    tile_load_pair(slot(i) + half * HALF * ROW, p.w, chunk * CHUNK, row, full(i), 3 << 2 * split, KEEP_SHORT);
  }

  __device__ __forceinline__ void copy_tokens(int i, int chunk) const {
    tile_load(slot(i) + WEIGHTS, p.x, chunk * CHUNK, half * TOKENS, full(i), KEEP_NORMAL);
  }

  __device__ __forceinline__ void produce() const {
    const int early = min(p.stages, count);
    for (int i = 0; i < early; i++) copy_weights(i, first + i);
    pdl_wait();
    tile_fence();
    for (int i = 0; i < early; i++) copy_tokens(i, first + i);
    for (int i = p.stages, stage = 0, phase = 0; i < count; i++) {
      barrier_wait(empty(stage), phase);
      copy_weights(stage, first + i);
      copy_tokens(stage, first + i);
      if (++stage == p.stages) stage = 0, phase ^= 1;
    }
    pdl_trigger();
  }

  // ---------------------------------------------------------------- products

  // Tells both producers that this warp has read the slot of a chunk, if they wait for it.
  __device__ __forceinline__ void release(int i, int chunk) const {
    if (threadIdx.x % 32 < 2 && chunk + p.stages < count) barrier_arrive_at(empty(i), 2 * split + threadIdx.x % 32);
  }

  __device__ __forceinline__ void multiply(float (&sum)[PARTS][SUMS]) const {
    const uint32_t group = WEIGHTS + threadIdx.x / 128 * 64 * ROW;
    int before = 0;
#pragma unroll 1
    for (int c = 0, stage = 0, phase = 0; c < count; c++) {
      barrier_wait(full(stage), phase);
      const uint32_t a = operand(slot(stage) + group), b = operand(slot(stage));
      product_fence();
#pragma unroll
      for (int k = 0; k < CHUNK / 16; k++)
#pragma unroll
        for (int part = 0; part < PARTS; part++) products(sum[part], further(a, 32 * k), further(b, part * EACH * ROW + 32 * k), c > 0 || k > 0);
      product_commit();
      if (c > 0) {
        product_wait<1>();
        release(before, c - 1);
      }
      before = stage;
      if (++stage == p.stages) stage = 0, phase ^= 1;
    }
    product_wait<0>();
#pragma unroll
    for (int part = 0; part < PARTS; part++) pin(sum[part]);
  }

  // ---------------------------------------------------------------- results of a block that has all columns

  // Activations are of rounded numbers, as if they were stored.
  __device__ __forceinline__ static float rounded(float x) { return widen(narrow<bf16>(x)); }
  __device__ __forceinline__ static float gated_by(float gate, float up) { return quick_silu(rounded(gate)) * rounded(up); }
  __device__ __forceinline__ float last(float x, float scale) const {
    x *= scale;
    if (p.act != ACT_RELU2) return x;
    x = fmaxf(rounded(x), 0.f);
    return x * x;
  }

  // What a norm makes of the sums of squares of this thread's two tokens.
  __device__ __forceinline__ void load_scales(float (&scale)[2]) const {
    if (p.tiles == 0) {
      scale[0] = scale[1] = 1;
      return;
    }
    const int lane = threadIdx.x % 32;
    const float* from = ::at<const float>(p.squares) + half * TOKENS + threadIdx.x / 32 * 16 + lane / 4;
    float part[MOST_TILES / 4][2], sum[2] = {};
#pragma unroll
    for (int j = 0; j < MOST_TILES / 4; j++)
#pragma unroll
      for (int i = 0; i < 2; i++) part[j][i] = 4 * j + lane % 4 < p.tiles ? __ldcg(from + (4 * j + lane % 4) * 2 * TOKENS + 8 * i) : 0.f;
#pragma unroll
    for (int j = 0; j < MOST_TILES / 4; j++) sum[0] += part[j][0], sum[1] += part[j][1];
#pragma unroll
    for (int i = 0; i < 2; i++) {
      sum[i] += __shfl_xor_sync(~0u, sum[i], 1);
      sum[i] += __shfl_xor_sync(~0u, sum[i], 2);
      scale[i] = 1.f / sqrtf(sum[i] / p.width + p.eps);
    }
  }

  // A warp's 16 tokens, bf16, by way of shared memory: a row's 16 bytes lie beside each other in the stores.
  template <int OUTPUTS, bool GATED>
  __device__ __forceinline__ void store_whole(const float (&sum)[PARTS][SUMS], const float (&scale)[2]) const {
    constexpr int PITCH = OUTPUTS * 2 + 16, EIGHTS = OUTPUTS / 8;  // bytes: rows are 16 bytes apart modulo 128, or odd multiples of it
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint8_t* mine = space + RING + warp * 16 * PITCH;
#pragma unroll
    for (int j = 0; j < OUTPUTS / 8; j++)
#pragma unroll
      for (int i = 0; i < 2; i++) {
        constexpr int BLOCKS = EACH / 8;
        const int at = j % BLOCKS * 4 + 2 * i, part = j / BLOCKS;
        uint32_t v;
        if constexpr (GATED)
          v = pack_bf16(gated_by(sum[0][at] * scale[i], sum[1][at] * scale[i]), gated_by(sum[0][at + 1] * scale[i], sum[1][at + 1] * scale[i]));
        else
          v = pack_bf16(last(sum[part][at], scale[i]), last(sum[part][at + 1], scale[i]));
        *reinterpret_cast<uint32_t*>(mine + (lane / 4 + 8 * i) * PITCH + j * 16 + lane % 4 * 4) = v;
      }
    __syncwarp();
#pragma unroll 4
    for (int e = lane; e < 16 * EIGHTS; e += 32) {
      const int row = e / EIGHTS, column = e % EIGHTS * 8, token = half * TOKENS + warp * 16 + row, n = tile * OUTPUTS + column;
      if (token >= p.m || n >= p.n) continue;
      const uint4 v = *reinterpret_cast<const uint4*>(mine + row * PITCH + column * 2);
      bf16* y = row_of<bf16>(p.y, token) + n;
      if (p.even && n + 8 <= p.n) {
        *reinterpret_cast<uint4*>(y) = v;
      } else {
        const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 8; i++)
          if (n + i < p.n) y[i] = __ushort_as_bfloat16((unsigned short)(words[i / 2] >> i % 2 * 16));
      }
    }
  }

  // ---------------------------------------------------------------- results of blocks that share columns

  __device__ __forceinline__ void leave(const float (&sum)[PARTS][SUMS]) const {
    const int lane = threadIdx.x % 32;
    float* to = reinterpret_cast<float*>(space + RING) + (threadIdx.x / 32 * 16 + lane / 4) * STRIDE + lane % 4 * 2;
#pragma unroll
    for (int part = 0; part < PARTS; part++)
#pragma unroll
      for (int j = 0; j < EACH / 8; j++)
#pragma unroll
        for (int i = 0; i < 2; i++)
          *reinterpret_cast<float2*>(to + i * 8 * STRIDE + part * EACH + j * 8) = make_float2(sum[part][4 * j + 2 * i], sum[part][4 * j + 2 * i + 1]);
  }

  // Four outputs of a token that this block adds up.
  struct Place {
    int mine, token, column, n;  // token of this block's share, of the half; column of the tile, of y
    bool exists, whole;
  };
  __device__ __forceinline__ Place place(int i) const {
    const int e = i * CONSUMERS + threadIdx.x, mine = e / FOURS, token = split * MINE + mine, column = e % FOURS * 4, n = tile * ROWS + column;
    return {mine, token, column, n, mine < MINE && half * TOKENS + token < p.m && n < p.n, p.even && n + 4 <= p.n};
  }

  // What they are added to, bf16.
  __device__ __forceinline__ uint2 load_old(const Place& at) const {
    if (!p.add || !at.exists) return make_uint2(0, 0);
    const bf16* y = row_of<const bf16>(p.y, half * TOKENS + at.token) + at.n;
    return at.whole ? *reinterpret_cast<const uint2*>(y) : make_uint2(pair(y, 0, p.n - at.n), pair(y, 2, p.n - at.n));
  }

  // Stores them, and what the norm behind wants of them; returns the sum of their squares.
  __device__ __forceinline__ float store_new(const float (&v)[4], float4 factors, const Place& at) const {
    const int token = half * TOKENS + at.token;
    bf16* y = row_of<bf16>(p.y, token) + at.n;
    const uint2 r = make_uint2(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]));
    const float w[4] = {__uint_as_float(r.x << 16), __uint_as_float(r.x & 0xffff0000u), __uint_as_float(r.y << 16), __uint_as_float(r.y & 0xffff0000u)};
    if (at.whole) {
      *reinterpret_cast<uint2*>(y) = r;
      if (!p.factors) return 0;
      *reinterpret_cast<uint2*>(row_of<bf16>(p.z, token) + at.n) = make_uint2(pack_bf16(w[0] * factors.x, w[1] * factors.y), pack_bf16(w[2] * factors.z, w[3] * factors.w));
      return fmaf(w[0], w[0], fmaf(w[1], w[1], fmaf(w[2], w[2], w[3] * w[3])));
    }
    float squares = 0;
#pragma unroll
    for (int i = 0; i < 4; i++)
      if (at.n + i < p.n) {
        y[i] = narrow<bf16>(v[i]);
        squares = fmaf(w[i], w[i], squares);
        if (p.factors) row_of<bf16>(p.z, token)[at.n + i] = narrow<bf16>(w[i] * ::at<const float>(p.factors)[at.n + i]);
      }
    return squares;
  }

  // Sums of all blocks of the tile, in order, and what is there.
  __device__ __forceinline__ float finish(const float4 (&part)[SPLITS], uint2 old, const Place& at) const {
    float v[4] = {};
#pragma unroll
    for (int s = 0; s < SPLITS; s++) v[0] += part[s].x, v[1] += part[s].y, v[2] += part[s].z, v[3] += part[s].w;
    v[0] += __uint_as_float(old.x << 16), v[1] += __uint_as_float(old.x & 0xffff0000u);
    v[2] += __uint_as_float(old.y << 16), v[3] += __uint_as_float(old.y & 0xffff0000u);
    if (!at.exists) return 0;
    const float4 factors = p.factors && at.whole ? *reinterpret_cast<const float4*>(::at<const float>(p.factors) + at.n) : make_float4(0, 0, 0, 0);
    return store_new(v, factors, at);
  }

  // Each block of a pair's half adds up MINE tokens: the others' sums of these are copied behind its own, in order.
  __device__ __forceinline__ uint32_t piece(int from) const { return RING + (from == split ? from * PIECE : SPLITS * PIECE + (from - (from > split)) * PIECE); }
  __device__ __forceinline__ void exchange() const {
    show_products();
    if (threadIdx.x == 0) barrier_expect(base + MET, (SPLITS - 1) * PIECE);
    cluster_barrier();
    const int to = threadIdx.x;
    if (to < SPLITS && to != split) copy_to(base + RING + SPLITS * PIECE + (split - (split > to)) * PIECE, base + RING + to * PIECE, PIECE, base + MET, 2 * to + half);
    barrier_wait(base + MET, 0);
  }

  // Squares lie behind the sums, by tokens.
  __device__ __forceinline__ void store_shared(const uint2 (&old)[PLACES]) const {
    float* const squares = reinterpret_cast<float*>(space + RING + (2 * SPLITS - 1) * PIECE);
#pragma unroll
    for (int i = 0; i < PLACES; i++) {
      const Place at = place(i);
      float4 part[SPLITS];
#pragma unroll
      for (int s = 0; s < SPLITS; s++)
        part[s] = *reinterpret_cast<const float4*>(space + piece(s) + (min(at.mine, MINE - 1) * STRIDE + at.column) * 4);
      const float square = finish(part, old[i], at);
      if (p.factors && at.mine < MINE) squares[at.mine * (FOURS | 1) + at.column / 4] = square;
    }
    if (!p.factors) return;
    group_barrier<CONSUMERS>();
    if (threadIdx.x >= MINE) return;
    float sum = 0;
#pragma unroll 4
    for (int i = 0; i < FOURS; i++) sum += squares[threadIdx.x * (FOURS | 1) + i];
    ::at<float>(p.squares)[(tile * 2 + half) * TOKENS + split * MINE + threadIdx.x] = sum;
  }

  __device__ __forceinline__ void consume() const {
    float sum[PARTS][SUMS];
    uint2 old[SPLITS > 1 ? PLACES : 1];
    float scale[2];
    pdl_wait();
    if constexpr (SPLITS > 1) {
#pragma unroll
      for (int i = 0; i < PLACES; i++) old[i] = load_old(place(i));
    } else {
      load_scales(scale);
    }
    multiply(sum);
    group_barrier<CONSUMERS>();  // both warpgroups have read the ring
    if constexpr (SPLITS > 1) {
      leave(sum);
      exchange();
      store_shared(old);
    } else if (gated()) {
      if constexpr (PARTS == 2) store_whole<HALF, true>(sum, scale);
    } else {
      store_whole<ROWS, false>(sum, scale);
    }
  }

  __device__ __forceinline__ void run() const {
    open();
    if (threadIdx.x < CONSUMERS) {
      if constexpr (MOVES) more_registers<240>();
      consume();
    } else {
      if constexpr (MOVES) fewer_registers<24>();
      if (threadIdx.x == PRODUCER) produce();
      if (SPLITS > 1) cluster_barrier_relaxed();
    }
    cluster_barrier_relaxed();  // nobody leaves while others read its sums, or write its slots
  }
};

extern __shared__ __align__(1024) uint8_t space[];

#define WIDE(rows, parts, splits, tokens)                                                                                                          \
  extern "C" __global__ void __launch_bounds__((Block<rows, parts, splits, tokens>::THREADS), 1) wide_##rows##_##splits##_##tokens(PARAMS(Wide, p)) { \
    Block<rows, parts, splits, tokens>(p, space).run();                                                                                            \
  }
WIDE(176, 1, 4, 64)
WIDE(224, 1, 4, 64)
WIDE(112, 1, 1, 64)
WIDE(160, 1, 1, 64)
WIDE(192, 1, 1, 64)
WIDE(272, 2, 1, 64)
WIDE(288, 2, 1, 64)
WIDE(176, 1, 4, 128)
WIDE(224, 1, 4, 128)
WIDE(112, 1, 1, 128)
WIDE(160, 1, 1, 128)
WIDE(192, 1, 1, 128)
WIDE(272, 2, 1, 128)
WIDE(288, 2, 1, 128)
