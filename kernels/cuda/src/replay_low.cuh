// Tiles of checkpoints below float32. What a step reads meets the tensor cores as it is stored: every value of float16,
// e4m3 and e2m1 times an e4m3 scale is a float16, every bfloat16 a bfloat16; the other scales go onto the sums. Rows that
// flush: flush_low.cuh.
#pragma once
#include "replay.cuh"

// The rows of a kernel: all of them; or, of one token, those that do not flush, behind a kernel for the others.
enum Role { EITHER, READS, FLUSHES };

// A value that is kept in a register instead of being made again wherever it is used.
__device__ __forceinline__ uint32_t once(uint32_t x) {
  asm volatile("" : "+r"(x));
  return x;
}

// How a format's tile of 16 value rows is read: lane (g, c) owns VECTOR neighbours of every 4 VECTOR columns of rows g and
// g + 8, 16 bytes each.
template <int FORMAT>
struct Low {
  static constexpr bool BF = FORMAT == STATE_BF16;
  static constexpr int VECTOR = FORMAT == STATE_F8 ? 16 : FORMAT == STATE_NVFP4 ? 32 : 8;
  static constexpr int ROW_BYTES = KEYS * 16 / VECTOR, TILE = TILE_ROWS * ROW_BYTES;
  static constexpr int SCALES = FORMAT == STATE_F8 ? 4 : FORMAT == STATE_NVFP4 ? 8 : 0;  // bytes a value row
};

__device__ __forceinline__ uint2 widen_f8x4(uint32_t codes) {  // four e4m3 as float16
  uint2 y;
  asm("{\n .reg .b16 l, h;\n mov.b32 {l, h}, %2;\n cvt.rn.f16x2.e4m3x2 %0, l;\n cvt.rn.f16x2.e4m3x2 %1, h;\n}" : "=r"(y.x), "=r"(y.y) : "r"(codes));
  return y;
}
__device__ __forceinline__ uint32_t multiply_f16x2(uint32_t x, uint32_t y) {
  uint32_t z;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
  return z;
}
// The e2m1 codes at even or odd places of a word as e4m3 times 2^-6.
__device__ __forceinline__ uint32_t even_e2m1(uint32_t codes) { return (codes << 2 & 0x1c1c1c1cu) | (codes << 4 & 0x80808080u); }
__device__ __forceinline__ uint32_t odd_e2m1(uint32_t codes) { return (codes >> 2 & 0x1c1c1c1cu) | (codes & 0x80808080u); }
constexpr float NVFP4_UNIT = 64.f;  // what undoes the 2^-6

// The words of a row of 128 16-bit elements that belong to a lane, as they follow in it.
template <int FORMAT>
__device__ __forceinline__ void load_lane_words(uint32_t (&v)[16], const uint32_t* row, int lane) {
  constexpr int WORDS = Low<FORMAT>::VECTOR / 2;
#pragma unroll
  for (int w = 0; w < 16; w += 4) {
    const uint4 x = *reinterpret_cast<const uint4*>(row + w / WORDS * 4 * WORDS + (lane & 3) * WORDS + w % WORDS);
    v[w] = x.x, v[w + 1] = x.y, v[w + 2] = x.z, v[w + 3] = x.w;
  }
}

