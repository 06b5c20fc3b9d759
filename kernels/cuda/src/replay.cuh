// Device code of the step kernels: outputs of a step's tokens from checkpoint and records, flushes in the same pass.
//
// Vocabulary
//   key dim      KEYS = 128 contiguous elements of a state row (Mamba-2: State, GDN: KeyDim)
//   value row    one row of a head's state (Mamba-2: a channel, GDN: a value index)
//   tile         16 value rows x 128 keys of fp32 = 8 KiB, the unit of streaming and of tensor-core work
//   W            capacity for committed records in shared memory, 16 or 32: rows 0..h-1 are committed, rows W..W+n-1 new
//
// How a 16 x 128 tile meets the tensor cores. All products S q go through mma.m16n8k8 (tf32): the 16 rows are value
// rows, n are up to 8 queries. A state element is split S = hi + lo with hi = S cut to 10 mantissa bits (tf32 keeps
// exactly those) and lo = S - hi; queries are bf16 values, exact in tf32, so hi q + lo q carries about 22 bits of S and
// every product is accumulated in fp32.
//
// The order of the key dim inside an mma is free as long as both operands agree. Lane (g, c) = (lane / 4, lane % 4) owns
// columns 16i+4c .. 16i+4c+3 of rows g and g+8: one 16-byte access a row. The same registers are at once
//   - the A operand of the readout   (k-step 2i: columns 4c, 4c+1; k-step 2i+1: columns 4c+2, 4c+3)
//   - the C operand of the fold      (n-tile 0:  columns 4c, 4c+1; n-tile 1:   columns 4c+2, 4c+3)
// so a flush updates the tile in registers with no data movement between lanes.
#pragma once
#include "ssm.cuh"

constexpr int KEYS = 128, TILE_ROWS = 16, TILE_BYTES = TILE_ROWS * KEYS * 4;
constexpr int KEY_WORDS = 68;  // shared-memory row of one key: 64 words + 4 of padding (no bank conflicts)

// ---------------------------------------------------------------- asynchronous copies

__device__ __forceinline__ uint32_t smem_addr(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void mbar_init(uint64_t* bar, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(smem_addr(bar)), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void mbar_end(uint64_t* bar) { asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(smem_addr(bar)) : "memory"); }
__device__ __forceinline__ void mbar_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
// One lane opens n barriers for an arrival each. A branch around less than a loop becomes a predicate of the instruction, and
// the mark in front of it, which racecheck follows, then stays for all lanes.
__device__ __forceinline__ void open_barriers(uint64_t* bars, int n) {
  asm volatile("" : "+r"(n));
#pragma unroll 1
  for (int i = 0; i < n; i++) mbar_init(bars + i, 1);
  mbar_init_fence();
}
__device__ __forceinline__ void mbar_expect(uint64_t* bar, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(smem_addr(bar)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void mbar_arrive(uint64_t* bar) {
  asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(smem_addr(bar)) : "memory");
}
__device__ __forceinline__ void mbar_wait(uint64_t* bar, uint32_t parity) {
  asm volatile(
      "{\n .reg .pred p;\n"
      "W: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
      " @p bra D;\n bra W;\n D:\n}\n" ::"r"(smem_addr(bar)), "r"(parity) : "memory");
}
// No L2 hint on purpose: evict-first on these loads costs 1 % at T = 1 and 5..10 % where rows flush.
__device__ __forceinline__ void bulk_load(void* dst, const void* src, uint32_t bytes, uint64_t* bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(smem_addr(dst)),
               "l"(src), "r"(bytes), "r"(smem_addr(bar)) : "memory");
}
__device__ __forceinline__ void bulk_store(void* dst, const void* src, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(dst), "r"(smem_addr(src)), "r"(bytes) : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
__device__ __forceinline__ void bulk_store_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ __forceinline__ void bulk_store_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
__device__ __forceinline__ void async_proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void cp_async16(void* dst, const void* src) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(smem_addr(dst)), "l"(src) : "memory");
}
__device__ __forceinline__ void cp_async4(void* dst, const void* src) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(smem_addr(dst)), "l"(src) : "memory");
}
__device__ __forceinline__ void cp_async_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }
// Number i at p, asked for here, whatever decides later whether it is needed.
__device__ __forceinline__ int load_now(uint64_t p, int i) {
  int v;
  asm volatile("ld.global.s32 %0, [%1];" : "=r"(v) : "l"(p + (int64_t)i * 4) : "memory");
  return v;
}
// Four elements of a state that nothing in the kernel reads any more: in any order with other loads and stores.
__device__ __forceinline__ void store_state(float* p, float4 v) {
  asm volatile("st.global.v4.f32 [%0], {%1,%2,%3,%4};" ::"l"(p), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w));
}
// Four elements of a query; in program order, so that all are on their way before anything is waited for.
__device__ __forceinline__ uint2 load_query(const bf16* p) {
  uint2 v;
  asm volatile("ld.global.cg.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p) : "memory");
  return v;
}

// ---------------------------------------------------------------- tensor cores

__device__ __forceinline__ void mma_tf32(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma_bf16_8(float (&d)[4], const uint32_t (&a)[2], uint32_t b) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5},{%6},{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(b));
}
__device__ __forceinline__ void mma_f16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], uint32_t addr) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(addr) : "memory");
}
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t addr) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(addr) : "memory");
}
__device__ __forceinline__ void ldmatrix_x2_trans(uint32_t (&r)[2], uint32_t addr) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(addr) : "memory");
}
__device__ __forceinline__ void stmatrix_x2_trans(uint32_t addr, uint32_t r0, uint32_t r1) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1,%2};" ::"r"(addr), "r"(r0), "r"(r1) : "memory");
}

