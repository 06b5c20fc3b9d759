// Y = X W^T, Y += ..., or Y = act(X W^T), for up to 256 tokens of bf16: two blocks, each with its half of the tokens, share a
// tile's weights, which each copies half of, for both.
//
// A tile is ROWS rows of w and all tokens. SPLITS pairs of blocks, a cluster, share its columns; each has as many chunks of 64
// side by side, at least one. Their sums are added in order: so the order of all additions depends on the shape of w alone,
// never on the number of tokens. With gates and values a tile's first half are gates, the other one the values that belong to
// them.
//
// One thread copies: weights of the first slots while the kernel in front still runs, tokens behind them when it has ended.
// When the last chunk is asked for the next launch may start; while sums are added up and stored some weights of the product
// behind come into the L2 cache. A warpgroup multiplies 64 tokens; where a block has fewer it reads what lies there, and its
// sums go nowhere.
#include "tiles.cuh"

struct Wide {
  TensorMap w, x;  // boxes of half of a tile's rows, and of half of the tokens; 64 columns
  TensorMap next;  // as w, of the product behind
  Mat y;           // bf16
  Mat z;           // y times factors, if there are any
  uint64_t factors, squares;  // float [n] of the norm behind, or 0; float [part][2 * TOKENS], a part being a block's outputs
  int m, n, chunks, stages;   // n: outputs
  int box;                    // tokens of a block
  int act, add, even;         // even: eight columns of y, and of z and factors, may be accessed at once
  int parts;                  // of the product in front, if this one's tokens are to be normed; else 0
  float width, eps;           // tokens' columns
  int early;                  // slots whose weights do not wait for the kernel in front
  int blocks, splits, next_chunks;  // of the product behind; 0 blocks: none
  int every, brought;               // of so many chunks one comes into the L2 cache, so many for each of its blocks
  int step, apart;                  // rows of its w from tile to tile, and to the other half's box
};

// Shared memory: barriers of the ring, full and empty, of sums by warps, of the place for sums, and of scales; scales of tokens;
// from RING on slots; in the end, in the first ones, sums of other blocks, float4 [warp][block][eight columns][lane], and results,
// bf16 by warps.
constexpr int MOST_STAGES = 16, EMPTY = 8 * MOST_STAGES, MET = 2 * EMPTY, CLEAR = MET + 64, SCALED = CLEAR + 8, SCALES = 512, RING = 1024;

// tile_load for the blocks of a cluster whose bits are set, at the same places.
__device__ __forceinline__ void tile_load_pair(uint32_t to, const TensorMap& map, int column, int row, uint32_t barrier, int mask, uint64_t keep) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint [%0], [%1, {%3, %4}], [%2], %5, %6;" ::"r"(to),
               "l"(&map), "r"(barrier), "r"(column), "r"(row), "h"((uint16_t)mask), "l"(keep) : "memory");
}
// Arrives at a block of the cluster, with nothing written to be seen there: that would cost a fence of the GPU.
__device__ __forceinline__ void barrier_arrive_at(uint32_t barrier, uint32_t rank) {
  asm volatile("{.reg .b32 a; mapa.shared::cluster.u32 a, %0, %1; mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [a];}" ::"r"(barrier), "r"(rank) : "memory");
}
// The same place in a block of the cluster.
__device__ __forceinline__ uint32_t place_at(uint32_t shared, uint32_t rank) {
  uint32_t a;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(a) : "r"(shared), "r"(rank));
  return a;
}
// Stores four floats in a block of the cluster, and has a barrier there count their bytes.
__device__ __forceinline__ void push_four(uint32_t to, const float* v, uint32_t barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]), "r"(barrier)
               : "memory");
}
__device__ __forceinline__ void barrier_wait_cluster(uint32_t barrier, uint32_t parity) {
  uint32_t passed;
  do {
    asm volatile("{.reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}" : "=r"(passed) : "r"(barrier), "r"(parity) : "memory");
  } while (!passed);
}
// Brings the map's box from (row, column) on into the L2 cache.
__device__ __forceinline__ void tile_bring(const TensorMap& map, int column, int row) {
  asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global [%0, {%1, %2}];" ::"l"(&map), "r"(column), "r"(row) : "memory");
}
// quick_silu without the instructions that results below 2^-126 want.
__device__ __forceinline__ float silu_of(float x) {
  float e, r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(x * -1.44269504f));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(1.f + e));
  return x * r;
}

