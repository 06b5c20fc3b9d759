// What the chunked scans share: the tokens that a launch takes, tiles of them, the convolution over packed rows, and
// running sums of log decays.
//
// A launch takes the tokens row0..row1 of the batch, so that scratch memory bounds it; a row that goes on from the launch
// in front starts from block dst. A tile is CHUNK (or CONV_TOKENS) tokens of one row. Tile i of a row is number
// first_tile + i, which no other row's tile has: rows lie packed, and every row begins a number of its own.
#pragma once
#include "convolve.cuh"

constexpr int CHUNK = 64, CONV_TOKENS = 32;
constexpr int KEY_ROW = KEYS * 2 + 16;  // bytes of a key in shared memory
constexpr float LOG2E = 1.44269504f;

// Bytes of a row of n 16-bit numbers in shared memory: an odd number of 16-byte pieces, so that eight rows of a matrix
// never share a bank.
__host__ __device__ constexpr int pitch(int n) { return n * 2 / 16 % 2 ? n * 2 : n * 2 + 16; }

// A row's tokens from..to, which this launch takes; token i is token first + i of the batch, at + i of the launch.
struct Share {
  Sequence s;
  int from, to, at;
};

__device__ __forceinline__ Share share_of(const Rows& rows, const Cursors& cursors, int row, int row0, int row1) {
  Share k;
  k.s = sequence(rows, cursors, row);
  k.from = max(row0 - k.s.first, 0), k.to = min(k.s.n, row1 - k.s.first), k.at = k.s.first - row0;
  return k;
}

__device__ __forceinline__ int first_tile(const Rows& rows, int row, int row0, int size) { return max(at<int>(rows.start)[row] - row0, 0) / size + row; }

// The row of a tile, if it exists.
__device__ __forceinline__ int row_of_tile(const Rows& rows, int row0, int tile, int size) {
  int low = 0, high = rows.count;
  while (high - low > 1) {
    int middle = (low + high) / 2;
    if (first_tile(rows, middle, row0, size) <= tile)
      low = middle;
    else
      high = middle;
  }
  return low;
}

// The tokens of a tile: none if from >= to.
__device__ __forceinline__ Share tile_share(const Rows& rows, const Cursors& cursors, int tile, int size, int row0, int row1) {
  int row = row_of_tile(rows, row0, tile, size);
  Share k = share_of(rows, cursors, row, row0, row1);
  k.from += (tile - first_tile(rows, row, row0, size)) * size;
  k.to = min(k.to, k.from + size);
  return k;
}


// Eight channels of token i of a row.
__device__ __forceinline__ uint4 raw8(const Replay& state, const Share& k, const Mat& fresh, int cols, int i, int channel) {
  if (i < 0) return history(state, k.s.slot, k.s.position() + i, cols, channel);
  return *reinterpret_cast<const uint4*>(row_of<bf16>(fresh, k.s.first + i) + channel);
}

// The convolution of a tile of CONV_TOKENS tokens, four loads at a time; store(token of the launch, channel, values) is
// called by all threads of a warp together, with mine false where a thread has no channels.
template <class Store>
__device__ __forceinline__ void convolve_tile(const Rows& rows, const Cursors& cursors, const Replay& state, const Mat& fresh, int cols, uint64_t w,
                                              uint64_t bias, int row0, int row1, Store store) {
  int channel = (blockIdx.x * CONV_THREADS + threadIdx.x) * 8;
  const bool mine = channel < cols;
  channel = min(channel, cols - 8);
  const Piece piece = load_piece(w, bias, channel);
  pdl_begin();
  const Share k = tile_share(rows, cursors, blockIdx.y, CONV_TOKENS, row0, row1);
  if (k.from >= k.to) return;
  uint4 window[4], next[4];
#pragma unroll
  for (int e = 0; e < 3; e++) window[e] = raw8(state, k, fresh, cols, k.from - 3 + e, channel);
  for (int i = k.from; i < k.to; i += 4) {
#pragma unroll
    for (int e = 0; e < 4; e++) next[e] = raw8(state, k, fresh, cols, min(i + e, k.to - 1), channel);
#pragma unroll
    for (int e = 0; e < 4; e++) {
      window[3] = next[e];
      float y[8];
      taps8(piece, window, y);
#pragma unroll
      for (int j = 0; j < 8; j++) y[j] = quick_silu(y[j]);
      if (i + e < k.to) store(k.at + i + e, channel, mine, y);
      window[0] = window[1], window[1] = window[2], window[2] = window[3];
    }
  }
}

// Sums over the tokens of a chunk by one warp; lane l has tokens 2l and 2l+1.
//   until   of the tokens up to and including each        after   of the tokens behind each
// Both are summed outward, so that what is near keeps its digits.
struct Sums {
  float until[2], after[2];
  __device__ Sums(float a0, float a1, int lane) {
    float up = a0 + a1, down = up;
#pragma unroll
    for (int o = 1; o < 32; o *= 2) {
      float u = __shfl_up_sync(~0u, up, o), d = __shfl_down_sync(~0u, down, o);
      if (lane >= o) up += u;
      if (lane + o < 32) down += d;
    }
    float before = __shfl_up_sync(~0u, up, 1), behind = __shfl_down_sync(~0u, down, 1);
    if (lane == 0) before = 0.f;
    if (lane == 31) behind = 0.f;
    until[0] = before + a0, until[1] = before + a0 + a1;
    after[0] = behind + a1, after[1] = behind;
  }
};

// This lane's ldmatrix address of the 16 x 16 block at (row, column) of 16-bit numbers, rows of PITCH bytes:
//   operand   plain: the A operand, rows are M. transposed: the B operand of a matrix [K, N], of columns 0-7 and 8-15
//   turned    transposed: the A operand of a matrix [K, M]. plain: the B operand of a matrix [N, K], of rows 0-7 and 8-15
template <int PITCH>
__device__ __forceinline__ uint32_t operand(const uint8_t* matrix, int row, int column, int lane) {
  return smem_addr(matrix) + (row + (lane & 15)) * PITCH + column * 2 + (lane >> 4) * 16;
}
template <int PITCH>
__device__ __forceinline__ uint32_t turned(const uint8_t* matrix, int row, int column, int lane) {
  return smem_addr(matrix) + (row + (lane & 7) + (lane >> 4) * 8) * PITCH + column * 2 + (lane >> 3 & 1) * 16;
}

// The state of a warp: keys 32 (warp % 4) + 16m + g (+ 8) by columns 8t + 2c (+ 1) of its group, as accumulators.
template <class H>
struct StateTile {
  float s[2][H::NT][4];

  // block is the head's state at the lane's first key and column.
  __device__ void load(const float* block) {
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
      for (int t = 0; t < H::NT; t++)
#pragma unroll
        for (int e = 0; e < 4; e++) s[m][t][e] = block[(8 * t + (e & 1)) * KEYS + 16 * m + (e >> 1) * 8];
  }
  __device__ void store(float* block) const {
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
      for (int t = 0; t < H::NT; t++)
#pragma unroll
        for (int e = 0; e < 4; e++) block[(8 * t + (e & 1)) * KEYS + 16 * m + (e >> 1) * 8] = s[m][t][e];
  }
};
