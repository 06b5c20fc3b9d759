// What the chunked scans share: the tokens that a launch takes, tiles of them, the convolution over packed rows into tiles,
// and running sums of log decays.
//
// A launch takes the tokens row0..row1 of the batch, so that scratch memory bounds it; a row that goes on from the launch
// in front starts from block dst. Cuts divide a row into pieces, one more than a row can have cuts; those behind the last
// cut that there is are empty. A tile is CHUNK tokens of one piece, or the rest of it. Tile i of a piece is number
// first_tile + i, which no other piece's tile has: pieces lie packed, and every piece begins a number of its own.
#pragma once
#include "convolve.cuh"
#include "cuts.cuh"

constexpr int CHUNK = 64, CONV_TOKENS = 32, PIECE = CHUNK * 16;  // PIECE: bytes of eight channels of a tile
constexpr float LOG2E = 1.44269504f;

// silu as quick_silu has it, in five instructions: without those that results below 2^-126 want.
__device__ __forceinline__ float scan_silu(float x) {
  float e, r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(x * -LOG2E));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(1.f + e));
  return x * r;
}

// Bytes of a row of n 16-bit numbers in shared memory: an odd number of 16-byte pieces, so that eight rows of a matrix
// never share a bank.
__host__ __device__ constexpr int pitch(int n) { return n * 2 / 16 % 2 ? n * 2 : n * 2 + 16; }

// A row's tokens from..to, which this launch takes; token i is token first + i of the batch.
struct Share {
  Sequence s;
  int from, to;
};

__device__ __forceinline__ Share share_of(const Rows& rows, const Cursors& cursors, int row, int row0, int row1) {
  Share k;
  k.s = sequence(rows, cursors, row);
  k.from = max(row0 - k.s.first, 0), k.to = min(k.s.n, row1 - k.s.first);
  return k;
}

// The first tile of a piece of a row that begins at token begin of the row. CUTS: whether rows of the launch are cut.
template <bool CUTS>
__device__ __forceinline__ int first_tile(const Rows& rows, const Cuts& cuts, int row, int row0, int piece = 0, int begin = 0) {
  return max(at<int>(rows.start)[row] + begin - row0, 0) / CHUNK + (CUTS ? row * (1 + cuts.per_row) + piece : row);
}

// The row of a tile, if it exists.
template <bool CUTS>
__device__ __forceinline__ int row_of_tile(const Rows& rows, const Cuts& cuts, int row0, int tile) {
  int low = 0, high = rows.count;
  while (high - low > 1) {
    int middle = (low + high) / 2;
    if (first_tile<CUTS>(rows, cuts, middle, row0) <= tile)
      low = middle;
    else
      high = middle;
  }
  return low;
}

// The tokens of a tile: none if from >= to.
template <bool CUTS>
__device__ __forceinline__ Share tile_share(const Rows& rows, const Cursors& cursors, const Cuts& cuts, int tile, int row0, int row1) {
  int row = row_of_tile<CUTS>(rows, cuts, row0, tile);
  Share k = share_of(rows, cursors, row, row0, row1);
  int first = first_tile<CUTS>(rows, cuts, row, row0);
  for (int i = 0; CUTS && i < cuts.per_row; i++) {
    const int cut = cuts.tokens(row, i, k.s.n), next = first_tile<CUTS>(rows, cuts, row, row0, i + 1, cut);
    if (next > tile) {
      k.to = min(k.to, cut);
      break;
    }
    first = next, k.from = max(k.from, cut);
  }
  k.from += (tile - first) * CHUNK;
  k.to = min(k.to, k.from + CHUNK);
  return k;
}

