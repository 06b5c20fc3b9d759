// Y = norm(X) W^T, an activation of it, or Y += ..., for up to 16 tokens of bf16: weights stream past the tokens.
//
// A cluster of BLOCKS blocks has rows of w of its own, about as many as every other cluster, and does them in passes of up
// to RT tiles of 16 rows. Its WARPS * BLOCKS warps share K: slice s has the chunks of 64 columns s, s + SLICES, ... of all
// rows of a pass, so that a token's chunk is read, and normalised, once a pass. Sums of slices are added in order: so the
// order of all additions depends on the shape of w alone, never on the number of tokens.
//
// NORMED: tokens are multiplied by the norm's factors as they come; the sum of their squares, which every block has by the
// end of a pass, scales the sums. For silu(gate) * up a tile has eight rows of either half of w, and n is the outputs.
//
// The weights of a warp come through a ring of DEPTH items, a tile's chunk each, in shared memory. A lane reads what it
// copied itself: no barrier. The ring runs on over passes, and is filled while the kernel in front still runs: not before
// a warp of each of its blocks has asked for its last weights, so that this is what the memory does while sums are added up
// and passed on.
//
// The weight is the A operand of mma.m16n8k16 (16 rows of w), tokens are the B operand (8 columns). The order of K inside
// a chunk is free as long as both operands agree: lane (g, t) = (lane / 4, lane % 4) owns columns 8t .. 8t+7 of either half
// of a chunk, one 16-byte load a row and a token, which are two k-steps of the mma.
#include "linear.cuh"

constexpr int WARPS = 8, THREADS = 32 * WARPS, DEPTH = 4;
constexpr int HALVES = 2, CHUNK = 32 * HALVES;     // of a chunk; columns
constexpr int EIGHT = 512, ITEM = 2 * HALVES * EIGHT;  // bytes of 8 rows and half a chunk: 16 a lane; of a tile's chunk

__device__ __forceinline__ uint4 load_shared(uint32_t from) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(from) : "memory");
  return v;
}

// The weights of a warp on their way into its ring, in the order in which it needs them: the tiles of a pass chunk by
// chunk, then the next pass. Addresses of shared memory are those of this lane.
struct Weights {
  const Linear& p;
  const int first, step, chunks, tile, end;  // step: chunks between two of a slice; tile: outputs a tile; end: of the rows
  const int64_t half;                        // bytes from a row to the one 8 further down the tile
  uint32_t to, last;                         // the next slot, the last
  const uint8_t* w;                          // the next item's row g
  int64_t across;                            // from a chunk's last tile to the next chunk's first
  int from, tiles, chunk, todo, left;        // left: outputs of the pass from this lane's row on; todo: tiles of the chunk
  bool waited;                               // for the launches in front

  // This kernel has waited, as step kernels need it that read state before they wait. From now on the next launch may start
  // when a warp of every block has asked for its last item.
  __device__ __forceinline__ void go() {
    waited = true;
    if (done()) pdl_trigger();
  }

  __device__ __forceinline__ void enter(int pass) {
    const int l = threadIdx.x % 32, outputs = min(p.pass, end - pass);
    from = pass, chunk = first, left = outputs - l / 4;
    todo = tiles = (outputs + tile - 1) / tile;
    across = step * CHUNK * 2 - tiles * tile * p.bytes;
    w = at<const uint8_t>(p.w) + (pass + l / 4) * p.bytes + first * (CHUNK * 2) + l % 4 * 16;
  }

  // No more items: copies do nothing.
  __device__ __forceinline__ void stop() {
    left = -(1 << 30), todo = 1 << 30;
    if (waited) pdl_trigger();
  }

  __device__ __forceinline__ bool done() const { return left < -(1 << 29); }

  __device__ __forceinline__ void copy() {
    const bool below = left > (tile == 8 ? 0 : 8);
#pragma unroll
    for (int i = 0; i < HALVES; i++) {
      if (left > 0) copy16(to + 2 * i * EIGHT, w + 64 * i);
      if (below) copy16(to + (2 * i + 1) * EIGHT, w + half + 64 * i);
    }
    copy_commit();
    to = to == last ? to - (DEPTH - 1) * ITEM : to + ITEM;
    w += tile * p.bytes, left -= tile;
    if (--todo == 0) {
      chunk += step;
      if (chunk < chunks) {
        todo = tiles, left += tiles * tile, w += across;
      } else if (from + p.pass < end) {
        enter(from + p.pass);
      } else {
        stop();
      }
    }
  }
};

