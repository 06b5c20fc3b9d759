// Y = X W^T (+ Y). W lies row by row, rows padded with zeros to 128 bytes.
//
// The skinny kernels stream bf16 weights past up to 64 tokens of bf16. A product is cut along K into SLICES slices:
// slice s has the chunks of 32 columns s, s+SLICES, ... One warp does a slice of a tile of rows; the slices' sums are
// added in order. So the order of all additions depends on K alone, never on the number of tokens.
//
// The weight is the A operand of mma.m16n8k16 (16 rows of W), tokens are the B operand (8 columns), so that few tokens
// waste little. The order of K inside a chunk is free as long as both operands agree: lane (g, t) = (lane / 4, lane % 4)
// owns columns 8t .. 8t+7 of a chunk, one 16-byte load a row and a token, which are two k-steps of the mma.
#include "common.cuh"

struct Linear {
  Mat x, y;
  uint64_t w;
  int64_t bytes;  // of a row of w
  int m, n, k;
  int wtype, xtype, ytype, add;
  int aligned;  // rows of x start at multiples of 16 bytes
  uint64_t norm;  // f32 [k]: factors of the norm before the product, for NORMED kernels
  float eps;
  int act;  // ACT_*: what lies behind the product, of NORMED kernels
};
enum { ACT_NONE = -1, ACT_SILU_MUL = 0, ACT_RELU2 = 1 };

constexpr int SLICES = 16;
constexpr int CHUNK = 32;

// A relaxed load, not a plain one: the assembler moves plain loads behind griddepcontrol.wait.
__device__ __forceinline__ uint4 load_weight(const void* p) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}

__device__ __forceinline__ uint32_t pair(const bf16* x, int i, int end) {
  uint32_t lo = i < end ? __bfloat16_as_ushort(x[i]) : 0, hi = i + 1 < end ? __bfloat16_as_ushort(x[i + 1]) : 0;
  return lo | hi << 16;
}

// Columns k .. k+7 of a token; zeros beyond the end and for no token.
__device__ __forceinline__ uint4 load_token(const bf16* x, bool exists, int k, int end, bool aligned) {
  if (!exists || k >= end) return make_uint4(0, 0, 0, 0);
  if (aligned && k + 8 <= end) return *reinterpret_cast<const uint4*>(x + k);
  return make_uint4(pair(x, k, end), pair(x, k + 2, end), pair(x, k + 4, end), pair(x, k + 6, end));
}

__device__ __forceinline__ void mma(float c[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t r;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return r;
}
__device__ __forceinline__ void cluster_barrier() {
  __syncwarp();
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
__device__ __forceinline__ float load_remote(uint32_t shared, uint32_t rank) {
  uint32_t a;
  float v;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(a) : "r"(shared), "r"(rank));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(a) : "memory");
  return v;
}

__device__ __forceinline__ uint32_t pack_pair(float lo, float hi) {
  __nv_bfloat162 v = __floats2bfloat162_rn(lo, hi);
  return *reinterpret_cast<uint32_t*>(&v);
}

// What a NORMED block does with the sums of its 16 warps: activations are of rounded numbers, as if they were stored.
template <int TOKENS, int STRIDE>
__device__ __forceinline__ void finish_normed(const Linear& p, const float* partial, const float* squares, int tile) {
  const int rows = p.act == ACT_SILU_MUL ? 8 : 16;
  for (int e = threadIdx.x; e < rows * TOKENS; e += SLICES * 32) {
    const int token = e / rows, row = e % rows, n = tile * rows + row;
    if (token >= p.m || n >= p.n) continue;
    float square = 0, sum = 0, other = 0;
#pragma unroll
    for (int s = 0; s < SLICES; s++) {
      square += squares[s * TOKENS + token];
      sum += partial[(s * TOKENS + token) * STRIDE + row];
      if (p.act == ACT_SILU_MUL) other += partial[(s * TOKENS + token) * STRIDE + row + 8];
    }
    const float scale = 1.f / sqrtf(square / p.k + p.eps);
    sum *= scale;
    const int64_t to = token * p.y.stride + n;
    if (p.act == ACT_NONE) {
      if (p.add) sum += load_as(p.ytype, p.y.p, to);
    } else {
      sum = widen(narrow<bf16>(sum));
      if (p.act == ACT_SILU_MUL)
        sum = silu(sum) * widen(narrow<bf16>(other * scale));
      else
        sum = fmaxf(sum, 0.f) * fmaxf(sum, 0.f);
    }
    store_as(p.ytype, p.y.p, to, sum);
  }
}