// The chunks of a row's share in order: a loop over the tokens from where they begin, and up to AHEAD chunks ahead of it.
template <bool CUTS, int AHEAD>
struct Chunks {
  const Share& k;
  int first;  // tile
  __device__ __forceinline__ Chunks(const Rows& rows, const Cuts& cuts, const Share& k, int row, int row0) : k(k), first(first_tile<false>(rows, cuts, row, row0)) {}
  __device__ __forceinline__ void step(int& from) { from += CHUNK; }
  // The end of this chunk, or one behind it.
  __device__ __forceinline__ int end() const { return k.to; }
  // Whether there is a chunk so many behind this one, and its tile, counted from the first.
  __device__ __forceinline__ bool more(int from, int ahead) const { return from + ahead * CHUNK < k.to; }
  __device__ __forceinline__ int tile(int chunk, int ahead) const { return chunk + ahead; }
  // The block for the state behind this chunk, or -1.
  __device__ __forceinline__ int block() const { return -1; }
};

// The same of rows with cuts, where chunks end.
template <int AHEAD>
struct Chunks<true, AHEAD> {
  struct Span {
    int from, to, tile, piece, stop;  // the piece ends at token stop
  };
  const Rows& rows;
  const Cuts& cuts;
  const Share& k;
  int row, row0, first;
  Span spans[AHEAD + 1];  // this one and those behind
  __device__ __forceinline__ Chunks(const Rows& rows, const Cuts& cuts, const Share& k, int row, int row0) : rows(rows), cuts(cuts), k(k), row(row), row0(row0), first(0) {
    Span& now = spans[0];
    now.from = k.from, now.piece = 0;
    while (cuts.tokens(row, now.piece, k.s.n) <= k.from) now.piece++;
    begin(now);
    first = now.tile, now.tile = 0;
#pragma unroll
    for (int i = 0; i < AHEAD; i++) spans[i + 1] = behind(spans[i]);
  }
  __device__ __forceinline__ void step(int& from) {
#pragma unroll
    for (int i = 0; i < AHEAD; i++) spans[i] = spans[i + 1];
    spans[AHEAD] = behind(spans[AHEAD]);
    from = spans[0].from;
  }
  __device__ __forceinline__ int end() const { return spans[0].to; }
  __device__ __forceinline__ bool more(int, int ahead) const { return spans[ahead].from < k.to; }
  __device__ __forceinline__ int tile(int, int ahead) const { return spans[ahead].tile; }
  __device__ __forceinline__ int block() const { return cuts.place(row, spans[0].piece) == spans[0].to ? cuts.block(row, spans[0].piece) : -1; }

 private:
  // The chunk with which a piece begins in the share.
  __device__ __forceinline__ void begin(Span& c) const {
    c.stop = cuts.tokens(row, c.piece, k.s.n), c.to = min(min(c.from + CHUNK, k.to), c.stop);
    c.tile = first_tile<true>(rows, cuts, row, row0, c.piece, c.from) - first;
  }
  // The chunk behind; behind the last one it begins where the share ends.
  __device__ __forceinline__ Span behind(Span c) const {
    c.from = c.to, c.tile++;
    if (c.from == c.stop && c.from < k.to)
      c.piece++, begin(c);
    else
      c.to = min(min(c.from + CHUNK, k.to), c.stop);
    return c;
  }
};

// Eight channels of a raw row in the ring; zero before the sequence.
__device__ __forceinline__ uint4 history(const Replay& state, int slot, int token, int cols, int channel) {
  if (token < 0) return make_uint4(0, 0, 0, 0);
  return *reinterpret_cast<const uint4*>(ring_row<bf16>(state, slot, state.conv, token, state.conv_rows, cols) + channel);
}

// Eight channels of token i of a row.
__device__ __forceinline__ uint4 raw8(const Replay& state, const Share& k, const Mat& fresh, int cols, int i, int channel) {
  if (i < 0) return history(state, k.s.slot, k.s.position() + i, cols, channel);
  return *reinterpret_cast<const uint4*>(row_of<bf16>(fresh, k.s.first + i) + channel);
}