// ---------------------------------------------------------------- number formats

__device__ __forceinline__ uint32_t bits(float x) { return __float_as_uint(x); }
constexpr uint32_t TF32_CUT = 0xffffe000u;
__device__ __forceinline__ float tf32_hi(float x) { return __uint_as_float(__float_as_uint(x) & TF32_CUT); }
__device__ __forceinline__ float bf_lo(uint32_t pair) { return __uint_as_float(pair << 16); }          // element 0 of a bf16 pair
__device__ __forceinline__ float bf_hi(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }  // element 1
__device__ __forceinline__ uint32_t pack_f16(float x0, float x1) {
  __half2 v = __floats2half2_rn(x0, x1);
  return *reinterpret_cast<uint32_t*>(&v);
}
__device__ __forceinline__ float saturate_f16(float x) { return fminf(fmaxf(x, -65504.f), 65504.f); }
__device__ __forceinline__ float2 unpack_f16(uint32_t pair) { return __half22float2(*reinterpret_cast<__half2*>(&pair)); }
// x = t0 + t1 + t2 with bf16 terms (24 bits).
__device__ __forceinline__ void split3_bf16(float x0, float x1, uint32_t& t0, uint32_t& t1, uint32_t& t2) {
  t0 = pack_bf16(x0, x1);
  x0 -= bf_lo(t0), x1 -= bf_hi(t0);
  t1 = pack_bf16(x0, x1);
  x0 -= bf_lo(t1), x1 -= bf_hi(t1);
  t2 = pack_bf16(x0, x1);
}
// x = t0 + t1 with fp16 terms (22 bits above 2^-14, absolute error 2^-25 below).
__device__ __forceinline__ void split2_f16(float x0, float x1, uint32_t& t0, uint32_t& t1) {
  t0 = pack_f16(x0, x1);
  float2 r = unpack_f16(t0);
  t1 = pack_f16(x0 - r.x, x1 - r.y);
}

// ---------------------------------------------------------------- records in shared memory
// A key row is stored with its 4-byte pairs permuted inside each chunk of 16 columns: even pairs first (n-tile 0), odd
// pairs behind (n-tile 1). ldmatrix.trans then hands out fold operands in the column order above. piece = 16 bytes of
// the plain row (8 columns), 16 pieces a row.
__device__ __forceinline__ void store_key_piece(uint32_t* keys, int row, int piece, uint4 v) {
  uint32_t* p = keys + row * KEY_WORDS + (piece >> 1) * 8 + (piece & 1) * 2;
  *reinterpret_cast<uint2*>(p) = make_uint2(v.x, v.z);
  *reinterpret_cast<uint2*>(p + 4) = make_uint2(v.y, v.w);
}

// Where the rows of a block's records lie.
template <int W>
struct RecordRows {
  int h, n;
  __device__ int count() const { return h + n; }
  __device__ int of(int i) const { return i < h ? i : W + i - h; }  // record i, committed ones first
  // Rows that may be read for record slot j: slots behind the last record read a valid row, their weights are zero.
  __device__ int committed(int j) const { return h > 0 ? min(j, h - 1) : W; }
  __device__ int fresh(int j) const { return W + min(j, n - 1); }
};

