// Y = X W^T, or Y += ..., for up to 64 or 128 tokens of bf16, by narrow tiles: the GPU multiplies all of them at once.
//
// A tile is ROWS rows of w and all tokens. SPLITS blocks, a cluster, share its columns; each has as many chunks of 64 side by
// side, at least one. Their sums are added in order: so the order of all additions depends on the shape of w alone, never on
// the number of tokens.
//
// One thread copies: the weights of the whole ring while the kernel in front still runs, tokens behind them when it has
// ended; the next launch may start when the last chunk is asked for. A warpgroup multiplies 64 tokens; where there are fewer
// it reads what lies behind them, and its sums go nowhere. In the end sums lie where the ring was, and each block of a tile
// adds up every SPLITS-th token.
#include "tiles.cuh"

struct Narrow {
  TensorMap w, x;  // boxes of ROWS rows, and of all tokens; 64 columns
  Mat y;           // bf16
  int m, n, chunks, stages;
  int add, vector;  // vector: four columns of y at once may be loaded
  int stage;        // bytes of a slot: a chunk of weights and one of tokens, a multiple of 1024 each
};

constexpr int GROUP = 64;             // tokens of a warpgroup
// Shared memory: barriers of the ring, full and empty; from RING on its slots, or sums, float [TOKENS][STRIDE]. A warpgroup
// reads GROUP tokens of a slot, those of the last one too.
constexpr int MOST_STAGES = 16, EMPTY = 8 * MOST_STAGES, RING = 1024;

template <int ROWS, int SPLITS, int TOKENS>
struct Block {
  static constexpr int CONSUMERS = 2 * TOKENS, PRODUCER = CONSUMERS;
  static constexpr int WEIGHTS = ROWS * ROW;
  static constexpr int STRIDE = ROWS + (ROWS % 16 == 8 ? 0 : 8);  // rows of eight floats apart are in banks of their own
  static constexpr int FOURS = ROWS / 4, EACH = (TOKENS / SPLITS * FOURS + CONSUMERS - 1) / CONSUMERS;
  const Narrow& p;
  uint8_t* space;
  uint32_t base;
  int row, split;    // first of the tile; which of the blocks that share its columns
  int first, count;  // chunks

  __device__ __forceinline__ Block(const Narrow& p, uint8_t* space) : p(p), space(space) {
    base = shared_address(space), row = blockIdx.x / SPLITS * ROWS, split = SPLITS > 1 ? cluster_rank() : 0;
    first = p.chunks * split / SPLITS, count = p.chunks * (split + 1) / SPLITS - first;
  }

  __device__ __forceinline__ uint32_t full(int i) const { return base + 8 * i; }
  __device__ __forceinline__ uint32_t empty(int i) const { return base + EMPTY + 8 * i; }
  __device__ __forceinline__ uint32_t slot(int i) const { return base + RING + i * p.stage; }

  __device__ __forceinline__ void open() const {
    if (threadIdx.x == PRODUCER) {
      tile_prefetch(p.w), tile_prefetch(p.x);
      for (int i = 0; i < p.stages; i++) barrier_open(full(i), 1), barrier_open(empty(i), CONSUMERS / 32);
      barriers_opened();
    }
    __syncthreads();
  }

  // ---------------------------------------------------------------- copies

  __device__ __forceinline__ void copy_weights(int i, int chunk) const {
    barrier_expect(full(i), WEIGHTS + p.m * ROW);
    tile_load(slot(i), p.w, chunk * CHUNK, row, full(i), KEEP_SHORT);
  }

  __device__ __forceinline__ void copy_tokens(int i, int chunk) const {
    tile_load(slot(i) + WEIGHTS, p.x, chunk * CHUNK, 0, full(i), KEEP_NORMAL);
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

  // Tells the producer that this warp has read a slot.
  __device__ __forceinline__ void release(int i) const {
    if (threadIdx.x % 32 == 0) barrier_arrive(empty(i));
  }

  __device__ __forceinline__ void multiply(float (&sum)[ROWS / 2]) const {
    const uint32_t group = WEIGHTS + threadIdx.x / 128 * GROUP * ROW;
    int before = 0;
#pragma unroll 1
    for (int c = 0, stage = 0, phase = 0; c < count; c++) {
      barrier_wait(full(stage), phase);
      const uint32_t a = operand(slot(stage) + group), b = operand(slot(stage));
      product_fence();
#pragma unroll
      for (int k = 0; k < CHUNK / 16; k++) products(sum, further(a, 32 * k), further(b, 32 * k), c > 0 || k > 0);
      product_commit();
      if (c > 0) {
        product_wait<1>();
        release(before);
      }
      before = stage;
      if (++stage == p.stages) stage = 0, phase ^= 1;
    }
    product_wait<0>();
    pin(sum);
  }

  __device__ __forceinline__ void leave(const float (&sum)[ROWS / 2]) const {
    const int lane = threadIdx.x % 32;
    float* to = reinterpret_cast<float*>(space + RING) + (threadIdx.x / 32 * 16 + lane / 4) * STRIDE + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < ROWS / 8; j++)
#pragma unroll
      for (int i = 0; i < 2; i++) *reinterpret_cast<float2*>(to + i * 8 * STRIDE + j * 8) = make_float2(sum[4 * j + 2 * i], sum[4 * j + 2 * i + 1]);
  }

