// How checkpoints are stored. kernels/checkpoint_codec.go says what the formats mean; this file repeats its float32
// operations one by one, so that the same state gives the same bytes.
#pragma once
#include "slots.cuh"

enum { STATE_F32 = 0, STATE_F16 = 1, STATE_BF16 = 2, STATE_F8 = 3, STATE_NVFP4 = 4 };

// kernels.StateArray: byte offsets from the start of a block; stateArray of ssm.go.
struct StateArray {
  int64_t values, scales, head_scales;
  int format, rows, cols, row_bytes, row_scales, pad;
};

// kernels.StateNoise.
struct Noise {
  int stochastic;
  uint32_t layer, position;
};

// ---------------------------------------------------------------- widening

__device__ __forceinline__ float widen_f8(uint32_t code) { return __half2float(__half(__nv_cvt_fp8_to_halfraw((__nv_fp8_storage_t)code, __NV_E4M3))); }
// Low four bits.
__device__ __forceinline__ float widen_e2m1(uint32_t code) {
  const float v = (code & 7) < 2 ? (code & 7) * 0.5f : __uint_as_float((126 + (code >> 1 & 3)) << 23 | (code & 1) << 22);
  return code & 8 ? -v : v;
}

// One element of row `line`, counted over all heads.
__device__ __forceinline__ float load_element(const StateArray& a, uint64_t block, int head, int64_t line, int key) {
  const uint64_t row = block + a.values + line * a.row_bytes;
  switch (a.format) {
    case STATE_F32: return at<const float>(row)[key];
    case STATE_F16: return __half2float(at<const __half>(row)[key]);
    case STATE_BF16: return __bfloat162float(at<const bf16>(row)[key]);
    case STATE_F8: return widen_f8(at<const uint8_t>(row)[key]) * at<const float>(block + a.scales)[line];
  }
  const float scale = widen_f8(at<const uint8_t>(block + a.scales)[line * a.row_scales + key / 16]) * at<const float>(block + a.head_scales)[head];
  return widen_e2m1(at<const uint8_t>(row)[key / 2] >> key % 2 * 4) * scale;
}

// ---------------------------------------------------------------- rounding