// A place in a ring that begins with slot `first`.
struct Place {
  int stage, phase, first;
  __device__ __forceinline__ Place(int first) : stage(first), phase(0), first(first) {}
  __device__ __forceinline__ void next(int stages) {
    if (++stage == stages) stage = 0;
    if (stage == first) phase ^= 1;
  }
};

// PARTS: products of a chunk's 16 columns, each of ROWS / PARTS rows.
template <int ROWS, int PARTS, int SPLITS, int TOKENS>
struct Block {
  static constexpr int CONSUMERS = 2 * TOKENS, PRODUCER = CONSUMERS, SCALER = CONSUMERS + 32;
  static constexpr int HALF = ROWS / 2, EACH = ROWS / PARTS, SUMS = EACH / 2;
  static constexpr int WEIGHTS = ROWS * ROW, STAGE = WEIGHTS + TOKENS * ROW;
  static constexpr int EIGHTS = ROWS / 8, MOST = (EIGHTS + SPLITS - 1) / SPLITS;  // eight columns, of a tile and that a block adds up
  static constexpr int PITCH = MOST * 16 + (MOST % 2 ? 0 : 16);                      // bytes of a row of results
  static constexpr int PLACE = SPLITS > 1 ? (SPLITS - 1) * MOST * 512 : 16 * PITCH;  // bytes of a warp in the first slots
  static constexpr int CLEARED = (CONSUMERS / 32 * PLACE + STAGE - 1) / STAGE;       // slots that those of all warps take
  static constexpr bool MOVES = SUMS * PARTS > 104 && TOKENS > 64;  // registers, from the copying warpgroup to the others
  static constexpr int THREADS = CONSUMERS + (MOVES ? 128 : 64);
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

  // The last chunks end with the last slot: the first ones are done with before.
  __device__ __forceinline__ Place begin() const { return Place(count % p.stages ? p.stages - count % p.stages : 0); }
  __device__ __forceinline__ static constexpr int eights_before(int split) { return EIGHTS * split / SPLITS; }
  __device__ __forceinline__ int eights() const { return eights_before(split + 1) - eights_before(split); }
  __device__ __forceinline__ float* scales() const { return reinterpret_cast<float*>(space + SCALES); }
  __device__ __forceinline__ int token_of(int mine) const { return mine < p.box ? half * p.box + mine : p.m; }  // m: none

  __device__ __forceinline__ uint32_t full(int i) const { return base + 8 * i; }
  __device__ __forceinline__ uint32_t empty(int i) const { return base + EMPTY + 8 * i; }
  __device__ __forceinline__ uint32_t slot(int i) const { return base + RING + i * STAGE; }
  __device__ __forceinline__ bool gated() const { return PARTS == 2 && SPLITS == 1 && p.act == ACT_SILU_MUL; }

  __device__ __forceinline__ void open() const {
    if (threadIdx.x == PRODUCER) {
      tile_prefetch(p.w), tile_prefetch(p.x);
      for (int i = 0; i < p.stages; i++) barrier_open(full(i), 1), barrier_open(empty(i), 2 * CONSUMERS / 32);
      for (int i = 0; SPLITS > 1 && i < CONSUMERS / 32; i++) {
        barrier_open(base + MET + 8 * i, 1);
        barrier_expect(base + MET + 8 * i, (SPLITS - 1) * eights() * 512);
      }
      barrier_open(base + CLEAR, (SPLITS > 1 ? SPLITS - 1 : 1) * CONSUMERS / 32);
      barrier_open(base + SCALED, 32);
      barriers_opened();
    }
    __syncthreads();
    cluster_barrier_relaxed();
  }

  // ---------------------------------------------------------------- copies

  __device__ __forceinline__ void copy_weights(int i, int chunk) const {
    const int row = gated() ? half * p.n + tile * HALF : tile * ROWS + half * HALF;
    barrier_expect(full(i), WEIGHTS + p.box * ROW);
    tile_load_pair(slot(i) + half * HALF * ROW, p.w, chunk * CHUNK, row, full(i), 3 << 2 * split, KEEP_SHORT);
  }

  __device__ __forceinline__ void copy_tokens(int i, int chunk) const {
    tile_load(slot(i) + WEIGHTS, p.x, chunk * CHUNK, half * p.box, full(i), KEEP_NORMAL);
  }

