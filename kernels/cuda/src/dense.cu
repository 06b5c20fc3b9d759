// Embedding, norm, activation, gathers and sums.
#include "common.cuh"

struct Scatter {
  uint64_t dst, index, value;
  int count, size;  // size: elements of dst
};
extern "C" __global__ void __launch_bounds__(256) scatter(PARAMS(Scatter, p)) {
  pdl_begin();
  int i = blockIdx.x * 256 + threadIdx.x;
  if (i >= p.count) return;
  int to = at<int>(p.index)[i];
  if (to >= 0 && to < p.size) at<int>(p.dst)[to] = at<int>(p.value)[i];
}

struct Embed {
  uint64_t table, ids, trouble;
  int64_t bytes;  // of a row of the table
  Mat out;
  int dtype, rows, cols, copies;  // rows of the table; copies: 8 elements at a time go as they are, at addresses of 16 bytes
};
template <typename T>
__device__ void embed(const Embed& p) {
  pdl_begin();
  int id = at<int>(p.ids)[blockIdx.x];
  if (id < 0 || id >= p.rows) {
    if (threadIdx.x == 0) report(p.trouble, TROUBLE_EMBED, id);
    return;
  }
  T* out = row_of<T>(p.out, blockIdx.x);
  if (p.copies) {
    const uint4* from = at<const uint4>(p.table + id * p.bytes);
    for (int j = threadIdx.x; j < p.cols / 8; j += 256) reinterpret_cast<uint4*>(out)[j] = from[j];
    return;
  }
  for (int j = threadIdx.x; j < p.cols; j += 256) out[j] = narrow<T>(load_as(p.dtype, p.table + id * p.bytes, j));
}
extern "C" __global__ void __launch_bounds__(256) embed_bf16(PARAMS(Embed, p)) { embed<bf16>(p); }
extern "C" __global__ void __launch_bounds__(256) embed_f32(PARAMS(Embed, p)) { embed<float>(p); }

struct Norm {
  Mat x, add, y;  // add.p = 0: nothing is added
  uint64_t weight;
  float eps;
  int cols, wide, pad;  // wide: all rows and the weight are aligned to 16 bytes and cols is a multiple of 8
};
constexpr int NORM_THREADS = 512, NORM_MOST = 2;  // a thread holds up to 2 x 8 elements of a row

// A block has as many threads as a row has pieces of 8 elements, or NORM_THREADS. Of shorter rows the weight is read ahead:
// it is constant.
template <typename T, int HELD>
__device__ void norm_wide(const Norm& p, float* space) {
  auto piece = [](int r) { return (r * NORM_THREADS + (int)threadIdx.x) * 8; };
  float v[HELD][8], w[8], sum = 0;
  if (HELD == 1 && piece(0) < p.cols) load8(at<float>(p.weight) + piece(0), w);
  pdl_wait();
  const T* add = p.add.p ? row_of<T>(p.add, blockIdx.x) : nullptr;
  T *x = row_of<T>(p.x, blockIdx.x), *y = row_of<T>(p.y, blockIdx.x);
#pragma unroll
  for (int r = 0; r < HELD; r++) {
    const int j = piece(r);
    if (j >= p.cols) break;
    load8(x + j, v[r]);
    if (add) {
      float a[8];
      load8(add + j, a);
#pragma unroll
      for (int i = 0; i < 8; i++) v[r][i] = widen(narrow<T>(v[r][i] + a[i]));
      store8(x + j, v[r]);
    }
#pragma unroll
    for (int i = 0; i < 8; i++) sum = fmaf(v[r][i], v[r][i], sum);
  }
  const float scale = 1.f / sqrtf(block_sum(sum, space) / p.cols + p.eps);
#pragma unroll
  for (int r = 0; r < HELD; r++) {
    const int j = piece(r);
    if (j >= p.cols) break;
    if (HELD > 1) load8(at<float>(p.weight) + j, w);
#pragma unroll
    for (int i = 0; i < 8; i++) v[r][i] = w[i] * (v[r][i] * scale);
    store8(y + j, v[r]);
  }
}

template <typename T>
__device__ void norm(const Norm& p) {
  __shared__ float space[33];
  pdl_trigger();
  if (p.wide && p.cols <= 8 * NORM_THREADS) return norm_wide<T, 1>(p, space);
  pdl_wait();
  if (p.wide && p.cols <= 8 * NORM_MOST * NORM_THREADS) return norm_wide<T, NORM_MOST>(p, space);
  const T* add = p.add.p ? row_of<T>(p.add, blockIdx.x) : nullptr;
  T *x = row_of<T>(p.x, blockIdx.x), *y = row_of<T>(p.y, blockIdx.x);
  float sum = 0;
  for (int j = threadIdx.x; j < p.cols; j += NORM_THREADS) {
    float v = widen(x[j]);
    if (add) {
      x[j] = narrow<T>(v + widen(add[j]));
      v = widen(x[j]);
    }
    sum = fmaf(v, v, sum);
  }
  float scale = 1.f / sqrtf(block_sum(sum, space) / p.cols + p.eps);
  for (int j = threadIdx.x; j < p.cols; j += NORM_THREADS) y[j] = narrow<T>(widen(x[j]) * scale * at<float>(p.weight)[j]);
}
extern "C" __global__ void __launch_bounds__(NORM_THREADS) norm_bf16(PARAMS(Norm, p)) { norm<bf16>(p); }
extern "C" __global__ void __launch_bounds__(NORM_THREADS) norm_f32(PARAMS(Norm, p)) { norm<float>(p); }

// Activate and AddGated share a shape: block (x, y) does columns [x * 2048, +2048) of row y.
struct Activate {
  Mat x, y;
  int cols, kind, wide, rows;  // cols of y; kind as kernels.Activation
};
enum { SILU_MUL = 0, RELU2 = 1 };
constexpr int PIECE = 2048;

