// Tiles of checkpoints below float32. What a step reads meets the tensor cores as it is stored: every value of float16,
// e4m3 and e2m1 times an e4m3 scale is a float16, every bfloat16 a bfloat16; the other scales go onto the sums. Rows that
// flush are widened to float32 in shared memory, folded there (replay.cuh) and rounded into every copy.
#pragma once
#include "replay.cuh"

// How a format's tile of 16 value rows is read: lane (g, c) owns VECTOR neighbours of every 4 VECTOR columns of rows g and
// g + 8, 16 bytes each.
template <int FORMAT>
struct Low {
  static constexpr bool BF = FORMAT == STATE_BF16;
  static constexpr int VECTOR = FORMAT == STATE_F8 ? 16 : FORMAT == STATE_NVFP4 ? 32 : 8;
  static constexpr int ROW_BYTES = KEYS * 16 / VECTOR, TILE = TILE_ROWS * ROW_BYTES;
  static constexpr int SCALES = FORMAT == STATE_F8 ? 4 : FORMAT == STATE_NVFP4 ? 8 : 0;  // bytes a value row
};

__device__ __forceinline__ uint32_t widen_f8x2(uint32_t codes) {  // two e4m3 in the low half, as float16
  uint32_t y;
  asm("{\n .reg .b16 t;\n cvt.u16.u32 t, %1;\n cvt.rn.f16x2.e4m3x2 %0, t;\n}" : "=r"(y) : "r"(codes));
  return y;
}
__device__ __forceinline__ uint32_t multiply_f16x2(uint32_t x, uint32_t y) {
  uint32_t z;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
  return z;
}
// e2m1 codes i and i + 1 of a word, as float16 times 2^-14.
__device__ __forceinline__ uint32_t widen_e2m1x2(uint32_t codes, int i) {
  const uint32_t low = codes >> 4 * i & 15, high = codes >> 4 * i + 4 & 15, both = low | high << 16;
  return (both & 0x00080008u) << 12 | (both & 0x00070007u) << 9;
}
constexpr float NVFP4_UNIT = 16384.f;  // what undoes the 2^-14