__device__ __forceinline__ void widen8(uint4 v, float (&x)[8]) {
  const uint32_t w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int e = 0; e < 4; e++) x[2 * e] = bf_lo(w[e]), x[2 * e + 1] = bf_hi(w[e]);
}

// What the lane beside this one has.
__device__ __forceinline__ uint4 other_lane(uint4 v) {
  return make_uint4(__shfl_xor_sync(~0u, v.x, 1), __shfl_xor_sync(~0u, v.y, 1), __shfl_xor_sync(~0u, v.z, 1), __shfl_xor_sync(~0u, v.w, 1));
}

// The convolution of CONV_TOKENS tokens of a tile, half of it, four tokens at a time while the next four are on their way.
// pack(channel, values) makes eight numbers of a token; all threads of a warp call it together. place(tile, channel) is
// where the eight channels from that one on lie; behind the tile's end they get zeros. Lanes exchange what they have, so
// that two of them write 32 bytes.
template <bool CUTS, class Pack, class Place>
__device__ __forceinline__ void convolve_tile(const Rows& rows, const Cursors& cursors, const Cuts& cuts, const Replay& state, const Mat& fresh, int cols, uint64_t w,
                                              uint64_t bias, int row0, int row1, Pack pack, Place place) {
  int channel = (blockIdx.x * CONV_THREADS + threadIdx.x) * 8;
  const bool mine = channel < cols;
  channel = min(channel, cols - 8);
  const Piece piece = load_piece(w, bias, channel);
  pdl_begin();
  const int tile = blockIdx.y / 2, first = blockIdx.y % 2 * CONV_TOKENS, odd = threadIdx.x & 1;
  const Share k = tile_share<CUTS>(rows, cursors, cuts, tile, row0, row1);
  const int n = k.to - k.from;
  if (n <= 0) return;
  uint8_t *const even_piece = place(tile, channel - 8 * odd) + odd * 16, *const odd_piece = place(tile, channel - 8 * odd + 8) + odd * 16;
  float held[4][8];  // token i in held[i % 4]
  uint4 next[4];
  const bf16* ahead = row_of<bf16>(fresh, k.s.first + k.from + first) + channel;
  auto load = [&](int i) {
#pragma unroll
    for (int e = 0; e < 4; e++)
      if (i + e < n) next[e] = *reinterpret_cast<const uint4*>(ahead + e * fresh.stride);
    ahead += 4 * fresh.stride;
  };
  load(first);
#pragma unroll
  for (int e = 1; e < 4; e++) widen8(raw8(state, k, fresh, cols, k.from + min(first - 4 + e, n - 1), channel), held[e]);
  for (int i = first; i < first + CONV_TOKENS; i += 4) {
    uint4 v[4] = {};
    if (i < n) {
      uint4 now[4];
#pragma unroll
      for (int e = 0; e < 4; e++) now[e] = next[e];
      if (i + 4 < first + CONV_TOKENS) load(i + 4);
#pragma unroll
      for (int e = 0; e < 4; e++) {
        widen8(now[e], held[e]);
        float y[8];
#pragma unroll
        for (int j = 0; j < 8; j++) {
          y[j] = piece.bias[j];
#pragma unroll
          for (int tap = 0; tap < 4; tap++) y[j] = fmaf(piece.w[j][tap], held[(e + 1 + tap) % 4][j], y[j]);
          y[j] = scan_silu(y[j]);
        }
        v[e] = pack(channel, y);
        if (i + e >= n) v[e] = make_uint4(0, 0, 0, 0);
      }
    }
#pragma unroll
    for (int e = 0; e < 4; e += 2) {
      const uint4 give = odd ? v[e] : v[e + 1], got = other_lane(give);
      if (!mine) continue;
      *reinterpret_cast<uint4*>(even_piece + (i + e) * 16) = odd ? got : v[e];
      *reinterpret_cast<uint4*>(odd_piece + (i + e) * 16) = odd ? v[e + 1] : got;
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
