// What step attention (attention_step.cuh) and prefill attention (attention_rows.cuh) share: parameters, chunks and rows of
// a launch, where keys and values lie, and how e4m3 becomes bf16.
//
// The query heads of a KV head and the tokens of a row are packed as rows of one matrix: packed row i is token i / group,
// query head i % group. An item of work is (row, KV head, block of M packed rows), in step attention of a chunk of the
// context. The chunks of a row depend on its own context, the KV heads and the rows and tokens of the operation, null rows
// included (cuts in ../attention.go), not on what its neighbours are.
#pragma once
#include "instructions.cuh"

struct Attend {
  Mat q, gate, out;
  uint64_t slot, n, start, origin, h;  // i32
  uint64_t pages, table, partial, stats, trouble;
  int64_t page_stride;
  int64_t scales;  // byte of a page where they start
  int count, first, t, heads, group, gate_stride;
  int table_stride, page_shift, page_tokens, page_count;
  int chunks;  // at most, of a row
  int dim, dtype, tokens;
  uint32_t per_group, per_head, per_chunks;  // for quotient
  float scale;
  int least;      // tokens of a chunk, at least
  int pad;
  uint64_t more;  // i32: whether attend_combine has something to do; then the chunks of rows
};

// x / d for 0 <= x < 2^20 and d < 2^11 by per = ceil(2^32 / d), which is 0 for d = 1.
__device__ __forceinline__ int quotient(int x, uint32_t per) { return per ? (int)__umulhi((uint32_t)x, per) : x; }

constexpr int MAX_ROWS = 256;  // of a launch
constexpr int TILE = 64;       // tokens
constexpr int WHOLE = 384;     // tokens: a shorter context is one chunk

// Tokens of a chunk of a context.
__device__ __forceinline__ int chunk_of(const Attend& p, int context) {
  if (context < WHOLE) return WHOLE;
  const int c = quotient(context + p.chunks - 1, p.per_chunks);  // beyond 2^20 tokens a little more, never less
  return max((c + TILE - 1) / TILE * TILE, p.least);
}

// Row tables in shared memory: first item, position, n, slot.
struct RowTables {
  int *item, *position, *n, *slot;
};
__device__ __forceinline__ RowTables row_tables(void* at) {
  int* table = static_cast<int*>(at);
  return {table, table + MAX_ROWS + 4, table + 2 * MAX_ROWS + 4, table + 3 * MAX_ROWS + 4};
}

// Shared memory that a kernel's layout needs; attention.go computes the same size.
__device__ __forceinline__ void expect_shared(uint32_t bytes) {
  uint32_t given;
  asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(given));
  if (given < bytes) __trap();
}

// HEADS: KV heads of an item.
template <int M, bool STEP, int HEADS>
__device__ __forceinline__ int items_of(const Attend& p, int position, int n) {
  if (n <= 0) return 0;
  const int blocks = (n * p.group + M - 1) / M, context = position + n;
  if (!STEP) return p.heads * blocks;
  const int chunk = chunk_of(p, context);
  return p.heads / HEADS * blocks * ((context + chunk - 1) / chunk);
}

// Fills the row tables; item[count] is the number of items.
template <int M, bool STEP, int HEADS = 1>
__device__ __forceinline__ void list_rows(const Attend& p, const RowTables& t) {
  const int *slot = at<const int>(p.slot), *n = at<const int>(p.n);
  constexpr int AT_ONCE = 2;  // rows of a thread, which are looked up side by side
  for (int first = threadIdx.x; first < p.count; first += AT_ONCE * blockDim.x) {
    int s[AT_ONCE], length[AT_ONCE], position[AT_ONCE];
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) {
      const int r = min(first + k * (int)blockDim.x, p.count - 1);
      s[k] = slot[r], length[k] = n[r];
    }
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) position[k] = at<const int>(p.origin)[s[k]] + at<const int>(p.h)[s[k]];
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) {
      const int r = first + k * (int)blockDim.x;
      if (r >= p.count) break;
      t.slot[r] = s[k], t.n[r] = length[k], t.position[r] = position[k];
      t.item[r + 1] = items_of<M, STEP, HEADS>(p, position[k], length[k]);
    }
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    const int each = (p.count + 31) / 32, from = threadIdx.x * each, end = min(from + each, p.count);
    int mine = 0;
    for (int r = from; r < end; r++) mine += t.item[r + 1];
    int before = mine;