// One query of 128 bfloat16, as load_lane_words has it, becomes B operands of low_pass. In float16 it is scaled by a power
// of two so that its largest element is in [1, 2); the result is what undoes that. All elements above 2^-14 of it stay
// exact, the others to 2^-25.
template <int FORMAT>
__device__ __forceinline__ float scale_query(uint32_t (&q)[16]) {
  if constexpr (Low<FORMAT>::BF) return 1.f;
  uint32_t largest = 0;
#pragma unroll
  for (int w = 0; w < 16; w++) largest = max(largest, max(q[w] << 16 & 0x7fffffffu, q[w] & 0x7fff0000u));
  largest = max(largest, __shfl_xor_sync(~0u, largest, 1));
  largest = max(largest, __shfl_xor_sync(~0u, largest, 2));
  const uint32_t e = min(max(largest >> 23, 1u), 253u);
  const float up = __uint_as_float((254 - e) << 23);
#pragma unroll
  for (int w = 0; w < 16; w++) q[w] = pack_f16(bf_lo(q[w]) * up, bf_hi(q[w]) * up);
  if constexpr (FORMAT == STATE_NVFP4)  // the order of columns in which codes are widened
#pragma unroll
    for (int w = 0; w < 16; w += 4) {
      const uint32_t a = q[w], b = q[w + 1], c = q[w + 2], d = q[w + 3];
      q[w] = __byte_perm(a, b, 0x5410), q[w + 1] = __byte_perm(c, d, 0x5410);
      q[w + 2] = __byte_perm(a, b, 0x7632), q[w + 3] = __byte_perm(c, d, 0x7632);
    }
  return __uint_as_float(e << 23);
}
template <int FORMAT>
__device__ __forceinline__ float load_low_query(uint32_t (&q)[16], const uint32_t* row, bool counts, int lane) {
  if (counts)
    load_lane_words<FORMAT>(q, row, lane);
  else
#pragma unroll
    for (int w = 0; w < 16; w++) q[w] = 0;
  return scale_query<FORMAT>(q);
}

// As scale_query, by a warp: one query, 128 bfloat16 of a row, into 64 words; load_lane_words makes operands of them.
template <int FORMAT>
__device__ __forceinline__ float convert_query(uint32_t* to, const uint32_t* row, int lane) {
  const uint2 v = *reinterpret_cast<const uint2*>(row + lane * 2);
  uint32_t largest = max(max(v.x << 16 & 0x7fffffffu, v.x & 0x7fff0000u), max(v.y << 16 & 0x7fffffffu, v.y & 0x7fff0000u));
#pragma unroll
  for (int o = 16; o > 0; o /= 2) largest = max(largest, __shfl_xor_sync(~0u, largest, o));
  const uint32_t e = min(max(largest >> 23, 1u), 253u);
  const float up = __uint_as_float((254 - e) << 23);
  const uint32_t a = pack_f16(bf_lo(v.x) * up, bf_hi(v.x) * up), b = pack_f16(bf_lo(v.y) * up, bf_hi(v.y) * up);
  if constexpr (FORMAT == STATE_NVFP4) {
    to += (lane >> 1) * 4 + (lane & 1);
    to[0] = __byte_perm(a, b, 0x5410), to[2] = __byte_perm(a, b, 0x7632);
  } else {
    *reinterpret_cast<uint2*>(to + lane * 2) = make_uint2(a, b);
  }
  return __uint_as_float(e << 23);
}