  __device__ __forceinline__ void produce() const {
    const int early = min(p.early, min(p.stages, count));
    Place at = begin(), last = at;
    for (int i = 0; i < early; i++, at.next(p.stages)) copy_weights(at.stage, first + i);
    pdl_wait();
    tile_fence();
    at = begin();
    for (int i = 0; i < count; i++, at.next(p.stages)) {
      if (i >= p.stages) barrier_wait(empty(at.stage), at.phase ^ 1);
      if (i >= early) copy_weights(at.stage, first + i);
      copy_tokens(at.stage, first + i);
      last = at;
    }
    pdl_trigger();
    if (p.blocks == 0) return;
    barrier_wait(full(last.stage), last.phase);  // what is brought does not delay what is waited for
    bring_next();
  }

  // A chunk of every few, for each block of the product behind: so its copies, which then come from memory and from the L2 cache
  // by turns, never leave memory idle.
  __device__ __forceinline__ void bring_next() const {
    for (int block = blockIdx.x; block < p.blocks; block += gridDim.x) {
      const int split = block / 2 % p.splits, chunk = p.next_chunks * split / p.splits, end = p.next_chunks * (split + 1) / p.splits;
      for (int i = 1; i <= p.brought && chunk + i * p.every <= end; i++)
        tile_bring(p.next, (chunk + i * p.every - 1) * CHUNK, block / 2 / p.splits * p.step + block % 2 * p.apart);
    }
  }

  // A warp: what a norm makes of the sums of squares of each token.
  __device__ __forceinline__ void scale() const {
    if (SPLITS > 1 || p.parts == 0) return;
    pdl_wait();
    for (int t = threadIdx.x % 32; t < p.box; t += 32) {
      const float* from = ::at<const float>(p.squares) + half * TOKENS + t;
      float sum = 0;
#pragma unroll 1
      for (int j = 0; j < p.parts; j += 8) {
        float part[8];
#pragma unroll
        for (int i = 0; i < 8; i++) part[i] = j + i < p.parts ? __ldcg(from + (j + i) * 2 * TOKENS) : 0.f;
#pragma unroll
        for (int i = 0; i < 8; i++) sum += part[i];
      }
      scales()[t] = 1.f / sqrtf(sum / p.width + p.eps);
    }
    barrier_arrive(base + SCALED);
  }

  // ---------------------------------------------------------------- products

  // Tells both producers that this warp has read the slot of a chunk, if they wait for it.
  __device__ __forceinline__ void release(int i, int chunk) const {
    if (threadIdx.x % 32 < 2 && chunk + p.stages < count) barrier_arrive_at(empty(i), 2 * split + threadIdx.x % 32);
  }

  // Tells those who write there, other blocks of a tile or this one, that this warp has read the first slots.
  __device__ __forceinline__ void clear() const {
    const int to = threadIdx.x % 32;
    if (SPLITS > 1 ? to < SPLITS && to != split : to == 0) barrier_arrive_at(base + CLEAR, 2 * (SPLITS > 1 ? to : 0) + half);
  }

  __device__ __forceinline__ void multiply(float (&sum)[PARTS][SUMS]) const {
    const uint32_t group = WEIGHTS + threadIdx.x / 128 * 64 * ROW;
    const int cleared = count - p.stages + CLEARED - 1;
    Place at = begin();
    int before = 0;
    if (cleared < 0) clear();
#pragma unroll 1
    for (int c = 0; c < count; c++, at.next(p.stages)) {
      barrier_wait(full(at.stage), at.phase);
      const uint32_t a = operand(slot(at.stage) + group), b = operand(slot(at.stage));
      product_fence();
#pragma unroll
      for (int k = 0; k < CHUNK / 16; k++)
#pragma unroll
        for (int part = 0; part < PARTS; part++) products(sum[part], further(a, 32 * k), further(b, part * EACH * ROW + 32 * k), c > 0 || k > 0);
      product_commit();
      if (c > 0) {
        product_wait<1>();
        release(before, c - 1);
        if (c - 1 == cleared) clear();
      }
      before = at.stage;
    }
    product_wait<0>();
#pragma unroll
    for (int part = 0; part < PARTS; part++) pin(sum[part]);
  }

  // ---------------------------------------------------------------- results of a block that has all columns

  // Activations are of rounded numbers, as if they were stored.
  __device__ __forceinline__ static float rounded(float x) { return widen(narrow<bf16>(x)); }
  __device__ __forceinline__ static float gated_by(float gate, float up) { return silu_of(rounded(gate)) * rounded(up); }
  __device__ __forceinline__ float last(float x, float scale) const {
    x *= scale;
    if (p.act != ACT_RELU2) return x;
    x = fmaxf(rounded(x), 0.f);
    return x * x;
  }