// NT tiles of 8 tokens, RT tiles of 16 rows, WARPS warps a block; SLICES / WARPS blocks of a cluster share a tile. UNROLL
// chunks of weights are in flight a warp; HELD: those of the tokens too.
//
// NORMED: the product of norm(x), and perhaps an activation of it. Tokens are multiplied by the norm's factors as they
// come; the sum of their squares, which every block has by the end, scales the sums. For silu(gate) * up a tile has eight
// rows of either half of w, and n is the outputs.
template <int NT, int RT, int WARPS, int UNROLL, bool HELD, bool NORMED = false>
__device__ __forceinline__ void skinny(const Linear& p) {
  constexpr int BLOCKS = SLICES / WARPS, ROWS = 16 * RT, TOKENS = 8 * NT, STRIDE = ROWS + 4;
  static_assert(!NORMED || (BLOCKS == 1 && RT == 1), "a block has whole rows");
  extern __shared__ float partial[];  // [WARPS][TOKENS][STRIDE]; NORMED: then sums of squares [WARPS][TOKENS], factors [k]
  float *squares = partial + WARPS * TOKENS * STRIDE, *factors = squares + WARPS * TOKENS;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int rank = BLOCKS > 1 ? cluster_rank() : 0, tile = blockIdx.x / BLOCKS;
  const int chunks = (p.k + CHUNK - 1) / CHUNK, first = rank * WARPS + warp;

  // Rows beyond the last read the last one; their sums go nowhere. Offsets are in units of 16 bytes.
  uint32_t w[RT][2];
#pragma unroll
  for (int r = 0; r < RT; r++)
#pragma unroll
    for (int i = 0; i < 2; i++) {
      int row = min(tile * ROWS + r * 16 + i * 8 + g, p.n - 1);
      if (NORMED && p.act == ACT_SILU_MUL) row = min(tile * 8 + g, p.n - 1) + i * p.n;
      w[r][i] = (uint32_t)(row * (p.bytes / 16)) + t;
    }

  uint4 a[UNROLL][RT][2];
  auto fetch = [&](int u, int chunk) {
#pragma unroll
    for (int r = 0; r < RT; r++)
#pragma unroll
      for (int i = 0; i < 2; i++) a[u][r][i] = load_weight(at<const uint4>(p.w) + (w[r][i] + (uint32_t)chunk * (CHUNK / 8)));
  };
#pragma unroll
  for (int u = 0; u < UNROLL; u++)
    if (first + u * SLICES < chunks) fetch(u, first + u * SLICES);
  if (NORMED) {
    for (int i = threadIdx.x; i < chunks * CHUNK; i += WARPS * 32) factors[i] = i < p.k ? at<const float>(p.norm)[i] : 0.f;
    __syncthreads();
  }

  pdl_wait();
  pdl_trigger();  // only now: step kernels read state before their wait
  const bf16* x = row_of<const bf16>(p.x, g) + t * 8;
  const int end = p.k - t * 8, stride = (int)p.x.stride * 8;
  constexpr int KEEP = HELD ? UNROLL : 1;
  uint4 b[KEEP][NT];
  auto fetch_tokens = [&](int u, int chunk) {
#pragma unroll
    for (int j = 0; j < NT; j++) b[u][j] = load_token(x + j * stride, j * 8 + g < p.m, chunk * CHUNK, end, p.aligned);
  };
  if (HELD) {
#pragma unroll
    for (int u = 0; u < UNROLL; u++)
      if (first + u * SLICES < chunks) fetch_tokens(u % KEEP, first + u * SLICES);
  }

  float c[RT][NT][4] = {}, square[NT] = {};
  auto scale_tokens = [&](uint4* tokens, int chunk) {
    const float4 lo = *reinterpret_cast<const float4*>(factors + chunk * CHUNK + t * 8), hi = *reinterpret_cast<const float4*>(factors + chunk * CHUNK + t * 8 + 4);
#pragma unroll
    for (int j = 0; j < NT; j++) {
      uint32_t* words[4] = {&tokens[j].x, &tokens[j].y, &tokens[j].z, &tokens[j].w};
      const float factor[8] = {lo.x, lo.y, lo.z, lo.w, hi.x, hi.y, hi.z, hi.w};
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const float even = __uint_as_float(*words[i] << 16), odd = __uint_as_float(*words[i] & 0xffff0000u);
        square[j] = fmaf(even, even, square[j]), square[j] = fmaf(odd, odd, square[j]);
        *words[i] = pack_pair(even * factor[2 * i], odd * factor[2 * i + 1]);
      }
    }
  };
  for (int from = first; from < chunks; from += SLICES * UNROLL) {
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
      const int chunk = from + u * SLICES, next = chunk + SLICES * UNROLL, v = HELD ? u : 0;
      if (chunk >= chunks) break;
      if (!HELD) fetch_tokens(0, chunk);
      if (NORMED) scale_tokens(b[v], chunk);
#pragma unroll
      for (int r = 0; r < RT; r++)
#pragma unroll
        for (int j = 0; j < NT; j++) {
          mma(c[r][j], a[u][r][0].x, a[u][r][1].x, a[u][r][0].y, a[u][r][1].y, b[v][j].x, b[v][j].y);
          mma(c[r][j], a[u][r][0].z, a[u][r][1].z, a[u][r][0].w, a[u][r][1].w, b[v][j].z, b[v][j].w);
        }
      if (next < chunks) {
        fetch(u, next);
        if (HELD) fetch_tokens(v, next);
      }
    }
  }

  float* mine = partial + warp * TOKENS * STRIDE;