// acc[n] = stored values of the tile times Q[n]; scales: of the tile's rows in shared memory. What goes onto the sums of a
// row besides is finish_low's.
template <int FORMAT, int NT>
__device__ __forceinline__ void low_pass(const uint8_t* tile, const uint8_t* scales, const uint32_t (&q)[NT][16], float (&acc)[NT][4], int lane) {
  using L = Low<FORMAT>;
  const int g = lane >> 2, c = lane & 3;
  float part[2][NT][4];
#pragma unroll
  for (int n = 0; n < NT; n++)
#pragma unroll
    for (int e = 0; e < 4; e++) part[0][n][e] = part[1][n][e] = 0.f;
  const uint4* row0 = reinterpret_cast<const uint4*>(tile + g * L::ROW_BYTES) + c;
  const uint4* row1 = row0 + 8 * L::ROW_BYTES / 16;
  uint32_t s0[2], s1[2];  // nvfp4: scales of this lane's two blocks, twice each
  if constexpr (FORMAT == STATE_NVFP4) {
    const uint32_t a = widen_f8x4(*reinterpret_cast<const uint16_t*>(scales + g * 8 + c * 2)).x, b = widen_f8x4(*reinterpret_cast<const uint16_t*>(scales + g * 8 + 64 + c * 2)).x;
    s0[0] = __byte_perm(a, 0, 0x1010), s0[1] = __byte_perm(a, 0, 0x3232), s1[0] = __byte_perm(b, 0, 0x1010), s1[1] = __byte_perm(b, 0, 0x3232);
  }
#pragma unroll
  for (int j = 0; j < L::ROW_BYTES / 64; j++) {
    const uint4 v0 = row0[j * 4], v1 = row1[j * 4];
    const uint32_t w0[4] = {v0.x, v0.y, v0.z, v0.w}, w1[4] = {v1.x, v1.y, v1.z, v1.w};
#pragma unroll
    for (int k = 0; k < L::VECTOR / 4; k++) {  // four columns of each lane
      uint32_t a[4];
      if constexpr (FORMAT == STATE_F8) {
        const uint2 x0 = widen_f8x4(w0[k]), x1 = widen_f8x4(w1[k]);
        a[0] = x0.x, a[1] = x1.x, a[2] = x0.y, a[3] = x1.y;
      } else if constexpr (FORMAT == STATE_NVFP4) {
        const uint2 x0 = widen_f8x4(k % 2 ? odd_e2m1(w0[k / 2]) : even_e2m1(w0[k / 2])), x1 = widen_f8x4(k % 2 ? odd_e2m1(w1[k / 2]) : even_e2m1(w1[k / 2]));
        a[0] = multiply_f16x2(x0.x, s0[k / 4]), a[1] = multiply_f16x2(x1.x, s1[k / 4]), a[2] = multiply_f16x2(x0.y, s0[k / 4]), a[3] = multiply_f16x2(x1.y, s1[k / 4]);
      } else {
        a[0] = w0[2 * k], a[1] = w1[2 * k], a[2] = w0[2 * k + 1], a[3] = w1[2 * k + 1];
      }
      const int at = (j * L::VECTOR / 4 + k) * 2;
#pragma unroll
      for (int n = 0; n < NT; n++)
        if constexpr (L::BF)
          mma_bf16(part[k & 1][n], a, q[n][at], q[n][at + 1]);
        else
          mma_f16(part[k & 1][n], a, q[n][at], q[n][at + 1]);
    }
  }
  float f0 = 1.f, f1 = 1.f;
  if constexpr (FORMAT == STATE_F8) f0 = reinterpret_cast<const float*>(scales)[g], f1 = reinterpret_cast<const float*>(scales)[g + 8];
#pragma unroll
  for (int n = 0; n < NT; n++)
#pragma unroll
    for (int e = 0; e < 4; e++) acc[n][e] = (part[0][n][e] + part[1][n][e]) * (e < 2 ? f0 : f1);
}

// Of one token, nvfp4: the eight columns of B are four pairs, of which lane c's columns of the tile meet the c-th alone, so
// that the scales of a lane's two blocks go onto sums. What a row gives is the sum over columns of a parity (sum_of_columns).
__device__ __forceinline__ void part_query(uint32_t (&q)[16], int lane) {
  const uint32_t mask = lane >> 3 == (lane & 3) ? ~0u : 0u;
#pragma unroll
  for (int w = 0; w < 16; w++) q[w] = once(q[w] & mask);
}
__device__ __forceinline__ void parted_pass(const uint8_t* tile, const uint8_t* scales, const uint32_t (&q)[16], float (&acc)[4], int lane) {
  const int g = lane >> 2, c = lane & 3;
  const uint4 v0 = reinterpret_cast<const uint4*>(tile)[g * 4 + c], v1 = reinterpret_cast<const uint4*>(tile)[32 + g * 4 + c];
  const float2 s0 = unpack_f16(widen_f8x4(*reinterpret_cast<const uint16_t*>(scales + g * 8 + c * 2)).x);
  const float2 s1 = unpack_f16(widen_f8x4(*reinterpret_cast<const uint16_t*>(scales + g * 8 + 64 + c * 2)).x);
  const uint32_t w0[4] = {v0.x, v0.y, v0.z, v0.w}, w1[4] = {v1.x, v1.y, v1.z, v1.w};
  float part[2][4] = {};
#pragma unroll
  for (int k = 0; k < 8; k++) {
    const uint2 x0 = widen_f8x4(k % 2 ? odd_e2m1(w0[k / 2]) : even_e2m1(w0[k / 2])), x1 = widen_f8x4(k % 2 ? odd_e2m1(w1[k / 2]) : even_e2m1(w1[k / 2]));
    const uint32_t a[4] = {x0.x, x1.x, x0.y, x1.y};
    mma_f16(part[k / 4], a, q[2 * k], q[2 * k + 1]);
  }
#pragma unroll
  for (int e = 0; e < 4; e++) acc[e] = fmaf(part[1][e], e < 2 ? s0.y : s1.y, part[0][e] * (e < 2 ? s0.x : s1.x));
}
// Over the lanes of a row: of even c the first, of odd c the second.
__device__ __forceinline__ float sum_of_lanes(float first, float second, int lane) {
  const bool odd = lane & 1;
  float sum = odd ? second : first;
  sum += __shfl_xor_sync(~0u, odd ? first : second, 1);
  return sum + __shfl_xor_sync(~0u, sum, 2);
}
// Of four tiles: lane (g, c) gets what tile c's rows g and g + 8 sum up to over the columns of either parity.
__device__ __forceinline__ void sum_of_tiles(float (&sums)[4], const float (&acc)[4][1][4], int lane) {
  const bool upper = lane & 2, odd = lane & 1;
  float half[2][4];
#pragma unroll
  for (int k = 0; k < 2; k++)
#pragma unroll
    for (int e = 0; e < 4; e++) half[k][e] = (upper ? acc[k + 2][0][e] : acc[k][0][e]) + __shfl_xor_sync(~0u, upper ? acc[k][0][e] : acc[k + 2][0][e], 2);
#pragma unroll
  for (int e = 0; e < 4; e++) sums[e] = (odd ? half[1][e] : half[0][e]) + __shfl_xor_sync(~0u, odd ? half[0][e] : half[1][e], 1);
}
// A float16 below a bfloat16.
__device__ __forceinline__ uint32_t join(__half low, bf16 high) { return __half_as_ushort(low) | (uint32_t)__bfloat16_as_ushort(high) << 16; }