  __device__ __forceinline__ void load_scales(float (&scale)[2]) const {
    scale[0] = scale[1] = 1;
    if (p.parts == 0) return;
    barrier_wait(base + SCALED, 0);
#pragma unroll
    for (int i = 0; i < 2; i++) scale[i] = scales()[threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + 8 * i];
  }

  // A warp's 16 tokens, bf16, by way of shared memory: a row's 16 bytes lie beside each other in the stores.
  template <int OUTPUTS, bool GATED>
  __device__ __forceinline__ void store_whole(const float (&sum)[PARTS][SUMS], const float (&scale)[2]) const {
    constexpr int PITCH = OUTPUTS * 2 + 16;
    static_assert(16 * PITCH <= PLACE, "results of a warp have place");
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint8_t* mine = space + RING + warp * PLACE;
    barrier_wait(base + CLEAR, 0);
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
    store_rows<OUTPUTS, PITCH>(p.y, mine, tile * OUTPUTS, OUTPUTS);
  }

  // A warp's 16 tokens of y, or z, up to COLUMNS of them, from shared memory.
  template <int COLUMNS, int PITCH>
  __device__ __forceinline__ void store_rows(const Mat& y, const uint8_t* from, int column, int columns) const {
    constexpr int PIECES = COLUMNS / 8, TIMES = (16 * PIECES + 31) / 32, ONCE = 9;
    const int lane = threadIdx.x % 32, first = threadIdx.x / 32 * 16;
    columns = min(columns, p.n - column);
    if (p.even) {
#pragma unroll
      for (int e0 = 0; e0 < TIMES; e0 += ONCE) {
        uint4 v[ONCE];
#pragma unroll
        for (int e = e0; e < TIMES && e < e0 + ONCE; e++) {
          const int i = lane + 32 * e;
          v[e - e0] = *reinterpret_cast<const uint4*>(from + i / PIECES * PITCH + i % PIECES * 16);
        }
#pragma unroll
        for (int e = e0; e < TIMES && e < e0 + ONCE; e++) {
          const int i = lane + 32 * e, token = token_of(first + i / PIECES);
          if (i < 16 * PIECES && token < p.m && i % PIECES * 8 < columns) *reinterpret_cast<uint4*>(row_of<bf16>(y, token) + column + i % PIECES * 8) = v[e - e0];
        }
      }
    } else {
#pragma unroll 1
      for (int i = 0; i < 16; i++)
        if (token_of(first + i) < p.m)
          for (int c = lane; c < columns; c += 32) row_of<bf16>(y, token_of(first + i))[column + c] = *reinterpret_cast<const bf16*>(from + i * PITCH + c * 2);
    }
  }

  // ---------------------------------------------------------------- results of blocks that share columns