#pragma unroll
    for (int o = 1; o < 32; o <<= 1) {
      const int v = __shfl_up_sync(~0u, before, o);
      if (threadIdx.x >= o) before += v;
    }
    before -= mine;
    for (int r = from; r < end; r++) t.item[r + 1] = before += t.item[r + 1];
    if (threadIdx.x == 0) t.item[0] = 0;
  }
  __syncthreads();
}

// Tokens that do not count get zeros.
template <int D>
__device__ __forceinline__ void clear_others(const Attend& p, const RowTables& t) {
  const int width = p.heads * p.group * (D / 8);  // pieces of 16 bytes
#pragma unroll 1
  for (int r = blockIdx.x; r < p.count; r += gridDim.x)
#pragma unroll 1
    for (int i = threadIdx.x + max(t.n[r], 0) * width; i < p.t * width; i += blockDim.x) {
      const int j = i / width;
      reinterpret_cast<uint4*>(row_of<bf16>(p.out, p.first + r * p.t + j))[i - j * width] = make_uint4(0, 0, 0, 0);
    }
}

// Tells attend_combine how many chunks rows have, and in front of that whether a row has several.
__device__ __forceinline__ void tell(const Attend& p, const RowTables& t) {
  if (blockIdx.x > 0) return;
  int* more = at<int>(p.more);
  bool any = false;
  for (int r = threadIdx.x; r < p.count; r += blockDim.x) {
    const int context = t.position[r] + t.n[r], size = chunk_of(p, context), chunks = (context + size - 1) / size;
    more[1 + r] = chunks;
    any |= t.n[r] > 0 && chunks > 1;
  }
  any = __syncthreads_or(any);
  if (threadIdx.x == 0) more[0] = any;
}

// Where the keys of a token and head lie: units of UNIT bytes from the first page, NOWHERE for no token.
constexpr int UNIT = 64;
constexpr uint32_t NOWHERE = ~0u;

// Two e4m3, of which v has the magnitudes in bits 4-10 and the signs in bit 15 of each half, as bf16: the exponent is 120
// too small, subnormals included.
__device__ __forceinline__ uint32_t raise(uint32_t v) {
  __nv_bfloat162 x = *reinterpret_cast<__nv_bfloat162*>(&v);
  const __nv_bfloat162_raw factor = {0x7b80, 0x7b80};
  x = __hmul2(x, __nv_bfloat162(factor));
  return *reinterpret_cast<uint32_t*>(&x);
}
// Bytes 0 and 2, bytes 1 and 3, and any two neighbours of a word of e4m3.
// low_even and low_odd leave the factor of 2^120 out.
__device__ __forceinline__ uint32_t low_even(uint32_t w) { return w << 8 & 0x80008000u | w << 4 & 0x07f007f0u; }
__device__ __forceinline__ uint32_t low_odd(uint32_t w) { return w & 0x80008000u | w >> 4 & 0x07f007f0u; }
__device__ __forceinline__ uint32_t even_bytes(uint32_t w) { return raise(low_even(w)); }
__device__ __forceinline__ uint32_t odd_bytes(uint32_t w) { return raise(low_odd(w)); }
// Two bf16 times a power of two.
__device__ __forceinline__ uint32_t times(uint32_t v, float factor) {
  __nv_bfloat162 x = *reinterpret_cast<__nv_bfloat162*>(&v);
  x = __hmul2(x, __float2bfloat162_rn(factor));
  return *reinterpret_cast<uint32_t*>(&x);
}
__device__ __forceinline__ uint32_t low_bytes(uint32_t w) { return odd_bytes(__byte_perm(w, 0, 0x1404)); }
__device__ __forceinline__ uint32_t high_bytes(uint32_t w) { return odd_bytes(__byte_perm(w, 0, 0x3424)); }

// Where 16-byte piece c of row r lies in rows of BYTES: eight rows' pieces c never share a bank.
template <int BYTES>
__device__ __forceinline__ uint32_t place(int r, int c) {
  return r * BYTES + ((c ^ (BYTES >= 128 ? r & 7 : r >> 1 & 3)) << 4);
}