template <typename T>
__device__ __forceinline__ float activated(int kind, float gate, float up) {
  if (kind == SILU_MUL) return (sizeof(T) == 2 ? quick_silu(gate) : silu(gate)) * up;
  float v = fmaxf(gate, 0.f);
  return v * v;
}
template <typename T>
__device__ void activate(const Activate& p) {
  pdl_begin();
  const T* x = row_of<T>(p.x, blockIdx.y);
  T* y = row_of<T>(p.y, blockIdx.y);
  const T* up = p.kind == SILU_MUL ? x + p.cols : x;
  int from = blockIdx.x * PIECE;
  if (p.wide) {
    int j = from + threadIdx.x * 8;
    if (j >= p.cols) return;
    float a[8], b[8];
    load8(x + j, a);
    load8(up + j, b);
#pragma unroll
    for (int i = 0; i < 8; i++) a[i] = activated<T>(p.kind, a[i], b[i]);
    store8(y + j, a);
    return;
  }
  for (int j = from + threadIdx.x; j < min(from + PIECE, p.cols); j += 256) y[j] = narrow<T>(activated<T>(p.kind, widen(x[j]), widen(up[j])));
}

// The same of ACTIVATE_ROWS rows at a time, bfloat16 and wide: a thread has all of its loads in flight.
constexpr int ACTIVATE_ROWS = 4;
__device__ __forceinline__ uint4 piece(const Mat& m, int row, int column) { return *reinterpret_cast<const uint4*>(row_of<bf16>(m, row) + column); }
extern "C" __global__ void __launch_bounds__(256) activate_many(PARAMS(Activate, p)) {
  pdl_begin();
  const int j = blockIdx.x * PIECE + threadIdx.x * 8, row0 = blockIdx.y * ACTIVATE_ROWS, rows = min(ACTIVATE_ROWS, p.rows - row0);
  if (j >= p.cols) return;
  uint4 gates[ACTIVATE_ROWS], ups[ACTIVATE_ROWS];
#pragma unroll
  for (int r = 0; r < ACTIVATE_ROWS; r++)
    if (r < rows) gates[r] = piece(p.x, row0 + r, j);
  if (p.kind == SILU_MUL) {
#pragma unroll
    for (int r = 0; r < ACTIVATE_ROWS; r++)
      if (r < rows) ups[r] = piece(p.x, row0 + r, p.cols + j);
  }
#pragma unroll
  for (int r = 0; r < ACTIVATE_ROWS; r++) {
    if (r >= rows) break;
    float a[8], b[8];
    load8(reinterpret_cast<const bf16*>(&gates[r]), a), load8(reinterpret_cast<const bf16*>(&ups[r]), b);
#pragma unroll
    for (int i = 0; i < 8; i++) a[i] = activated<bf16>(p.kind, a[i], b[i]);
    store8(row_of<bf16>(p.y, row0 + r) + j, a);
  }
}
extern "C" __global__ void __launch_bounds__(256) activate_bf16(PARAMS(Activate, p)) { activate<bf16>(p); }
extern "C" __global__ void __launch_bounds__(256) activate_f32(PARAMS(Activate, p)) { activate<float>(p); }

struct AddGated {
  Mat gate, x, y;  // gate.p = 0: none
  int cols, wide, gate_f32, pad;
};
template <typename T>
__device__ float gate_of(const AddGated& p) {
  if (!p.gate.p) return 1.f;
  return sigmoid(p.gate_f32 ? *row_of<float>(p.gate, blockIdx.y) : widen(*row_of<T>(p.gate, blockIdx.y)));
}
template <typename T>
__device__ void add_gated(const AddGated& p) {
  pdl_begin();
  const T* x = row_of<T>(p.x, blockIdx.y);
  T* y = row_of<T>(p.y, blockIdx.y);
  float gate = gate_of<T>(p);
  int from = blockIdx.x * PIECE;
  if (p.wide) {
    int j = from + threadIdx.x * 8;
    if (j >= p.cols) return;
    float a[8], b[8];
    load8(x + j, a);
    load8(y + j, b);
#pragma unroll
    for (int i = 0; i < 8; i++) b[i] += gate * a[i];
    store8(y + j, b);
    return;
  }
  for (int j = from + threadIdx.x; j < min(from + PIECE, p.cols); j += 256) y[j] = narrow<T>(widen(y[j]) + gate * widen(x[j]));
}
extern "C" __global__ void __launch_bounds__(256) add_gated_bf16(PARAMS(AddGated, p)) { add_gated<bf16>(p); }
extern "C" __global__ void __launch_bounds__(256) add_gated_f32(PARAMS(AddGated, p)) { add_gated<float>(p); }

// Copies of rows by units of 16, 4 or 2 bytes; strides are in units.
struct Gather {
  Mat x, y;
  uint64_t index;
  int units, pad;
};
template <typename U>
__device__ void gather(const Gather& p) {
  pdl_begin();
  int from = at<int>(p.index)[blockIdx.x];
  U* y = row_of<U>(p.y, blockIdx.x);
  for (int j = threadIdx.x; j < p.units; j += 256) y[j] = from < 0 ? U{} : row_of<U>(p.x, from)[j];
}
extern "C" __global__ void __launch_bounds__(256) gather_16(PARAMS(Gather, p)) { gather<uint4>(p); }
extern "C" __global__ void __launch_bounds__(256) gather_4(PARAMS(Gather, p)) { gather<uint32_t>(p); }
extern "C" __global__ void __launch_bounds__(256) gather_2(PARAMS(Gather, p)) { gather<uint16_t>(p); }