  // What is there of this thread's two outputs of eight columns and its two tokens, and the factors of the norm behind.
  struct Beside {
    uint32_t y[MOST][2];
    float2 factors[MOST];
  };
  __device__ __forceinline__ int column() const { return tile * ROWS + eights_before(split) * 8; }
  __device__ __forceinline__ void load_beside(Beside& b) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int q = 0; q < MOST; q++) {
      const int n = column() + q * 8 + lane % 4 * 2, left = q < eights() ? p.n - n : 0;
      const float* factors = ::at<const float>(p.factors) + n;
      b.factors[q] = make_float2(0, 0);
      if (p.factors && p.even && left > 0)
        b.factors[q] = *reinterpret_cast<const float2*>(factors);
      else if (p.factors && left > 0)
        b.factors[q] = make_float2(factors[0], left > 1 ? factors[1] : 0.f);
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const int token = token_of(threadIdx.x / 32 * 16 + lane / 4 + 8 * i);
        const bf16* y = row_of<const bf16>(p.y, token) + n;
        b.y[q][i] = !p.add || token >= p.m || left <= 0 ? 0 : p.even ? *reinterpret_cast<const uint32_t*>(y) : pair(y, 0, left);
      }
    }
  }

  // Each block of a tile's half adds up some of its columns: this thread's sums of others go to their threads of the same number.
  __device__ __forceinline__ void push(const float (&sum)[PARTS][SUMS], float (&own)[MOST][4]) const {
    uint32_t to[SPLITS], met[SPLITS];
#pragma unroll
    for (int s = 0; s < SPLITS; s++) {
      to[s] = place_at(base + RING + threadIdx.x / 32 * PLACE + (split - (split > s)) * MOST * 512 + threadIdx.x % 32 * 16, 2 * s + half);
      met[s] = place_at(base + MET + threadIdx.x / 32 * 8, 2 * s + half);
    }
    barrier_wait(base + CLEAR, 0);
#pragma unroll
    for (int q = 0; q < MOST; q++)
#pragma unroll
      for (int s = 0; s < SPLITS; s++) {
        const int eight = eights_before(s) + q;
        if (eight == eights_before(s + 1)) continue;
        if (s != split)
          push_four(to[s] + q * 512, &sum[0][4 * eight], met[s]);
        else
#pragma unroll
          for (int i = 0; i < 4; i++) own[q][i] = sum[0][4 * eight + i];
      }
  }

  // Sums of all blocks of the tile, in order, and what is there; stores them, and what the norm behind wants of them.
  __device__ __forceinline__ void store_shared(const float (&own)[MOST][4], const Beside& b) const {
    static_assert(2 * 16 * PITCH <= PLACE, "results of a warp take the place of its sums");
    const int lane = threadIdx.x % 32, mine = threadIdx.x / 32 * 16 + lane / 4, place = RING + threadIdx.x / 32 * PLACE;
    uint32_t y[MOST][2], z[MOST][2];
    float squares[2] = {};
    barrier_wait_cluster(base + MET + threadIdx.x / 32 * 8, 0);
#pragma unroll
    for (int q = 0; q < MOST; q++) {
      float v[4] = {};
#pragma unroll
      for (int s = 0; s < SPLITS; s++) {
        float4 part = make_float4(own[q][0], own[q][1], own[q][2], own[q][3]);
        if (s != split) part = *reinterpret_cast<const float4*>(space + place + ((s - (s > split)) * MOST + q) * 512 + lane * 16);
        v[0] += part.x, v[1] += part.y, v[2] += part.z, v[3] += part.w;
      }
#pragma unroll
      for (int i = 0; i < 2; i++) {
        y[q][i] = pack_bf16(v[2 * i] + __uint_as_float(b.y[q][i] << 16), v[2 * i + 1] + __uint_as_float(b.y[q][i] & 0xffff0000u));
        const float w0 = __uint_as_float(y[q][i] << 16), w1 = __uint_as_float(y[q][i] & 0xffff0000u);
        z[q][i] = pack_bf16(w0 * b.factors[q].x, w1 * b.factors[q].y);
        if (q < eights()) squares[i] += fmaf(w0, w0, w1 * w1);
      }
    }
    __syncwarp();
#pragma unroll
    for (int q = 0; q < MOST; q++)
#pragma unroll
      for (int i = 0; i < 2; i++) {
        uint8_t* to = space + place + (lane / 4 + 8 * i) * PITCH + q * 16 + lane % 4 * 4;
        *reinterpret_cast<uint32_t*>(to) = y[q][i];
        *reinterpret_cast<uint32_t*>(to + 16 * PITCH) = z[q][i];
      }
    __syncwarp();
    store_rows<MOST * 8, PITCH>(p.y, space + place, column(), eights() * 8);
    if (!p.factors) return;
    store_rows<MOST * 8, PITCH>(p.z, space + place + 16 * PITCH, column(), eights() * 8);
#pragma unroll
    for (int i = 0; i < 2; i++) {
      squares[i] += __shfl_xor_sync(~0u, squares[i], 1);
      squares[i] += __shfl_xor_sync(~0u, squares[i], 2);
      if (lane % 4 == 0) ::at<float>(p.squares)[((tile * SPLITS + split) * 2 + half) * TOKENS + mine + 8 * i] = squares[i];
    }
  }

  __device__ __forceinline__ void consume() const {
    float sum[PARTS][SUMS];
    pdl_wait();
    if constexpr (SPLITS > 1) {
      Beside beside;
      float own[MOST][4];
      load_beside(beside);
      multiply(sum);
      push(sum, own);
      store_shared(own, beside);
    } else {
      float scale[2];
      multiply(sum);
      load_scales(scale);
      if constexpr (PARTS == 2) {
        if (gated()) return store_whole<HALF, true>(sum, scale);
      }
      store_whole<ROWS, false>(sum, scale);
    }
  }

  // A block that ends has seen all that others wrote, and all arrivals: it needs no barrier of the cluster.
  __device__ __forceinline__ void run() const {
    open();
    if (threadIdx.x < CONSUMERS) {
      if constexpr (MOVES) more_registers<232>();
      consume();
    } else {
      if constexpr (MOVES) fewer_registers<40>();
      if (threadIdx.x == PRODUCER) produce();
      if (threadIdx.x / 32 == SCALER / 32) scale();
    }
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
