// Hopper's products of a warpgroup, barriers in shared memory, and the sharing out of registers between warpgroups.
//
// An operand in shared memory lies in blocks of rows of 64 bf16, which are 128 bytes: piece c (16 bytes) of row r is at
// r * 128 + ((c ^ r & 7) << 4) of a block aligned to 1024. A matrix with more than 64 columns is several such blocks.
#pragma once
#include "common.cuh"

// The lower half of the descriptor of an operand. Along its columns is the summed dimension (keys: a row is a token) or, in
// a transposed operand, the other one (values), whose blocks of 64 columns lie `apart` bytes apart.
__device__ __forceinline__ uint32_t operand(uint32_t address, uint32_t apart = 16) { return apart >> 4 << 16 | (address & 0x3ffff) >> 4; }
// The same `bytes` further on.
__device__ __forceinline__ uint32_t further(uint32_t operand, uint32_t bytes) { return operand + (bytes >> 4); }

// The same number, of which the compiler computes nothing ahead: a loop's descriptors would fill its registers.
__device__ __forceinline__ uint32_t here(uint32_t v) {
  asm volatile("" : "+r"(v));
  return v;
}

__device__ __forceinline__ void product_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void product_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most N committed groups of products are unfinished.
template <int N>
__device__ __forceinline__ void product_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
// Keeps uses of registers on their side of the start or the end of a product.
template <int N>
__device__ __forceinline__ void pin(float (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}

#define ONES "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,"
#define TEN(t) "%" #t "0,%" #t "1,%" #t "2,%" #t "3,%" #t "4,%" #t "5,%" #t "6,%" #t "7,%" #t "8,%" #t "9,"
#define EIGHT(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define THIRTY_TWO(d, i) EIGHT(d, i), EIGHT(d, i + 8), EIGHT(d, i + 16), EIGHT(d, i + 24)
#define LIST32 ONES TEN(1) TEN(2) "%30,%31"
#define LIST64 ONES TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) "%60,%61,%62,%63"
#define LIST128 ONES TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) TEN(6) TEN(7) TEN(8) TEN(9) TEN(10) TEN(11) "%120,%121,%122,%123,%124,%125,%126,%127"
// The upper half: swizzle of 128 bytes, eight rows are 1024 bytes.
#define DESCRIPTOR(name, low) "mov.b64 " name ", {" low ", 0x40000040}; "
// The same with other bytes from eight rows to the next, which `high` holds.
#define DESCRIPTOR_OF(name, low, high) "mov.b64 " name ", {" low ", " high "}; "
#define HIGH(bytes) "n"(0x40000000 | (bytes) >> 4)
#define MULTIPLY "wgmma.mma_async.sync.aligned."
#define BF16_SUMS "k16.f32.bf16.bf16 {"

// d = a b^T, or d += a b^T with `add`: 64 rows of a and 64 or 128 rows of b in shared memory, 16 columns. A thread of warp w
// and lane 4 g + c holds in d[4 j + 2 i + e] row 16 w + 8 i + g, column 8 j + 2 c + e. ROWS: bytes from eight rows of b to the next.
template <int ROWS = 1024>
__device__ __forceinline__ void products(float (&d)[32], uint32_t a, uint32_t b, int add) {
  asm volatile("{.reg .pred p; .reg .b64 a, b; setp.ne.b32 p, %34, 0; " DESCRIPTOR("a", "%32") DESCRIPTOR_OF("b", "%33", "%35")
               MULTIPLY "m64n64" BF16_SUMS LIST32 "}, a, b, p, 1, 1, 0, 0;}"
               : THIRTY_TWO(d, 0)
               : "r"(a), "r"(b), "r"(add), HIGH(ROWS));
}
template <int ROWS = 1024>
__device__ __forceinline__ void products(float (&d)[64], uint32_t a, uint32_t b, int add) {
  asm volatile("{.reg .pred p; .reg .b64 a, b; setp.ne.b32 p, %66, 0; " DESCRIPTOR("a", "%64") DESCRIPTOR_OF("b", "%65", "%67")
               MULTIPLY "m64n128" BF16_SUMS LIST64 "}, a, b, p, 1, 1, 0, 0;}"
               : THIRTY_TWO(d, 0), THIRTY_TWO(d, 32)
               : "r"(a), "r"(b), "r"(add), HIGH(ROWS));
}

// The same for other numbers of rows of b: twice a thread's sums.
#define LIST40 ONES TEN(1) TEN(2) "%30,%31,%32,%33,%34,%35,%36,%37,%38,%39"
#define LIST44 ONES TEN(1) TEN(2) TEN(3) "%40,%41,%42,%43"
#define LIST48 ONES TEN(1) TEN(2) TEN(3) "%40,%41,%42,%43,%44,%45,%46,%47"
#define LIST52 ONES TEN(1) TEN(2) TEN(3) TEN(4) "%50,%51"
#define LIST56 ONES TEN(1) TEN(2) TEN(3) TEN(4) "%50,%51,%52,%53,%54,%55"
#define LIST72 ONES TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) TEN(6) "%70,%71"
#define LIST76 ONES TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) TEN(6) "%70,%71,%72,%73,%74,%75"
#define LIST80 ONES TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) TEN(6) "%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define LIST68 ONES TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) "%60,%61,%62,%63,%64,%65,%66,%67"
#define LIST88 ONES TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) TEN(6) TEN(7) "%80,%81,%82,%83,%84,%85,%86,%87"
#define LIST96 ONES TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) TEN(6) TEN(7) TEN(8) "%90,%91,%92,%93,%94,%95"
#define LIST112 ONES TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) TEN(6) TEN(7) TEN(8) TEN(9) TEN(10) "%110,%111"
#define FOUR(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define PRODUCTS(size, rows, ia, ib, iadd, ...)                                                                                      \
  __device__ __forceinline__ void products(float (&d)[size], uint32_t a, uint32_t b, int add) {                                      \
    asm volatile("{.reg .pred p; .reg .b64 a, b; setp.ne.b32 p, " iadd ", 0; " DESCRIPTOR("a", ia) DESCRIPTOR("b", ib)               \
                 MULTIPLY "m64n" #rows BF16_SUMS LIST##size "}, a, b, p, 1, 1, 0, 0;}" : __VA_ARGS__ : "r"(a), "r"(b), "r"(add));    \
  }
PRODUCTS(40, 80, "%40", "%41", "%42", THIRTY_TWO(d, 0), EIGHT(d, 32))
PRODUCTS(44, 88, "%44", "%45", "%46", THIRTY_TWO(d, 0), EIGHT(d, 32), FOUR(d, 40))
PRODUCTS(48, 96, "%48", "%49", "%50", THIRTY_TWO(d, 0), EIGHT(d, 32), EIGHT(d, 40))
PRODUCTS(52, 104, "%52", "%53", "%54", THIRTY_TWO(d, 0), EIGHT(d, 32), EIGHT(d, 40), FOUR(d, 48))
PRODUCTS(56, 112, "%56", "%57", "%58", THIRTY_TWO(d, 0), EIGHT(d, 32), EIGHT(d, 40), EIGHT(d, 48))
PRODUCTS(72, 144, "%72", "%73", "%74", THIRTY_TWO(d, 0), THIRTY_TWO(d, 32), EIGHT(d, 64))
PRODUCTS(76, 152, "%76", "%77", "%78", THIRTY_TWO(d, 0), THIRTY_TWO(d, 32), EIGHT(d, 64), FOUR(d, 72))
PRODUCTS(80, 160, "%80", "%81", "%82", THIRTY_TWO(d, 0), THIRTY_TWO(d, 32), EIGHT(d, 64), EIGHT(d, 72))
PRODUCTS(68, 136, "%68", "%69", "%70", THIRTY_TWO(d, 0), THIRTY_TWO(d, 32), FOUR(d, 64))
PRODUCTS(88, 176, "%88", "%89", "%90", THIRTY_TWO(d, 0), THIRTY_TWO(d, 32), EIGHT(d, 64), EIGHT(d, 72), EIGHT(d, 80))
PRODUCTS(96, 192, "%96", "%97", "%98", THIRTY_TWO(d, 0), THIRTY_TWO(d, 32), THIRTY_TWO(d, 64))
PRODUCTS(112, 224, "%112", "%113", "%114", THIRTY_TWO(d, 0), THIRTY_TWO(d, 32), THIRTY_TWO(d, 64), EIGHT(d, 96), EIGHT(d, 104))

// d += a b, or d = a b without `add`: a in registers, pairs in the places of d's rows and 16 columns; b has 16 rows of 64,
// 128 or 256 columns in shared memory.
template <int ROWS = 1024>
__device__ __forceinline__ void sums(float (&d)[32], const uint32_t* a, uint32_t b, int add) {
  asm volatile("{.reg .pred p; .reg .b64 b; setp.ne.b32 p, %37, 0; " DESCRIPTOR_OF("b", "%36", "%38")
               MULTIPLY "m64n64" BF16_SUMS LIST32 "}, {%32,%33,%34,%35}, b, p, 1, 1, 1;}"
               : THIRTY_TWO(d, 0)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(add), HIGH(ROWS));
}
template <int ROWS = 1024>
__device__ __forceinline__ void sums(float (&d)[64], const uint32_t* a, uint32_t b, int add) {
  asm volatile("{.reg .pred p; .reg .b64 b; setp.ne.b32 p, %69, 0; " DESCRIPTOR_OF("b", "%68", "%70")
               MULTIPLY "m64n128" BF16_SUMS LIST64 "}, {%64,%65,%66,%67}, b, p, 1, 1, 1;}"
               : THIRTY_TWO(d, 0), THIRTY_TWO(d, 32)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(add), HIGH(ROWS));
}
template <int ROWS = 1024>
__device__ __forceinline__ void sums(float (&d)[128], const uint32_t* a, uint32_t b, int add) {
  asm volatile("{.reg .pred p; .reg .b64 b; setp.ne.b32 p, %133, 0; " DESCRIPTOR_OF("b", "%132", "%134")
               MULTIPLY "m64n256" BF16_SUMS LIST128 "}, {%128,%129,%130,%131}, b, p, 1, 1, 1;}"
               : THIRTY_TWO(d, 0), THIRTY_TWO(d, 32), THIRTY_TWO(d, 64), THIRTY_TWO(d, 96)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(add), HIGH(ROWS));
}

// What this thread wrote to shared memory becomes visible to products that start later.
__device__ __forceinline__ void show_products() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Barriers: 8 bytes of shared memory each. A phase ends when all have arrived; the first one has parity 0.
__device__ __forceinline__ void barrier_open(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ bool barrier_passed(uint32_t barrier, uint32_t parity) {
  uint32_t passed;
  asm volatile("{.reg .pred p; mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}" : "=r"(passed) : "r"(barrier), "r"(parity) : "memory");
  return passed;
}
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
  while (!barrier_passed(barrier, parity));
}

// A warpgroup gives registers up, or takes them.
template <int N>
__device__ __forceinline__ void fewer_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N>
__device__ __forceinline__ void more_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