// ---------------------------------------------------------------- scales and tiles in shared memory

// The scales of the block's heads into shared memory: those of the value rows, then at `whole` those of the heads.
template <class C>
__device__ __forceinline__ void load_scales(uint8_t* space, const StateArray& a, uint64_t block, int head0) {
  const int row = a.format == STATE_F8 ? 4 : a.format == STATE_NVFP4 ? 8 : 0;
  const uint8_t* from = at<uint8_t>(block + a.scales) + (int64_t)head0 * C::P * row;
#pragma unroll 1
  for (int i = threadIdx.x * 16; i < C::HPC * C::P * row; i += C::THREADS * 16) cp_async16(space + i, from + i);
  if (a.format == STATE_NVFP4 && threadIdx.x < C::HPC) cp_async4(space + C::WHOLE + threadIdx.x * 4, at<float>(block + a.head_scales) + head0 + threadIdx.x);
}
// What is left to multiply a head's sums by.
template <class C>
__device__ __forceinline__ float head_scale(const uint8_t* space, int hd) {
  if constexpr (C::FORMAT != STATE_NVFP4) return 1.f;
  return NVFP4_UNIT * reinterpret_cast<const float*>(space + C::WHOLE)[hd];
}

// Bytes of a warp's ring, in front of everything else in shared memory (copies want lines of 128 bytes): C::RING, or, of 0,
// STAGES tiles where a state has one precision, else a tile of the widest copy that may carry the recurrence beside it.
template <class C>
__device__ __forceinline__ int ring_bytes(const Replay& state) {
  if constexpr (C::RING > 0) return C::RING;
  return state.two ? TILE_BYTES : C::STAGES * C::STAGE;
}

// A warp's tiles of a row that does not flush, one behind the other: all in one copy where the ring has room for them, else in
// STAGES.
template <class C>
struct Reads {
  static constexpr bool ONCE = C::TILES <= C::STAGES;
  uint8_t* ring;
  uint64_t* bars;
  uint64_t from;  // the first tile

