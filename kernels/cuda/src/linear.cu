// Y = X W^T (+ Y). W lies row by row, rows padded with zeros to 128 bytes.
//
// The skinny kernels stream bf16 weights past up to 64 tokens of bf16, where neither the streams of stream.cu nor a library
// will do. A product is cut along K into SLICES slices:
// slice s has the chunks of 32 columns s, s+SLICES, ... One warp does a slice of a tile of rows; the slices' sums are
// added in order. So the order of all additions depends on K alone, never on the number of tokens.
//
// The weight is the A operand of mma.m16n8k16 (16 rows of W), tokens are the B operand (8 columns), so that few tokens
// waste little. The order of K inside a chunk is free as long as both operands agree: lane (g, t) = (lane / 4, lane % 4)
// owns columns 8t .. 8t+7 of a chunk, one 16-byte load a row and a token, which are two k-steps of the mma.
#include "linear.cuh"

constexpr int SLICES = 16;
constexpr int CHUNK = 32;

// A relaxed load, not a plain one: the assembler moves plain loads behind griddepcontrol.wait.
__device__ __forceinline__ uint4 load_weight(const void* p) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}

// NT tiles of 8 tokens, RT tiles of 16 rows, WARPS warps a block; SLICES / WARPS blocks of a cluster share a tile. UNROLL
// chunks of weights are in flight a warp.
template <int NT, int RT, int WARPS, int UNROLL>
__device__ __forceinline__ void skinny(const Linear& p) {
  constexpr int BLOCKS = SLICES / WARPS, ROWS = 16 * RT, TOKENS = 8 * NT, STRIDE = ROWS + 4;
  static_assert(BLOCKS > 1, "a cluster shares K");
  extern __shared__ float partial[];  // [WARPS][TOKENS][STRIDE]
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int rank = cluster_rank(), tile = blockIdx.x / BLOCKS;
  const int chunks = (p.k + CHUNK - 1) / CHUNK, first = rank * WARPS + warp;

  // Rows beyond the last read the last one; their sums go nowhere. Offsets are in units of 16 bytes.
  uint32_t w[RT][2];
#pragma unroll
  for (int r = 0; r < RT; r++)
#pragma unroll
    for (int i = 0; i < 2; i++) w[r][i] = (uint32_t)(min(tile * ROWS + r * 16 + i * 8 + g, p.n - 1) * (p.bytes / 16)) + t;

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

  pdl_wait();
  pdl_trigger();  // only now: step kernels read state before their wait
  const bf16* x = row_of<const bf16>(p.x, g) + t * 8;
  const int end = p.k - t * 8, stride = (int)p.x.stride * 8;
  float c[RT][NT][4] = {};
  for (int from = first; from < chunks; from += SLICES * UNROLL) {
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
      const int chunk = from + u * SLICES, next = chunk + SLICES * UNROLL;
      if (chunk >= chunks) break;
      uint4 b[NT];
#pragma unroll
      for (int j = 0; j < NT; j++) b[j] = load_token(x + j * stride, j * 8 + g < p.m, chunk * CHUNK, end, p.aligned);
#pragma unroll
      for (int r = 0; r < RT; r++)
#pragma unroll
        for (int j = 0; j < NT; j++) {
          mma(c[r][j], a[u][r][0].x, a[u][r][1].x, a[u][r][0].y, a[u][r][1].y, b[j].x, b[j].y);
          mma(c[r][j], a[u][r][0].z, a[u][r][1].z, a[u][r][0].w, a[u][r][1].w, b[j].z, b[j].w);
        }
      if (next < chunks) fetch(u, next);
    }
  }

  leave_sums<NT, RT, STRIDE>(partial + warp * TOKENS * STRIDE, c, lane);
  cluster_barrier();

  constexpr int SHARE = ROWS / BLOCKS;  // rows that this block adds up
  for (int e = threadIdx.x; e < SHARE * TOKENS; e += WARPS * 32) {
    const int token = e / SHARE, row = rank * SHARE + e % SHARE, n = tile * ROWS + row;
    if (token >= p.m || n >= p.n) continue;
    float part[SLICES], sum = 0;
#pragma unroll
    for (int s = 0; s < SLICES; s++) {
      const float* from = partial + (s % WARPS * TOKENS + token) * STRIDE + row;
      part[s] = load_remote((uint32_t)__cvta_generic_to_shared(from), s / WARPS);
    }
#pragma unroll
    for (int s = 0; s < SLICES; s++) sum += part[s];
    const int64_t to = token * p.y.stride + n;
    if (p.add) sum += load_as(p.ytype, p.y.p, to);
    store_as(p.ytype, p.y.p, to, sum);
  }
  cluster_barrier();  // nobody leaves while others read its sums
}

extern "C" __global__ void __launch_bounds__(256, 2) skinny_32(PARAMS(Linear, p)) { skinny<4, 2, 8, 2>(p); }
extern "C" __global__ void __launch_bounds__(128, 2) skinny_64(PARAMS(Linear, p)) { skinny<8, 4, 4, 1>(p); }

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