// This lane's ldmatrix.x4.trans address of keys: records 16m .. 16m+15, chunk 0.
template <int W>
__device__ __forceinline__ uint32_t key_address(const uint32_t* keys, int lane, int m, RecordRows<W> rows) {
  int j = 16 * m + (lane >> 3 & 1) * 8 + (lane & 7);
  return smem_addr(keys + rows.committed(j) * KEY_WORDS + (lane >> 4) * 4);
}
// This lane's ldmatrix.x4.trans address of values: records 16m .. 16m+15, value rows 0..15.
template <int W>
__device__ __forceinline__ uint32_t value_address(const void* values, int row_bytes, int lane, int m, RecordRows<W> rows) {
  int j = 16 * m + (lane >> 4) * 8 + (lane & 7);
  return smem_addr(values) + rows.committed(j) * row_bytes + (lane >> 3 & 1) * 16;
}
// The same of the new records, ldmatrix.x2.trans.
template <int W>
__device__ __forceinline__ uint32_t fresh_address(const void* values, int row_bytes, int lane, RecordRows<W> rows) {
  return smem_addr(values) + rows.fresh(lane & 7) * row_bytes + (lane >> 3 & 1) * 16;
}

// ---------------------------------------------------------------- one pass over a tile
// r0, r1 = chunk i of gamma S + sum_j wv_j k_j^T; s0, s1: this lane's four columns of S, rows g and g + 8, which gamma0 and
// gamma1 are for. The sum over records starts at zero and joins the state with one rounded fma: tensor-core additions cut instead of rounding, and a
// cut of the state itself would add up over flushes.
template <int M>
__device__ __forceinline__ void fold_chunk(float4& r0, float4& r1, const float4& s0, const float4& s1, float gamma0, float gamma1, const uint32_t (&wv)[M][3][4], const uint32_t (&key_lane)[M], int i) {
  float d0[4] = {0.f, 0.f, 0.f, 0.f}, d1[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
  for (int m = 0; m < M; m++) {
    uint32_t k[4];
    ldmatrix_x4_trans(k, key_lane[m] + i * 32);
#pragma unroll
    for (int t = 2; t >= 0; t--) {
      mma_bf16(d0, wv[m][t], k[0], k[1]);
      mma_bf16(d1, wv[m][t], k[2], k[3]);
    }
  }
  r0 = make_float4(fmaf(gamma0, s0.x, d0[0]), fmaf(gamma0, s0.y, d0[1]), fmaf(gamma0, s0.z, d1[0]), fmaf(gamma0, s0.w, d1[1]));
  r1 = make_float4(fmaf(gamma1, s1.x, d0[2]), fmaf(gamma1, s1.y, d0[3]), fmaf(gamma1, s1.z, d1[2]), fmaf(gamma1, s1.w, d1[3]));
}

// The weights of records that each lane holds one of (`lane`), as this lane's columns of 16 records each.
template <int M>
__device__ __forceinline__ void spread_weights(float (&w)[M][4], float of_lane, int lane) {
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int e = 0; e < 4; e++) w[m][e] = __shfl_sync(~0u, of_lane, m * 16 + (e >> 1) * 8 + 2 * (lane & 3) + (e & 1));
}

// acc[n] = S Q[n]. With FOLD the tile at `to` becomes gamma S + sum_j wv_j k_j^T (wv: three bf16 terms of the weighted
// values as A fragments over 16 records; key_lane: this lane's ldmatrix address of chunk 0), M times 16 records.
// What is stored is not read again: the tile may be loaded over as soon as it has been passed. cut: TF32_CUT that the compiler
// does not know; else it feeds S uncut, which a tensor core takes for the same, and moves every element into place first.
template <int NT, int M, bool FOLD>
__device__ __forceinline__ void tile_pass(const uint8_t* tile, const uint32_t (&q)[NT][16], float (&acc)[NT][4], int lane, uint32_t cut,
                                          float* to, float gamma, const uint32_t (&wv)[M][3][4], const uint32_t (&key_lane)[M]) {
  const int g = lane >> 2, c = lane & 3;
  const float4* const row0 = reinterpret_cast<const float4*>(tile) + g * KEYS / 4 + c;
  const float4* const row1 = row0 + 8 * KEYS / 4;
  constexpr int CHAINS = NT == 1 ? 2 : 1;  // of each kind: an mma waits for the one before it in its chain
  float hi[CHAINS][NT][4], lo[CHAINS][NT][4];
#pragma unroll
  for (int n = 0; n < NT; n++)
#pragma unroll
    for (int e = 0; e < 4; e++) hi[0][n][e] = lo[0][n][e] = hi[CHAINS - 1][n][e] = lo[CHAINS - 1][n][e] = 0.f;
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const float4 s0 = row0[i * 4], s1 = row1[i * 4];
    auto high = [&](float x) { return __uint_as_float(bits(x) & cut); };
    float4 h0 = make_float4(high(s0.x), high(s0.y), high(s0.z), high(s0.w));
    float4 h1 = make_float4(high(s1.x), high(s1.y), high(s1.z), high(s1.w));
    float4 l0 = make_float4(s0.x - h0.x, s0.y - h0.y, s0.z - h0.z, s0.w - h0.w);
    float4 l1 = make_float4(s1.x - h1.x, s1.y - h1.y, s1.z - h1.z, s1.w - h1.w);
#pragma unroll
    for (int n = 0; n < NT; n++) {
      uint32_t p0 = q[n][2 * i], p1 = q[n][2 * i + 1];
      uint32_t b0 = p0 << 16, b1 = p0 & 0xffff0000u, b2 = p1 << 16, b3 = p1 & 0xffff0000u;
      mma_tf32(hi[0][n], bits(h0.x), bits(h1.x), bits(h0.y), bits(h1.y), b0, b1);
      mma_tf32(lo[0][n], bits(l0.x), bits(l1.x), bits(l0.y), bits(l1.y), b0, b1);
      mma_tf32(hi[CHAINS - 1][n], bits(h0.z), bits(h1.z), bits(h0.w), bits(h1.w), b2, b3);
      mma_tf32(lo[CHAINS - 1][n], bits(l0.z), bits(l1.z), bits(l0.w), bits(l1.w), b2, b3);
    }
    if constexpr (FOLD) {
      float4 r0, r1;
      fold_chunk(r0, r1, s0, s1, gamma, gamma, wv, key_lane, i);
      store_state(to + g * KEYS + (i * 4 + c) * 4, r0);
      store_state(to + (g + 8) * KEYS + (i * 4 + c) * 4, r1);
    }
  }