  // Lane 0: tile i into its stage.
  __device__ __forceinline__ void request(int i) const {
    constexpr int BYTES = ONCE ? C::TILES * C::STAGE : C::STAGE;
    mbar_expect(bars + i % C::STAGES, BYTES);
    bulk_load(ring + i % C::STAGES * C::STAGE, at<uint8_t>(from + i * C::STAGE), BYTES, bars + i % C::STAGES);
  }
  __device__ __forceinline__ void start() const {
    if constexpr (ONCE) return request(0);
#pragma unroll
    for (int i = 0; i < C::STAGES && i < C::TILES; i++) request(i);
  }
  // In front of the first wait.
  __device__ __forceinline__ void begin() const {
    if constexpr (ONCE) mbar_wait(bars, 0);
  }
  __device__ __forceinline__ const uint8_t* wait(int i) const {
    if constexpr (ONCE) return ring + i * C::STAGE;
    mbar_wait(bars + i % C::STAGES, i / C::STAGES & 1);
    return ring + i % C::STAGES * C::STAGE;
  }
  // When all lanes are done with tile i.
  __device__ __forceinline__ void refill(int i, int lane) const {
    if constexpr (ONCE) return;
    __syncwarp();
    if (lane == 0 && i + C::STAGES < C::TILES) request(i + C::STAGES);
  }
};

// How many barriers a warp has.
template <class C>
__device__ constexpr int barriers() {
  return C::ROLE == READS && Reads<C>::ONCE ? 1 : C::STAGES;
}

// The keys of records from the plain order of their columns to that of store_key_piece, in place; by all threads.
template <class C>
__device__ __forceinline__ void permute_keys(uint32_t* keys, RecordRows<C::W> rows) {
#pragma unroll 1
  for (int i = threadIdx.x; i < rows.count() * 8; i += C::THREADS) {
    uint4* const at = reinterpret_cast<uint4*>(keys + rows.of(i >> 3) * KEY_WORDS) + (i & 7) * 2;
    const uint4 a = at[0], b = at[1];
    at[0] = make_uint4(a.x, a.z, b.x, b.z), at[1] = make_uint4(a.y, a.w, b.y, b.w);
  }
  __syncthreads();
}

// ---------------------------------------------------------------- one token

// Inner products of records 0 .. last, whose plain keys are rows of shared memory, with queries that are plain rows too:
// `even` those that are even columns of B, `odd` the others. Lane (g, c) gets those of records 16m + g and 16m + g + 8 with
// columns 2c and 2c + 1.
template <int M>
__device__ __forceinline__ void key_products(float (&gt)[M][4], const uint32_t* even, const uint32_t* odd, const uint32_t* keys, int last, int lane) {
  const uint32_t query = smem_addr((lane & 1 ? odd : even) + (lane >> 3) * 4);
  uint32_t q[4][4];
#pragma unroll
  for (int s = 0; s < 4; s++) ldmatrix_x4(q[s], query + s * 64);
#pragma unroll
  for (int m = 0; m < M; m++) {
    const uint32_t key = smem_addr(keys + min(16 * m + (lane & 15), last) * KEY_WORDS + (lane >> 4) * 4);
    float part[2][4] = {};
#pragma unroll
    for (int s = 0; s < 8; s++) {
      uint32_t a[4];
      ldmatrix_x4(a, key + s * 32);
      mma_bf16(part[s & 1], a, q[s >> 1][(s & 1) * 2], q[s >> 1][(s & 1) * 2 + 1]);
    }
#pragma unroll
    for (int e = 0; e < 4; e++) gt[m][e] = part[0][e] + part[1][e];
  }
}
// Of column 0 (odd: 1) of key_products, record `lane`'s.
template <int M>
__device__ __forceinline__ float product_of_lane(const float (&gt)[M][4], bool odd, int lane) {
  float v = 0.f;
#pragma unroll
  for (int m = 0; m < M; m++) {
    const float low = __shfl_sync(~0u, gt[m][odd], (lane & 7) * 4), high = __shfl_sync(~0u, gt[m][2 + odd], (lane & 7) * 4);
    if (lane >> 4 == m) v = lane & 8 ? high : low;
  }
  return v;
}
// Log decays of one head of records 0 .. lane's, in lanes; 0 behind the last: what is behind a record, and all of them.
template <int W>
__device__ __forceinline__ void sum_decays(float v, float& after, float& total, int lane) {
#pragma unroll
  for (int o = 1; o < W; o *= 2) {
    const float u = __shfl_down_sync(~0u, v, o);
    if (lane + o < 32) v += u;
  }
  total = __shfl_sync(~0u, v, 0);
  after = __shfl_down_sync(~0u, v, 1);
  if (lane == 31) after = 0.f;
}
