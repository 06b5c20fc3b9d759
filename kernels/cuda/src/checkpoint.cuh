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

enum { TO_EVEN, BY_CHANCE, CEILING };

// x, not NaN, in a format of MANTISSA bits and normal numbers from 2^MIN on, saturating; noise counts for BY_CHANCE.
template <int MANTISSA, int MIN, int SIGN>
__device__ __forceinline__ uint32_t minifloat(float x, float most, uint32_t largest, int how, uint32_t noise) {
  const uint32_t sign = __float_as_uint(x) >> 31 << SIGN;
  const float abs = fminf(__uint_as_float(__float_as_uint(x) & 0x7fffffffu), most);
  const int e = max((int)(__float_as_uint(abs) >> 23) - 127, MIN);
  const float t = abs * __uint_as_float((uint32_t)(MANTISSA - e + 127) << 23);
  uint32_t n = (uint32_t)t;
  const float fraction = t - (float)n;
  if (how == BY_CHANCE)
    n += ((float)noise + 0.5f) * (1.f / 65536) >= 1.f - fraction;
  else if (how == TO_EVEN)
    n += fraction > 0.5f || (fraction == 0.5f && (n & 1));
  else
    n += fraction > 0.f;
  return sign | min(((uint32_t)(e - MIN) << MANTISSA) + n, largest);
}
__device__ __forceinline__ uint32_t code_f16(float x, int how, uint32_t noise) { return x != x ? 0x7e00u : minifloat<10, -14, 15>(x, 65504.f, 0x7bff, how, noise); }
__device__ __forceinline__ uint32_t code_f8(float x, int how, uint32_t noise) { return minifloat<3, -6, 7>(x, 448.f, 0x7e, how, noise); }
__device__ __forceinline__ uint32_t code_e2m1(float x, int how, uint32_t noise) { return minifloat<1, 0, 3>(x, 6.f, 7, how, noise); }
__device__ __forceinline__ uint32_t code_bf16(float x, int how, uint32_t noise) {
  const uint32_t u = __float_as_uint(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return u >> 16 | 0x40;
  if (how == BY_CHANCE && (u & 0x7f800000u) != 0x7f800000u) return (u >> 16 & 0x8000) | min(((u & 0x7fffffffu) + noise) >> 16, 0x7f7fu);
  return (u + 0x7fff + (u >> 16 & 1)) >> 16;
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
  const uint32_t code = code_f8(__uint_as_float(largest) * head.inverse, stochastic ? CEILING : TO_EVEN, 0);
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
  const int how = noise.stochastic ? BY_CHANCE : TO_EVEN;
  uint4 random = make_uint4(0, 0, 0, 0);
  if (noise.stochastic) random = eight(noise, element / 8);
  uint32_t code[4];
#pragma unroll
  for (int e = 0; e < 4; e++) {
    if (noise.stochastic && e > 0 && (element + e) % 8 == 0) random = eight(noise, (element + e) / 8);
    const uint32_t r = number(random, (element + e) % 8);
    code[e] = format == STATE_F16    ? code_f16(v[e], how, r)
              : format == STATE_BF16 ? code_bf16(v[e], how, r)
              : format == STATE_F8   ? code_f8(v[e], how, r)
                                     : code_e2m1(v[e], how, r);
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