// The 16-bit random numbers of eight elements: Philox4x32-7.
__device__ __forceinline__ uint4 eight(const Noise& n, uint32_t i) {
  uint4 c = make_uint4(i, n.position, 0, 0);
  uint32_t k0 = n.layer, k1 = 0;
#pragma unroll
  for (int round = 0; round < 7; round++) {
    const uint64_t p0 = (uint64_t)0xD2511F53u * c.x, p1 = (uint64_t)0xCD9E8D57u * c.z;
    c = make_uint4((uint32_t)(p1 >> 32) ^ c.y ^ k0, (uint32_t)p1, (uint32_t)(p0 >> 32) ^ c.w ^ k1, (uint32_t)p0);
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  return c;
}
__device__ __forceinline__ uint32_t number(const uint4& w, int j) {
  const uint32_t word = j < 4 ? (j < 2 ? w.x : w.y) : (j < 6 ? w.z : w.w);
  return j & 1 ? word >> 16 : word & 0xffff;
}

// The functions of the same names in kernels/checkpoint_codec.go, bit for bit: where a result is normal, noise is brought to
// the place behind the last bit that is kept, added to the bits of |x|, and what lies behind is cut off.

// 0 <= t < 2^22 rounded to one of its neighbours.
__device__ __forceinline__ uint32_t by_chance(float t, uint32_t noise) {
  const float cut = __fadd_rz(t, 8388608.f);  // 2^23 + floor(t)
  const float threshold = 1.f - (t - (cut - 8388608.f));
  const float u = __uint_as_float(0x3f800000u | noise << 7) - (1.f - 1.f / 131072);  // (noise + 1/2) / 65536
  return (__float_as_uint(cut) & 0x7fffffu) + (u >= threshold ? 1u : 0u);
}
__device__ __forceinline__ uint32_t stochastic_f16(float x, uint32_t noise) {
  const uint32_t u = __float_as_uint(x), abs = u & 0x7fffffffu;
  uint32_t code = min((abs - 0x38000000u + (noise >> 3)) >> 13, 0x7bffu);
  if (abs < 0x38800000u) code = by_chance(__uint_as_float(abs) * 16777216.f, noise);
  if (abs > 0x7f800000u) code = 0x7e00u;
  return (u >> 16 & 0x8000u) | code;
}
__device__ __forceinline__ uint32_t stochastic_bf16(float x, uint32_t noise) {
  const uint32_t u = __float_as_uint(x), abs = u & 0x7fffffffu;
  uint32_t code = min((abs + noise) >> 16, 0x7f7fu);
  if (abs >= 0x7f800000u) code = abs >> 16 | (abs > 0x7f800000u ? 0x40u : 0u);
  return (u >> 16 & 0x8000u) | code;
}
__device__ __forceinline__ uint32_t stochastic_e4m3(float x, uint32_t noise) {
  const uint32_t u = __float_as_uint(x), abs = u & 0x7fffffffu;
  uint32_t code = min((abs - 0x3c000000u + (noise << 4 | 8u)) >> 20, 0x7eu);
  if (abs < 0x3c800000u) code = by_chance(__uint_as_float(abs) * 512.f, noise);
  return (u >> 24 & 0x80u) | code;
}
// 1 + |x| has the steps of subnormal results, 2 |x| those of the others, and the larger of both is the one that counts.
__device__ __forceinline__ uint32_t stochastic_e2m1(float x, uint32_t noise) {
  const float magnified = fmaxf(__fadd_rz(fabsf(x), 1.f), fabsf(x) + fabsf(x));
  return (__float_as_uint(x) >> 28 & 8u) | min((__float_as_uint(magnified) - 0x3f800000u + (noise << 6 | 32u)) >> 22, 7u);
}
__device__ __forceinline__ uint32_t nearest_f16(float x) {
  const uint32_t u = __float_as_uint(x), abs = u & 0x7fffffffu;
  if (abs > 0x7f800000u) return (u >> 16 & 0x8000u) | 0x7e00u;
  return __half_as_ushort(__float2half_rn(fminf(fmaxf(x, -65504.f), 65504.f)));
}
__device__ __forceinline__ uint32_t nearest_bf16(float x) {
  const uint32_t u = __float_as_uint(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return u >> 16 | 0x40u;
  return (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
}
__device__ __forceinline__ uint32_t nearest_e4m3(float x) { return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3); }
__device__ __forceinline__ uint32_t nearest_e2m1(float x) {
  const uint32_t u = __float_as_uint(x), abs = u & 0x7fffffffu;
  uint32_t code = min((abs - 0x3f000000u + 0x1fffffu + (abs >> 22 & 1u)) >> 22, 7u);
  if (abs < 0x3f800000u) code = __float_as_uint(__uint_as_float(abs) + 4194304.f) - 0x4a800000u;  // an addition rounds to halves
  return (u >> 28 & 8u) | code;
}
// The smallest e4m3 that is no less than x >= 0; 448 at most.
__device__ __forceinline__ uint32_t up_e4m3(float x) {
  const uint32_t abs = __float_as_uint(x);
  const float cut = __fadd_rz(x * 512.f, 8388608.f);
  if (abs < 0x3c800000u) return (__float_as_uint(cut) & 0x7fffffu) + (cut - 8388608.f < x * 512.f ? 1u : 0u);
  return min((abs - 0x3c000000u + 0xfffffu) >> 20, 0x7eu);
}
// x in a format below float32; noise counts if the rounding is stochastic.
__device__ __forceinline__ uint32_t code_of(int format, bool stochastic, float x, uint32_t noise) {
  switch (format) {
    case STATE_F16: return stochastic ? stochastic_f16(x, noise) : nearest_f16(x);
    case STATE_BF16: return stochastic ? stochastic_bf16(x, noise) : nearest_bf16(x);
    case STATE_F8: return stochastic ? stochastic_e4m3(x, noise) : nearest_e4m3(x);
  }
  return stochastic ? stochastic_e2m1(x, noise) : nearest_e2m1(x);
}

// ---------------------------------------------------------------- scales
// Largest absolute values are kept as bits, whose order is that of the values with NaN on top.

__device__ __forceinline__ uint32_t magnitude(float x) { return __float_as_uint(x) & 0x7fffffffu; }
__device__ __forceinline__ bool finite_bits(uint32_t a) { return a <= 0x7f7fffffu; }

struct Scale {
  float scale, inverse;  // what is stored; what elements are multiplied by, 0 for none
};
constexpr uint32_t TINY_STATE = 31u << 23;  // 2^-96

// Of a block of fp8 (most = 448), or of an nvfp4 head (most = 6 * 448; the inverse makes block scales).
__device__ __forceinline__ Scale scale_of(uint32_t largest, float most) {
  if (!finite_bits(largest)) return {__uint_as_float(0x7fc00000u), 0.f};
  if (largest < TINY_STATE) return {0.f, 0.f};
  return {__uint_as_float(largest) / most, 448.f / __uint_as_float(largest)};
}
// Of a block of 16 of an nvfp4 head: the scale's code, and the inverse.
__device__ __forceinline__ uint32_t block_scale(const Scale& head, uint32_t largest, bool stochastic, float& inverse) {
  inverse = 0.f;
  if (head.inverse == 0.f) return 0;
  const float scaled = __uint_as_float(largest) * head.inverse;
  const uint32_t code = stochastic ? up_e4m3(scaled) : nearest_e4m3(scaled);
  if (code != 0) inverse = 1.f / (widen_f8(code) * head.scale);
  return code;
}

// Codes of four neighbours, x times inverse: element number `element` of the layer's state and the three behind it.
__device__ __forceinline__ uint4 round_four(int format, float4 x, float inverse, const Noise& noise, uint32_t element) {
  if (format >= STATE_F8) {
    if (inverse == 0.f) return make_uint4(0, 0, 0, 0);
    x = make_float4(x.x * inverse, x.y * inverse, x.z * inverse, x.w * inverse);
  }
  const float v[4] = {x.x, x.y, x.z, x.w};
  uint4 random = make_uint4(0, 0, 0, 0);
  if (noise.stochastic) random = eight(noise, element / 8);
  uint32_t code[4];
#pragma unroll
  for (int e = 0; e < 4; e++) {
    if (noise.stochastic && e > 0 && (element + e) % 8 == 0) random = eight(noise, (element + e) / 8);
    code[e] = code_of(format, noise.stochastic, v[e], number(random, (element + e) % 8));
  }
  return make_uint4(code[0], code[1], code[2], code[3]);
}

// ---------------------------------------------------------------- four neighbours of a row, for any shape
// Functions that are called: walks would hold dozens of copies.

// Elements key .. key + 3 of a head's row; 0 behind the last.
static __noinline__ __device__ float4 load_four(const StateArray& a, uint64_t block, int head, int row, int key) {
  const int64_t line = (int64_t)head * a.rows + row;
  float x[4];
#pragma unroll 1
  for (int e = 0; e < 4; e++) x[e] = key + e < a.cols ? load_element(a, block, head, line, key + e) : 0.f;
  return make_float4(x[0], x[1], x[2], x[3]);
}

// The same of row `line` over all heads rounded and stored, x times inverse; not float32.
static __noinline__ __device__ void store_four(const StateArray& a, uint64_t block, int64_t line, int key, float4 x, float inverse, const Noise& noise) {
  const uint4 code = round_four(a.format, x, inverse, noise, (uint32_t)(line * a.cols + key));
  const uint32_t c[4] = {code.x, code.y, code.z, code.w};
  const uint64_t to = block + a.values + line * a.row_bytes;
#pragma unroll
  for (int e = 0; e < 4; e++) {
    if (key + e >= a.cols) return;
    if (a.format == STATE_NVFP4) {
      if (e % 2 == 0) at<uint8_t>(to)[(key + e) / 2] = c[e] | (key + e + 1 < a.cols ? c[e + 1] << 4 : 0);
    } else if (a.format == STATE_F8) {
      at<uint8_t>(to)[key + e] = c[e];
    } else {
      at<uint16_t>(to)[key + e] = c[e];
    }
  }
}

static __noinline__ __device__ uint32_t block_scale_once(float scale, float up, uint32_t largest, bool stochastic, float* inverse) {
  return block_scale({scale, up}, largest, stochastic, *inverse);
}