  // ---------------------------------------------------------------- results

  // Four outputs of a token that this block adds up.
  struct Place {
    int token, column, n;  // column of the tile, of y
    bool exists, whole;
  };
  __device__ __forceinline__ Place place(int i) const {
    const int e = i * CONSUMERS + threadIdx.x, token = e / FOURS * SPLITS + split, column = e % FOURS * 4, n = row + column;
    return {token, column, n, token < min(TOKENS, p.m) && n < p.n, p.vector && n + 4 <= p.n};
  }

  // What they are added to, bf16.
  __device__ __forceinline__ uint2 load_old(const Place& at) const {
    if (!p.add || !at.exists) return make_uint2(0, 0);
    const bf16* y = row_of<const bf16>(p.y, at.token) + at.n;
    return at.whole ? *reinterpret_cast<const uint2*>(y) : make_uint2(pair(y, 0, p.n - at.n), pair(y, 2, p.n - at.n));
  }

  __device__ __forceinline__ void store_new(const float (&v)[4], const Place& at) const {
    bf16* y = row_of<bf16>(p.y, at.token) + at.n;
    if (at.whole) {
      *reinterpret_cast<uint2*>(y) = make_uint2(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]));
    } else {
#pragma unroll
      for (int i = 0; i < 4; i++)
        if (at.n + i < p.n) y[i] = narrow<bf16>(v[i]);
    }
  }

  // Sums of all blocks of the tile, in order, and what is there.
  __device__ __forceinline__ void finish(const float4 (&part)[SPLITS], uint2 old, const Place& at) const {
    float v[4] = {};
#pragma unroll
    for (int s = 0; s < SPLITS; s++) v[0] += part[s].x, v[1] += part[s].y, v[2] += part[s].z, v[3] += part[s].w;
    v[0] += __uint_as_float(old.x << 16), v[1] += __uint_as_float(old.x & 0xffff0000u);
    v[2] += __uint_as_float(old.y << 16), v[3] += __uint_as_float(old.y & 0xffff0000u);
    if (at.exists) store_new(v, at);
  }

  // Where a place's sums lie in shared memory.
  __device__ __forceinline__ uint32_t offset(const Place& at) const { return RING + (min(at.token, TOKENS - 1) * STRIDE + at.column) * 4; }

  // Of a block that has all columns.
  __device__ __forceinline__ void store_whole() const {
    const int each = (p.m * FOURS + CONSUMERS - 1) / CONSUMERS;
#pragma unroll 4
    for (int i = 0; i < each; i++) {
      const Place at = place(i);
      float4 part[SPLITS] = {};
      part[0] = *reinterpret_cast<const float4*>(space + offset(at));
      finish(part, load_old(at), at);
    }
  }

  // All loads from other blocks are on their way before the first is waited for.
  __device__ __forceinline__ void store_shared(const uint2 (&old)[EACH]) const {
    float4 part[EACH][SPLITS];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
      const Place at = place(i);
#pragma unroll
      for (int s = 0; s < SPLITS; s++) part[i][s] = load_remote4(base + offset(at), s);
    }
#pragma unroll
    for (int i = 0; i < EACH; i++) finish(part[i], old[i], place(i));
  }

  __device__ __forceinline__ void consume() const {
    float sum[ROWS / 2];
    uint2 old[SPLITS > 1 ? EACH : 1];
    pdl_wait();
    if constexpr (SPLITS > 1)
#pragma unroll
      for (int i = 0; i < EACH; i++) old[i] = load_old(place(i));
    multiply(sum);
    group_barrier<CONSUMERS>();  // both warpgroups have read the ring
    leave(sum);
    if constexpr (SPLITS > 1) {
      cluster_barrier();
      store_shared(old);
    } else {
      group_barrier<CONSUMERS>();
      store_whole();
    }
  }

  __device__ __forceinline__ void run() const {
    open();
    if (threadIdx.x < CONSUMERS) {
      consume();
    } else {
      if (threadIdx.x == PRODUCER) produce();
      if (SPLITS > 1) cluster_barrier_relaxed();
    }
    if (SPLITS > 1) cluster_barrier_relaxed();  // nobody leaves while others read its sums
  }
};

extern __shared__ __align__(1024) uint8_t space[];

#define NARROW(rows, splits, tokens)                                                                                      \
  extern "C" __global__ void __launch_bounds__(2 * tokens + 32, 1) narrow_##rows##_##splits##_##tokens(PARAMS(Narrow, p)) { \
    Block<rows, splits, tokens>(p, space).run();                                                                          \
  }
NARROW(88, 4, 64)
NARROW(112, 4, 64)
NARROW(80, 1, 64)
NARROW(96, 1, 64)
NARROW(144, 1, 64)
NARROW(88, 4, 128)
NARROW(112, 4, 128)
NARROW(96, 1, 128)
NARROW(144, 1, 128)