template <int NT, int RT, int BLOCKS, bool NORMED>
struct Stream {
  static constexpr int TOKENS = 8 * NT, STRIDE = 16 * RT + 4, SLICES = WARPS * BLOCKS;
  static_assert(!NORMED || BLOCKS == 1, "a block has all of K");
  // Shared memory: the rings; sums of slices, float [WARPS][TOKENS][STRIDE]; those of the block, float [TOKENS][STRIDE], or,
  // NORMED, sums of squares, float [WARPS][TOKENS], and the norm's factors, float [k].
  const Linear& p;
  uint8_t* space;
  float *partial, *extra, *factors;
  int warp, lane, g, t, rank, tile, chunks, first;
  float c[RT][NT][4], square[NT];
  uint4 next[HALVES][NT];

  __device__ __forceinline__ Stream(const Linear& p, uint8_t* space) : p(p), space(space) {
    partial = reinterpret_cast<float*>(space + WARPS * DEPTH * ITEM), extra = partial + WARPS * TOKENS * STRIDE, factors = extra + WARPS * TOKENS;
    warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    rank = BLOCKS > 1 ? cluster_rank() : 0, tile = NORMED && p.act == ACT_SILU_MUL ? 8 : 16;
    chunks = (p.k + CHUNK - 1) / CHUNK, first = rank * WARPS + warp;
  }

  __device__ __forceinline__ void fetch_factors() {
    for (int i = threadIdx.x; i < chunks * CHUNK; i += THREADS) copy4(shared_address(factors + i), at<const float>(p.norm) + i, i < p.k);
    copy_commit();
  }

  __device__ __forceinline__ void fetch_tokens(int chunk) {
    const bf16* x = row_of<const bf16>(p.x, g) + t * 8;
    const int end = p.k - t * 8, stride = (int)p.x.stride * 8;
#pragma unroll
    for (int i = 0; i < HALVES; i++)
#pragma unroll
      for (int j = 0; j < NT; j++) next[i][j] = load_token(x + j * stride, j * 8 + g < p.m, chunk * CHUNK + 32 * i, end, true);
  }