#pragma unroll
  for (int r = 0; r < RT; r++)
#pragma unroll
    for (int j = 0; j < NT; j++)
#pragma unroll
      for (int i = 0; i < 4; i++) mine[(j * 8 + 2 * t + i % 2) * STRIDE + r * 16 + g + i / 2 * 8] = c[r][j][i];
  if (NORMED) {
#pragma unroll
    for (int j = 0; j < NT; j++) {
      float s = square[j] + __shfl_xor_sync(~0u, square[j], 1);
      s += __shfl_xor_sync(~0u, s, 2);
      if (t == 0) squares[warp * TOKENS + j * 8 + g] = s;
    }
  }
  if (BLOCKS > 1)
    cluster_barrier();
  else
    __syncthreads();
  if (NORMED) return finish_normed<TOKENS, STRIDE>(p, partial, squares, tile);

  constexpr int SHARE = ROWS / BLOCKS;  // rows that this block adds up
  for (int e = threadIdx.x; e < SHARE * TOKENS; e += WARPS * 32) {
    const int token = e / SHARE, row = rank * SHARE + e % SHARE, n = tile * ROWS + row;
    if (token >= p.m || n >= p.n) continue;
    float part[SLICES], sum = 0;
#pragma unroll
    for (int s = 0; s < SLICES; s++) {
      const float* from = partial + (s % WARPS * TOKENS + token) * STRIDE + row;
      part[s] = BLOCKS > 1 ? load_remote((uint32_t)__cvta_generic_to_shared(from), s / WARPS) : *from;
    }
#pragma unroll
    for (int s = 0; s < SLICES; s++) sum += part[s];
    const int64_t to = token * p.y.stride + n;
    if (p.add) sum += load_as(p.ytype, p.y.p, to);
    store_as(p.ytype, p.y.p, to, sum);
  }
  if (BLOCKS > 1) cluster_barrier();  // nobody leaves while others read its sums
}

extern "C" __global__ void __launch_bounds__(512, 2) skinny_8(PARAMS(Linear, p)) { skinny<1, 1, 16, 3, true>(p); }
extern "C" __global__ void __launch_bounds__(512, 2) skinny_16(PARAMS(Linear, p)) { skinny<2, 1, 16, 2, true>(p); }
extern "C" __global__ void __launch_bounds__(512, 2) skinny_8_normed(PARAMS(Linear, p)) { skinny<1, 1, 16, 3, true, true>(p); }
extern "C" __global__ void __launch_bounds__(512, 2) skinny_16_normed(PARAMS(Linear, p)) { skinny<2, 1, 16, 2, true, true>(p); }
extern "C" __global__ void __launch_bounds__(256, 2) skinny_32(PARAMS(Linear, p)) { skinny<4, 2, 8, 2, false>(p); }
extern "C" __global__ void __launch_bounds__(128, 2) skinny_64(PARAMS(Linear, p)) { skinny<8, 4, 4, 1, false>(p); }

// Any types, any number of tokens: float32 mode and weights that no other kernel takes. Every sum runs over K in order.
constexpr int PLAIN_M = 32, PLAIN_N = 64, PLAIN_K = 32;
extern "C" __global__ void __launch_bounds__(256) plain(PARAMS(Linear, p)) {
  __shared__ float x[PLAIN_M][PLAIN_K + 1], w[PLAIN_N][PLAIN_K + 1];
  pdl_begin();
  const int m0 = blockIdx.y * PLAIN_M, n0 = blockIdx.x * PLAIN_N, tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  float c[2][4] = {};
  for (int k0 = 0; k0 < p.k; k0 += PLAIN_K) {
    for (int i = threadIdx.x; i < PLAIN_M * PLAIN_K; i += 256) {
      int m = m0 + i / PLAIN_K, k = k0 + i % PLAIN_K;
      x[i / PLAIN_K][i % PLAIN_K] = m < p.m && k < p.k ? load_as(p.xtype, p.x.p, m * p.x.stride + k) : 0.f;
    }
    for (int i = threadIdx.x; i < PLAIN_N * PLAIN_K; i += 256) {
      int n = n0 + i / PLAIN_K, k = k0 + i % PLAIN_K;
      w[i / PLAIN_K][i % PLAIN_K] = n < p.n && k < p.k ? load_as(p.wtype, p.w + n * p.bytes, k) : 0.f;
    }
    __syncthreads();
#pragma unroll 8
    for (int k = 0; k < PLAIN_K; k++)
#pragma unroll
      for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) c[i][j] = fmaf(x[ty + 16 * i][k], w[tx + 16 * j][k], c[i][j]);
    __syncthreads();
  }
  for (int i = 0; i < 2; i++)
    for (int j = 0; j < 4; j++) {
      int m = m0 + ty + 16 * i, n = n0 + tx + 16 * j;
      if (m >= p.m || n >= p.n) continue;
      int64_t to = m * p.y.stride + n;
      float sum = c[i][j];
      if (p.add) sum += load_as(p.ytype, p.y.p, to);
      store_as(p.ytype, p.y.p, to, sum);
    }
}