#pragma unroll
  for (int n = 0; n < NT; n++)
#pragma unroll
    for (int e = 0; e < 4; e++) acc[n][e] = CHAINS == 1 ? hi[0][n][e] + lo[0][n][e] : (hi[0][n][e] + hi[CHAINS - 1][n][e]) + (lo[0][n][e] + lo[CHAINS - 1][n][e]);
}

// G^T = Q K^T: rows are queries (n = 8 per q set), columns records. Fragments come out in the layout in which the
// records x queries matrix is a B operand: lane (g, c) holds query g, records 8m+2c and 8m+2c+1 of record tile m (8 or 16).
template <int NT, int MT>
__device__ __forceinline__ void query_key(float (&gt)[MT][4], const uint32_t (&q)[NT][16], const uint32_t* keys, int lane, const int (&row)[MT]) {
  const int c = lane & 3;
#pragma unroll
  for (int m = 0; m < MT; m++)
#pragma unroll
    for (int e = 0; e < 4; e++) gt[m][e] = 0.f;
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const uint32_t a[4] = {q[0][2 * i], NT == 2 ? q[NT - 1][2 * i] : 0u, q[0][2 * i + 1], NT == 2 ? q[NT - 1][2 * i + 1] : 0u};
#pragma unroll
    for (int m = 0; m < MT; m++) {
      const uint32_t* k = keys + row[m] * KEY_WORDS + c + i * 8;
      mma_bf16(gt[m], a, k[0], k[4]);
    }
  }
}
// The rows of query_key for this lane: W/8 tiles of committed records, one of new ones.
template <int W>
__device__ __forceinline__ void query_key_rows(int (&row)[W / 8 + 1], int lane, RecordRows<W> rows) {
#pragma unroll
  for (int m = 0; m < W / 8; m++) row[m] = rows.committed(8 * m + (lane >> 2));
  row[W / 8] = rows.fresh(lane >> 2);
}

// Log decays of one head, in sums that start at the boundary between committed and new records, so that small sums stay
// exact. old: of committed record `lane` (0 behind the last); fresh: of new record `lane` (0 behind the last).
//   after   sum over the committed records behind `lane`         total  sum over all committed records
//   until   sum over the new records up to and including `lane` (lanes 0..7)
struct Decays {
  float after, total, until;
  __device__ Decays(float old, float fresh, int lane) : Decays(old, lane) { extend(fresh, lane); }
  // Without the new records, which come later.
  __device__ Decays(float old, int lane) {
    float v = old;
#pragma unroll
    for (int o = 1; o < 32; o *= 2) {
      float u = __shfl_down_sync(~0u, v, o);
      if (lane + o < 32) v += u;
    }
    total = __shfl_sync(~0u, v, 0);
    after = __shfl_down_sync(~0u, v, 1);
    if (lane == 31) after = 0.f;
  }
  __device__ void extend(float fresh, int lane) {
    until = fresh;
#pragma unroll
    for (int o = 1; o < 8; o *= 2) {
      float u = __shfl_up_sync(~0u, until, o);
      if (lane >= o) until += u;
    }
  }
};
