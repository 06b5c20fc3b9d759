// Products of a warpgroup (wgmma): D[64, N] (+)= A[64, 16] B[16, N] of 16-bit numbers, asynchronous. D lies in registers: warp
// w has rows 16w + g (+ 8), columns 8t + 2c (+ 1) in d[t], as an mma of 16 x 8 has; and so does A, rounded from such a D or
// loaded by ldmatrix: in shared memory it would take as much of the memory's time as B does.
//
// A matrix in shared memory is cut into pieces of eight neighbouring columns, 16 bytes: piece b of a row at b * pitch + row * 16.
// So eight rows of a piece are 128 contiguous bytes, which is what the unit reads at a time (no swizzle), and one layout serves
// a product over columns as well as one over rows. pitch is a multiple of 16.
#pragma once
#include "replay.cuh"
#include "wgmma.cuh"

// B, whose columns (over_columns) or rows (over_rows) a product sums over, from the address on; 16 of them.
__device__ __forceinline__ uint64_t describe(uint32_t address, int leading, int stride) {
  return (uint64_t)(address >> 4 & 0x3fff) | (uint64_t)(leading >> 4) << 16 | (uint64_t)(stride >> 4) << 32;
}
__device__ __forceinline__ uint64_t over_columns(uint32_t address, int pitch) { return describe(address, pitch, 128); }
__device__ __forceinline__ uint64_t over_rows(uint32_t address, int pitch) { return describe(address, 128, pitch); }

enum { OVER_COLUMNS = 0, OVER_ROWS = 1 };

// ---------------------------------------------------------------- instructions

// Keeps uses of registers on their side of the start or the end of a product, which wrote or read them.
template <int NT>
__device__ __forceinline__ void pin(float (&d)[NT][4]) {
#pragma unroll
  for (int t = 0; t < NT; t++) asm volatile("" : "+f"(d[t][0]), "+f"(d[t][1]), "+f"(d[t][2]), "+f"(d[t][3])::"memory");
}
template <int K>
__device__ __forceinline__ void pin(uint32_t (&a)[K][4]) {
#pragma unroll
  for (int k = 0; k < K; k++) asm volatile("" : "+r"(a[k][0]), "+r"(a[k][1]), "+r"(a[k][2]), "+r"(a[k][3])::"memory");
}
__device__ __forceinline__ void stmatrix_x4(uint32_t addr, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(addr), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory");
}
__device__ __forceinline__ void stmatrix_x4_trans(uint32_t addr, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(addr), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory");
}

// 2^x, 0 below 2^-126.
__device__ __forceinline__ float quick_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// A pair of float16, saturating.
__device__ __forceinline__ uint32_t saturated(float x, float y) {
  uint32_t pair;
  asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(y), "f"(x));
  return pair;
}

#define HOLD_4(t) "+f"(d[t][0]), "+f"(d[t][1]), "+f"(d[t][2]), "+f"(d[t][3])
#define HOLD_8(t) HOLD_4(t), HOLD_4(t + 1)
#define PLACE_64 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define PLACE_80 PLACE_64 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define PLACE_128 PLACE_80 ",%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define HOLD_64 HOLD_8(0), HOLD_8(2), HOLD_8(4), HOLD_8(6)
#define HOLD_80 HOLD_64, HOLD_8(8)
#define HOLD_128 HOLD_80, HOLD_8(10), HOLD_8(12), HOLD_8(14)
// Products that add to d, or begin it where add is 0; OVER: what the descriptor of b sums over. P0 .. P6: operands behind d.
#define GROUP_PRODUCT(TYPE, N, P0, P1, P2, P3, P4, P5, P6)                                                                                    \
  template <int OVER>                                                                                                                         \
  __device__ __forceinline__ void group_##TYPE(float (&d)[N / 8][4], const uint32_t (&a)[4], uint64_t b, int add) {                            \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " P5 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N "k16.f32." #TYPE "." #TYPE " {" PLACE_##N \
                 "}, {" P0 ", " P1 ", " P2 ", " P3 "}, " P4 ", p, 1, 1, " P6 ";\n}\n"                                                         \
                 : HOLD_##N                                                                                                                   \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(OVER));                                                  \
  }
GROUP_PRODUCT(bf16, 64, "%32", "%33", "%34", "%35", "%36", "%37", "%38")
GROUP_PRODUCT(bf16, 80, "%40", "%41", "%42", "%43", "%44", "%45", "%46")
GROUP_PRODUCT(f16, 64, "%32", "%33", "%34", "%35", "%36", "%37", "%38")
GROUP_PRODUCT(f16, 80, "%40", "%41", "%42", "%43", "%44", "%45", "%46")
GROUP_PRODUCT(f16, 128, "%64", "%65", "%66", "%67", "%68", "%69", "%70")
#undef GROUP_PRODUCT

// ---------------------------------------------------------------- end of instructions