// One query of 128 bfloat16 as B operands of low_pass. In float16 it is scaled by a power of two so that its largest
// element is in [1, 2); the result is what undoes that. All elements above 2^-14 of it stay exact, the others to 2^-25.
template <int FORMAT>
__device__ __forceinline__ float load_low_query(uint32_t (&q)[16], const uint32_t* row, bool counts, int lane) {
  constexpr int V = Low<FORMAT>::VECTOR, WORDS = V / 2;
  const int c = lane & 3;
  uint32_t largest = 0;
#pragma unroll
  for (int w = 0; w < 16; w++) {
    q[w] = counts ? row[w / WORDS * 4 * WORDS + c * WORDS + w % WORDS] : 0u;
    largest = max(largest, max(q[w] << 16 & 0x7fffffffu, q[w] & 0x7fff0000u));
  }
  if constexpr (Low<FORMAT>::BF) return 1.f;
  largest = max(largest, __shfl_xor_sync(~0u, largest, 1));
  largest = max(largest, __shfl_xor_sync(~0u, largest, 2));
  const uint32_t e = min(max(largest >> 23, 1u), 253u);
  const float up = __uint_as_float((254 - e) << 23);
#pragma unroll
  for (int w = 0; w < 16; w++) q[w] = pack_f16(bf_lo(q[w]) * up, bf_hi(q[w]) * up);
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
    const uint32_t a = widen_f8x2(*reinterpret_cast<const uint16_t*>(scales + g * 8 + c * 2)), b = widen_f8x2(*reinterpret_cast<const uint16_t*>(scales + g * 8 + 64 + c * 2));
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
        a[0] = widen_f8x2(w0[k]), a[1] = widen_f8x2(w1[k]), a[2] = widen_f8x2(w0[k] >> 16), a[3] = widen_f8x2(w1[k] >> 16);
      } else if constexpr (FORMAT == STATE_NVFP4) {
        const int i = k % 2 * 4;
        a[0] = multiply_f16x2(widen_e2m1x2(w0[k / 2], i), s0[k / 4]), a[1] = multiply_f16x2(widen_e2m1x2(w1[k / 2], i), s1[k / 4]);
        a[2] = multiply_f16x2(widen_e2m1x2(w0[k / 2], i + 2), s0[k / 4]), a[3] = multiply_f16x2(widen_e2m1x2(w1[k / 2], i + 2), s1[k / 4]);
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

// A committed key as a query of tile_pass and query_key.
__device__ __forceinline__ void load_key_query(uint32_t (&q)[16], const uint32_t* keys, int row, int c) {
#pragma unroll
  for (int i = 0; i < 8; i++) q[2 * i] = keys[row * KEY_WORDS + i * 8 + c], q[2 * i + 1] = keys[row * KEY_WORDS + i * 8 + 4 + c];
}

// ---------------------------------------------------------------- rows that flush

// The scale of an nvfp4 head. A flush in place overwrites it before the last tile has been read.
__device__ __forceinline__ float whole_of(const StateArray& a, uint64_t block, int head) {
  return a.format == STATE_NVFP4 ? __ldcg(at<float>(block + a.head_scales) + head) : 1.f;
}

// A tile of stored values, at the end of the 8 KiB of a float32 tile, becomes that tile. line: its first value row.
__device__ __forceinline__ void widen_tile(uint8_t* tile, const StateArray& a, uint64_t block, float whole, int64_t line, int lane) {
  if (a.format == STATE_F32) return;
  const uint8_t* raw = tile + TILE_BYTES - TILE_ROWS * a.row_bytes;
#pragma unroll 1
  for (int r = 0; r < TILE_ROWS; r++) {
    float scale = 1.f;
    float4 x;
    if (a.format == STATE_F8) {
      const uint32_t v = reinterpret_cast<const uint32_t*>(raw + r * KEYS)[lane];
      x = make_float4(widen_f8(v & 255), widen_f8(v >> 8 & 255), widen_f8(v >> 16 & 255), widen_f8(v >> 24));
      scale = __ldcg(at<float>(block + a.scales) + line + r);
    } else if (a.format == STATE_NVFP4) {
      const uint32_t v = reinterpret_cast<const uint16_t*>(raw + r * KEYS / 2)[lane];
      x = make_float4(widen_e2m1(v), widen_e2m1(v >> 4), widen_e2m1(v >> 8), widen_e2m1(v >> 12));
      scale = widen_f8(at<const uint8_t>(block + a.scales)[(line + r) * 8 + lane / 4]) * whole;
    } else {
      const uint2 v = reinterpret_cast<const uint2*>(raw + r * KEYS * 2)[lane];
      if (a.format == STATE_BF16) {
        x = make_float4(bf_lo(v.x), bf_hi(v.x), bf_lo(v.y), bf_hi(v.y));
      } else {
        const float2 low = unpack_f16(v.x), high = unpack_f16(v.y);
        x = make_float4(low.x, low.y, high.x, high.y);
      }
    }
    __syncwarp();  // the raw row has been read
    reinterpret_cast<float4*>(tile + r * KEYS * 4)[lane] = make_float4(x.x * scale, x.y * scale, x.z * scale, x.w * scale);
  }
  __syncwarp();
}

// The largest magnitude in a float32 tile.
__device__ __forceinline__ uint32_t tile_largest(const uint8_t* tile, int lane) {
  uint32_t m = 0;
#pragma unroll 4
  for (int r = 0; r < TILE_ROWS; r++) {
    const float4 x = reinterpret_cast<const float4*>(tile + r * KEYS * 4)[lane];
    m = max(m, max(max(magnitude(x.x), magnitude(x.y)), max(magnitude(x.z), magnitude(x.w))));
  }
  return largest_of_lanes(m, 32);
}

// Rounds a float32 tile into a copy; not for float32 ones. whole: the head's scale of nvfp4.
static __noinline__ __device__ void round_tile(const uint8_t* tile, const StateArray& a, uint64_t block, int64_t line, const Scale& whole, const Noise& noise, int lane) {
#pragma unroll 1
  for (int r = 0; r < TILE_ROWS; r++, line++) {
    const float4 x = reinterpret_cast<const float4*>(tile + r * KEYS * 4)[lane];
    float inverse = 1.f;
    if (a.format >= STATE_F8) {
      const uint32_t m = largest_of_lanes(max(max(magnitude(x.x), magnitude(x.y)), max(magnitude(x.z), magnitude(x.w))), a.format == STATE_F8 ? 32 : 4);
      if (a.format == STATE_F8) {
        const Scale scale = scale_of(m, 448.f);
        inverse = scale.inverse;
        if (lane == 0) at<float>(block + a.scales)[line] = scale.scale;
      } else {
        const uint32_t code = block_scale(whole, m, noise.stochastic, inverse);
        if (lane % 4 == 0) at<uint8_t>(block + a.scales)[line * 8 + lane / 4] = code;
      }
    }
    const uint4 c = round_four(a.format, x, inverse, noise, (uint32_t)(line * KEYS + lane * 4));
    const uint64_t row = block + a.values + line * a.row_bytes;
    if (a.format == STATE_F8)
      at<uint32_t>(row)[lane] = c.x | c.y << 8 | c.z << 16 | c.w << 24;
    else if (a.format == STATE_NVFP4)
      at<uint16_t>(row)[lane] = c.x | c.y << 4 | c.z << 8 | c.w << 12;
    else
      at<uint2>(row)[lane] = make_uint2(c.x | c.y << 16, c.z | c.w << 16);
  }
}

// ---------------------------------------------------------------- a warp's tiles
// What a row reads and where it lands: FORMAT's tiles through STAGES stages, or, where it flushes and that is not float32,
// tiles of the copy that carries the recurrence, one at a time at the end of the 8 KiB in which they are widened.
template <class C>
struct Stream {
  const Replay& state;
  uint8_t* const stages;
  uint64_t* const bars;
  const uint64_t block;
  const bool flush;

  __device__ bool single() const { return C::LOW && flush; }
  __device__ int depth() const { return single() ? 1 : C::STAGES; }
  // Lane 0: the i-th tile asked for, which starts at the given element of the layer's state.
  __device__ void request(int i, int64_t element) const {
    if (single()) {
      const uint32_t bytes = TILE_ROWS * state.hp.row_bytes;
      mbar_expect(bars, bytes);
      bulk_load(stages + TILE_BYTES - bytes, at<uint8_t>(block + state.hp.values) + element / KEYS * state.hp.row_bytes, bytes, bars);
      return;
    }
    constexpr int ROW = C::STAGE / TILE_ROWS;
    const int64_t values = C::LOW ? state.lp.values : 0;
    mbar_expect(bars + i % C::STAGES, C::STAGE);
    bulk_load(stages + i % C::STAGES * C::STAGE, at<uint8_t>(block + values) + element * ROW / KEYS, C::STAGE, bars + i % C::STAGES);
  }
  // The i-th tile.
  __device__ uint8_t* wait(int i) const {
    const int d = depth();
    mbar_wait(bars + i % d, i / d & 1);
    return stages + i % d * C::STAGE;
  }
};

// Where a flush goes: into every copy. An nvfp4 head needs its largest value first: all tiles are folded twice.
template <class C>
struct Target {
  const Replay& state;
  const uint64_t block;
  const Noise noise;
  uint32_t largest;
  Scale whole;

  __device__ bool twice() const { return C::LOW && (state.hp.format == STATE_NVFP4 || state.lp.format == STATE_NVFP4); }
  __device__ void measure(const uint8_t* tile, int lane) {
    __syncwarp();
    largest = max(largest, tile_largest(tile, lane));
    async_proxy_fence();
    __syncwarp();
  }
  // Behind the head's last tile, by all warps of the block; space: WORDS words a warp.
  __device__ void finish(uint8_t* space, int head, int hd, int warp, int lane) {
    uint32_t* const words = reinterpret_cast<uint32_t*>(space);
    if (lane == 0) words[warp * C::WORDS] = largest;
    __syncthreads();
    for (int w = 0; w < C::WPH; w++) largest = max(largest, words[(warp / C::WPH * C::WPH + w) * C::WORDS]);
    __syncthreads();
    whole = scale_of(largest, 6.f * 448.f);
    const StateArray& a = state.hp.format == STATE_NVFP4 ? state.hp : state.lp;
    if (lane == 0 && warp % C::WPH == 0) at<float>(block + a.head_scales)[head] = whole.scale;
  }
  // A folded float32 tile, whose first value row is `line`.
  __device__ void store(const uint8_t* tile, int64_t line, int lane) const {
    async_proxy_fence();
    __syncwarp();
    if (!C::LOW || state.hp.format == STATE_F32) {
      if (lane == 0) bulk_store(at<float>(block + state.hp.values) + line * KEYS, tile, TILE_BYTES);
    } else {
      round_tile(tile, state.hp, block, line, whole, noise, lane);
    }
    if (C::LOW && state.two) round_tile(tile, state.lp, block, line, whole, Noise{0, 0, 0}, lane);
    if (C::LOW) __syncwarp();
  }
};

// The scales of the block's heads into shared memory: those of the value rows, then of the heads.
template <class C>
__device__ __forceinline__ void load_scales(uint8_t* space, const Replay& state, uint64_t block, int head0) {
  constexpr int BYTES = C::HPC * C::P * Low<C::FORMAT>::SCALES;
  const uint8_t* from = at<uint8_t>(block + state.lp.scales) + (int64_t)head0 * C::P * Low<C::FORMAT>::SCALES;
  for (int i = threadIdx.x * 16; i < BYTES; i += C::THREADS * 16) cp_async16(space + i, from + i);
  if (C::FORMAT == STATE_NVFP4 && threadIdx.x < C::HPC) cp_async4(space + BYTES + threadIdx.x * 4, at<float>(block + state.lp.head_scales) + head0 + threadIdx.x);
}
// What is left to multiply a head's sums by.
template <class C>
__device__ __forceinline__ float head_scale(const uint8_t* space, int hd) {
  if constexpr (C::FORMAT != STATE_NVFP4) return 1.f;
  return NVFP4_UNIT * reinterpret_cast<const float*>(space + C::HPC * C::P * Low<C::FORMAT>::SCALES)[hd];
}