  // Multiplies the tokens of a chunk by the norm's factors and adds up their squares.
  __device__ __forceinline__ void normalise(uint4* tokens, int column) {
    float factor[8];
    load8(factors + column + t * 8, factor);
#pragma unroll
    for (int j = 0; j < NT; j++) {
      uint32_t* words[4] = {&tokens[j].x, &tokens[j].y, &tokens[j].z, &tokens[j].w};
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const float even = __uint_as_float(*words[i] << 16), odd = __uint_as_float(*words[i] & 0xffff0000u);
        square[j] = fmaf(even, even, square[j]), square[j] = fmaf(odd, odd, square[j]);
        *words[i] = pack_bf16(even * factor[2 * i], odd * factor[2 * i + 1]);
      }
    }
  }

  // A pass over this warp's slice.
  __device__ __forceinline__ void multiply(Weights& w, int tiles, uint32_t& slot) {
#pragma unroll
    for (int j = 0; j < NT; j++) {
      square[j] = 0;
#pragma unroll
      for (int r = 0; r < RT; r++)
#pragma unroll
        for (int i = 0; i < 4; i++) c[r][j][i] = 0;
    }
    for (int chunk = first; chunk < chunks; chunk += SLICES) {
      uint4 b[HALVES][NT];
#pragma unroll
      for (int i = 0; i < HALVES; i++)
#pragma unroll
        for (int j = 0; j < NT; j++) b[i][j] = next[i][j];
      fetch_tokens(chunk + SLICES < chunks ? chunk + SLICES : first);
#pragma unroll
      for (int i = 0; i < HALVES; i++)
        if (NORMED) normalise(b[i], chunk * CHUNK + 32 * i);
#pragma unroll
      for (int r = 0; r < RT; r++) {
        if (r >= tiles) break;
        copy_wait<DEPTH - 1>();
#pragma unroll
        for (int i = 0; i < HALVES; i++) {
          const uint4 lo = load_shared(slot + 2 * i * EIGHT), hi = load_shared(slot + (2 * i + 1) * EIGHT);
#pragma unroll
          for (int j = 0; j < NT; j++) {
            mma(c[r][j], lo.x, hi.x, lo.y, hi.y, b[i][j].x, b[i][j].y);
            mma(c[r][j], lo.z, hi.z, lo.w, hi.w, b[i][j].z, b[i][j].w);
          }
        }
        slot = slot == w.last ? slot - (DEPTH - 1) * ITEM : slot + ITEM;
        w.copy();
      }
    }
  }

  // Leaves the sums of this warp's slice, and of the squares.
  __device__ __forceinline__ void leave() {
    leave_sums<NT, RT, STRIDE>(partial + warp * TOKENS * STRIDE, c, lane);
    if (!NORMED) return;
#pragma unroll
    for (int j = 0; j < NT; j++) {
      float s = square[j] + __shfl_xor_sync(~0u, square[j], 1);
      s += __shfl_xor_sync(~0u, s, 2);
      if (t == 0) extra[warp * TOKENS + j * 8 + g] = s;
    }
  }

  __device__ __forceinline__ float slices(int token, int row) const {
    float sum = 0;
#pragma unroll
    for (int s = 0; s < WARPS; s++) sum += partial[(s * TOKENS + token) * STRIDE + row];
    return sum;
  }

  // The sum of an output of the pass, complete but for what it is added to.
  __device__ __forceinline__ float output(int token, int i) const {
    if (BLOCKS > 1) {
      float sum = 0;
#pragma unroll
      for (int b = 0; b < BLOCKS; b++) sum += load_remote(shared_address(extra + token * STRIDE + i), b);
      return sum;
    }
    const int row = tile == 8 ? i / 8 * 16 + i % 8 : i;
    float sum = slices(token, row);
    if (!NORMED) return sum;
    float squares = 0;
#pragma unroll
    for (int s = 0; s < WARPS; s++) squares += extra[s * TOKENS + token];
    const float scale = 1.f / sqrtf(squares / p.k + p.eps);
    sum *= scale;
    if (p.act == ACT_NONE) return sum;
    sum = widen(narrow<bf16>(sum));  // activations are of rounded numbers, as if they were stored
    if (p.act == ACT_SILU_MUL) return silu(sum) * widen(narrow<bf16>(slices(token, row + 8) * scale));
    return fmaxf(sum, 0.f) * fmaxf(sum, 0.f);
  }

  // Adds up and stores a pass.
  __device__ __forceinline__ void finish(int from, int outputs) {
    constexpr int EACH = (16 * RT * TOKENS + BLOCKS * THREADS - 1) / (BLOCKS * THREADS);
    const int all = outputs * p.m, share = (all + BLOCKS - 1) / BLOCKS, last = min(all, (rank + 1) * share);
    float old[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
      const int e = rank * share + i * THREADS + threadIdx.x;
      old[i] = p.add && e < last ? load_as(p.ytype, p.y.p, e / outputs * p.y.stride + from + e % outputs) : 0.f;
    }
    leave();
    __syncthreads();
    if (BLOCKS > 1) {
      for (int e = threadIdx.x; e < all; e += THREADS) extra[e / outputs * STRIDE + e % outputs] = slices(e / outputs, e % outputs);
      cluster_barrier();
    }
#pragma unroll
    for (int i = 0; i < EACH; i++) {
      const int e = rank * share + i * THREADS + threadIdx.x;
      if (e < last) store_as(p.ytype, p.y.p, e / outputs * p.y.stride + from + e % outputs, output(e / outputs, e % outputs) + old[i]);
    }
    if (BLOCKS > 1)
      cluster_barrier();  // nobody overwrites sums, or leaves, while others read them
    else
      __syncthreads();
  }

  __device__ __forceinline__ void run() {
    const int start = blockIdx.x / BLOCKS * p.rows, end = min(start + p.rows, p.n);
    if (NORMED) fetch_factors();
    uint32_t slot = shared_address(space) + warp * DEPTH * ITEM + lane * 16;
    Weights w{p, first, SLICES, chunks, tile, end, (tile == 8 ? p.n : 8) * p.bytes, slot, slot + (DEPTH - 1) * ITEM};
    if (first < chunks)
      w.enter(start);
    else
      w.stop();
#pragma unroll 1
    for (int i = 0; i < DEPTH; i++) w.copy();
    if (NORMED) {
      copy_wait<DEPTH>();
      __syncthreads();
    }
    pdl_wait();
    w.go();
    if (first < chunks) fetch_tokens(first);
    for (int from = start; from < end; from += p.pass) {
      const int outputs = min(p.pass, end - from);
      multiply(w, (outputs + tile - 1) / tile, slot);
      finish(from, outputs);
    }
  }
};

extern __shared__ __align__(128) uint8_t space[];

#define STREAM(name, ...) \
  extern "C" __global__ void __launch_bounds__(THREADS, 2) name(PARAMS(Linear, p)) { Stream<__VA_ARGS__>(p, space).run(); }
STREAM(stream_8, 1, 6, 1, false)
STREAM(stream_8_shared, 1, 6, 2, false)
STREAM(stream_8_normed, 1, 6, 1, true)
STREAM(stream_16, 2, 4, 1, false)
STREAM(stream_16_shared, 2, 4, 2, false)
STREAM(stream_16_normed, 2, 4, 1, true)
