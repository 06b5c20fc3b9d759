// Rows that flush into checkpoints below float32. A tile of the copy that carries the recurrence is widened to float32 in
// registers, read, folded there and rounded from there into every copy: lane (g, c) owns columns 16i+4c .. 16i+4c+3 of rows
// g and g + 8 throughout (replay.cuh), so nothing but the largest values of scaled blocks passes between lanes. What scales
// are chosen by is folded once more: a tile is never kept, for only memory would have room for it.
#pragma once
#include <type_traits>

#include "flush_rows.cuh"

// A copy of format F: a tile as it is stored.
template <int F>
struct Stored {
  static constexpr int BITS = F == STATE_F32 ? 32 : F == STATE_F8 ? 8 : F == STATE_NVFP4 ? 4 : 16;
  static constexpr int ROW = KEYS * BITS / 8, TILE = TILE_ROWS * ROW;
  static constexpr int SCALES = F == STATE_F8 ? 4 : F == STATE_NVFP4 ? 8 : 0;  // bytes a value row
  static constexpr bool TF32 = F != STATE_F32;                                 // tf32 holds every value, in its row's unit
};

// Calls f with the format as a constant: FORMAT, or, with TWO, of what may carry the recurrence beside reads of it.
template <int FORMAT, bool TWO, typename Call>
__device__ __forceinline__ void with_format(int format, Call f) {
  if (!TWO || format == FORMAT) return f(std::integral_constant<int, FORMAT>());
  if constexpr (TWO)
    if (format == STATE_F32) return f(std::integral_constant<int, STATE_F32>());
  if constexpr (TWO && FORMAT >= STATE_F8) {
    if (format == STATE_F16) return f(std::integral_constant<int, STATE_F16>());
    if (format == STATE_BF16) return f(std::integral_constant<int, STATE_BF16>());
  }
  if constexpr (TWO && FORMAT == STATE_NVFP4)
    if (format == STATE_F8) return f(std::integral_constant<int, STATE_F8>());
}

// ---------------------------------------------------------------- widening and folding

// A tile in shared memory with the scales of its rows; whole: the head's scale of nvfp4. What a row gives is in a unit of its
// own: without the float32 scale of its block or head.
template <int F>
struct RawTile {
  uint8_t* raw;
  const uint8_t* scales;
  float whole;

  __device__ __forceinline__ uint8_t* place(int lane, int r, int i) const {
    return raw + ((lane >> 2) + 8 * r) * Stored<F>::ROW + (16 * i + 4 * (lane & 3)) * Stored<F>::BITS / 8;
  }
  // The unit of row g + 8r.
  __device__ __forceinline__ float unit(int lane, int r) const {
    if constexpr (F == STATE_F8) return reinterpret_cast<const float*>(scales)[(lane >> 2) + 8 * r];
    return F == STATE_NVFP4 ? whole * NVFP4_UNIT : 1.f;
  }
  // This lane's columns of chunk i of row g + 8r.
  __device__ __forceinline__ float4 load(int lane, int r, int i) const {
    const uint8_t* p = place(lane, r, i);
    if constexpr (F == STATE_F32) {
      return *reinterpret_cast<const float4*>(p);
    } else if constexpr (F == STATE_BF16) {
      const uint2 v = *reinterpret_cast<const uint2*>(p);
      return make_float4(bf_lo(v.x), bf_hi(v.x), bf_lo(v.y), bf_hi(v.y));
    } else {
      uint2 v;
      if constexpr (F == STATE_F16) {
        v = *reinterpret_cast<const uint2*>(p);
      } else if constexpr (F == STATE_F8) {
        v = widen_f8x4(*reinterpret_cast<const uint32_t*>(p));
      } else {  // with the block's scale a float16 too
        const uint32_t codes = *reinterpret_cast<const uint16_t*>(p), scale = widen_f8x4(scales[((lane >> 2) + 8 * r) * Stored<F>::SCALES + i]).x;
        v = widen_f8x4(__byte_perm(even_e2m1(codes), odd_e2m1(codes), 0x5140));
        v.x = multiply_f16x2(v.x, __byte_perm(scale, 0, 0x1010)), v.y = multiply_f16x2(v.y, __byte_perm(scale, 0, 0x1010));
      }
      const float2 x = unpack_f16(v.x), y = unpack_f16(v.y);
      return make_float4(x.x, x.y, y.x, y.y);
    }
  }
};

// acc += S q over one chunk; b: this lane's four elements of a bfloat16 query. exact: tf32 holds S.
template <bool EXACT>
__device__ __forceinline__ void read_chunk(float (&acc)[4], const float4& s0, const float4& s1, uint2 b) {
  const float4 h0 = make_float4(tf32_hi(s0.x), tf32_hi(s0.y), tf32_hi(s0.z), tf32_hi(s0.w));
  const float4 h1 = make_float4(tf32_hi(s1.x), tf32_hi(s1.y), tf32_hi(s1.z), tf32_hi(s1.w));
  const uint32_t b0 = b.x << 16, b1 = b.x & 0xffff0000u, b2 = b.y << 16, b3 = b.y & 0xffff0000u;
  mma_tf32(acc, bits(h0.x), bits(h1.x), bits(h0.y), bits(h1.y), b0, b1);
  mma_tf32(acc, bits(h0.z), bits(h1.z), bits(h0.w), bits(h1.w), b2, b3);
  if constexpr (!EXACT) {
    mma_tf32(acc, bits(s0.x - h0.x), bits(s1.x - h1.x), bits(s0.y - h0.y), bits(s1.y - h1.y), b0, b1);
    mma_tf32(acc, bits(s0.z - h0.z), bits(s1.z - h1.z), bits(s0.w - h0.w), bits(s1.w - h1.w), b2, b3);
  }
}

// What is folded into a tile: gamma S + sum_j wv_j k_j^T (fold_chunk of replay.cuh).
template <int M>
struct Folding {
  float gamma;
  uint32_t wv[M][3][4];
  const uint32_t (&key_lane)[M];
};
// A tile with what is folded into it.
template <int F, int M>
struct Folded {
  const RawTile<F>& tile;
  const Folding<M>& folding;
  int lane;
  float gamma[2];  // of rows g and g + 8, for their units
  __device__ __forceinline__ Folded(const RawTile<F>& tile, const Folding<M>& folding, int lane)
      : tile(tile), folding(folding), lane(lane), gamma{folding.gamma * tile.unit(lane, 0), folding.gamma * tile.unit(lane, 1)} {}
  // Chunk i of rows g and g + 8, which are s0 and s1.
  __device__ __forceinline__ void chunk(float4& r0, float4& r1, const float4& s0, const float4& s1, int i) const {
    fold_chunk(r0, r1, s0, s1, gamma[0], gamma[1], folding.wv, folding.key_lane, i);
  }
};

// ---------------------------------------------------------------- rounding

__device__ __forceinline__ uint32_t largest_of(const float4& x) { return max(max(magnitude(x.x), magnitude(x.y)), max(magnitude(x.z), magnitude(x.w))); }
// The largest magnitudes of this lane's columns of a folded tile, rows g and g + 8.
template <int F, int M>
__device__ __forceinline__ void measure(uint32_t (&largest)[2], const Folded<F, M>& folded) {
  largest[0] = largest[1] = 0;
#pragma unroll 2
  for (int i = 0; i < 8; i++) {
    float4 x0, x1;
    folded.chunk(x0, x1, folded.tile.load(folded.lane, 0, i), folded.tile.load(folded.lane, 1, i), i);
    largest[0] = max(largest[0], largest_of(x0)), largest[1] = max(largest[1], largest_of(x1));
  }
}

// The random numbers of this lane's columns of chunk i, rows `line` + g and + 8, two words each. Two neighbours share a
// block of eight elements: one draws for the first row, the other for the second.
__device__ __forceinline__ void draw(uint2 (&random)[2], const Noise& noise, int64_t line, int i, int lane) {
  const bool odd = lane & 1;
  const uint4 w = eight(noise, (uint32_t)((line + (lane >> 2) + (odd ? 8 : 0)) * (KEYS / 8) + 2 * i + (lane >> 1 & 1)));
  const uint2 own = odd ? make_uint2(w.z, w.w) : make_uint2(w.x, w.y), other = odd ? make_uint2(w.x, w.y) : make_uint2(w.z, w.w);
  const uint2 got = make_uint2(__shfl_xor_sync(~0u, other.x, 1), __shfl_xor_sync(~0u, other.y, 1));
  random[0] = odd ? got : own, random[1] = odd ? own : got;
}

// Two numbers as float16, what lies behind cut off.
__device__ __forceinline__ uint32_t cut_f16(float x0, float x1) {
  uint32_t y;
  asm("cvt.rz.f16x2.f32 %0, %2, %1;" : "=r"(y) : "f"(x0), "f"(x1));
  return y;
}
// Codes of four neighbours, x times inverse (0: zeros), in 4 BITS bits.
template <int F, bool STOCHASTIC>
__device__ __forceinline__ uint2 codes_of(const float4& four, float inverse, uint2 random) {
  constexpr bool SCALED = F >= STATE_F8;
  const float x[4] = {SCALED ? four.x * inverse : four.x, SCALED ? four.y * inverse : four.y, SCALED ? four.z * inverse : four.z, SCALED ? four.w * inverse : four.w};
  const bool none = SCALED && inverse == 0.f;
  if constexpr (STOCHASTIC && (F == STATE_F16 || F == STATE_F8)) {
    // Where no code of the warp is subnormal or saturates.
    constexpr uint32_t FROM = F == STATE_F16 ? 0x38800000u : 0x3c800000u, TO = F == STATE_F16 ? 0x477fe000u : 0x43e00000u;
    uint32_t least = ~0u, most = 0;
#pragma unroll
    for (int e = 0; e < 4; e++) {  // float16: 0 stays 0
      const uint32_t m = magnitude(x[e]);
      least = min(least, F == STATE_F16 ? m - 1 : m), most = max(most, m);
    }
    if (__all_sync(~0u, (least >= FROM - (F == STATE_F16) && most < TO) || none)) {
      uint32_t u[4];
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const uint32_t word = e < 2 ? random.x : random.y, number = e & 1 ? word >> 16 : word & 0xffffu, b = __float_as_uint(x[e]);
        u[e] = F == STATE_F16 ? b + (number >> 3) : (b >> 24 & 0x80u) | ((b & 0x7fffffffu) - 0x3c000000u + (number << 4 | 8u)) >> 20;
      }
      if constexpr (F == STATE_F16) return make_uint2(cut_f16(__uint_as_float(u[0]), __uint_as_float(u[1])), cut_f16(__uint_as_float(u[2]), __uint_as_float(u[3])));
      return make_uint2(none ? 0u : u[0] | u[1] << 8 | u[2] << 16 | u[3] << 24, 0u);
    }
  }
  uint32_t c[4];
#pragma unroll
  for (int e = 0; e < 4; e++) {
    const uint32_t word = e < 2 ? random.x : random.y, number = e & 1 ? word >> 16 : word & 0xffffu;
    c[e] = code_of(F, STOCHASTIC, x[e], number);
  }
  if constexpr (F == STATE_F8) return make_uint2(none ? 0u : c[0] | c[1] << 8 | c[2] << 16 | c[3] << 24, 0u);
  if constexpr (F == STATE_NVFP4) return make_uint2(none ? 0u : c[0] | c[1] << 4 | c[2] << 8 | c[3] << 12, 0u);
  return make_uint2(c[0] | c[1] << 16, c[2] | c[3] << 16);
}

// What elements of two neighbouring chunks, from i on, are multiplied by: [chunk][row].
using Inverses = float[2][2];
// Of fp8: a block is a row; largest: of this lane's columns. The scales are stored.
__device__ __forceinline__ void row_scales(Inverses& inverse, const uint32_t (&largest)[2], const StateArray& a, uint64_t block, int64_t line, int lane) {
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const Scale scale = scale_of(largest_of_lanes(largest[r], 4), 448.f);
    inverse[0][r] = inverse[1][r] = scale.inverse;
    if ((lane & 3) == 0) at<float>(block + a.scales)[line + (lane >> 2) + 8 * r] = scale.scale;
  }
}
// Of nvfp4: a block is a chunk of a row. The scales are stored.
__device__ __forceinline__ void block_scales(Inverses& inverse, const float4 (&x)[2][2], const StateArray& a, uint64_t block, int64_t line, int i, const Scale& whole,
                                             bool stochastic, int lane) {
  const bool high = lane & 2, odd = lane & 1;  // the lane's block: chunk `high`, row `odd`
  uint32_t m[2];
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const uint32_t m0 = largest_of(x[0][r]), m1 = largest_of(x[1][r]), got = __shfl_xor_sync(~0u, high ? m0 : m1, 2);
    m[r] = max(high ? m1 : m0, got);
  }
  const uint32_t got = __shfl_xor_sync(~0u, odd ? m[0] : m[1], 1);
  float own;
  const uint32_t code = block_scale(whole, max(odd ? m[1] : m[0], got), stochastic, own);
  at<uint8_t>(block + a.scales)[(line + (lane >> 2) + 8 * odd) * 8 + i + high] = code;
#pragma unroll
  for (int k = 0; k < 2; k++)
#pragma unroll
    for (int r = 0; r < 2; r++) inverse[k][r] = __shfl_sync(~0u, own, (lane & ~3) | (2 * k + r));
}

// Two chunks, from i on, into the copy that carries the recurrence: into the place of what was read, to be stored from there.
template <int F>
__device__ __forceinline__ void round_in_place(const float4 (&x)[2][2], const RawTile<F>& tile, int64_t line, int i, const Inverses& inverse, const Noise& noise, int lane) {
#pragma unroll
  for (int k = 0; k < 2; k++) {
    uint2 random[2] = {};
    if (F != STATE_F32 && noise.stochastic) draw(random, noise, line, i + k, lane);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      uint8_t* const p = tile.place(lane, r, i + k);
      if constexpr (F == STATE_F32) {
        *reinterpret_cast<float4*>(p) = x[k][r];
        continue;
      }
      const uint2 codes = noise.stochastic ? codes_of<F, true>(x[k][r], inverse[k][r], random[r]) : codes_of<F, false>(x[k][r], inverse[k][r], random[r]);
      if constexpr (F == STATE_F8)
        *reinterpret_cast<uint32_t*>(p) = codes.x;
      else if constexpr (F == STATE_NVFP4)
        *reinterpret_cast<uint16_t*>(p) = codes.x;
      else
        *reinterpret_cast<uint2*>(p) = codes;
    }
  }
}

// Two chunks, from i on, rounded to nearest, into the copy that is read. Of formats below 16 bits a pair of lanes has
// neighbours: one stores the first chunk's, the other the second's.
template <int F>
__device__ __forceinline__ void round_copy(const float4 (&x)[2][2], const StateArray& a, uint64_t block, int64_t line, int i, const Inverses& inverse, int lane) {
  const int c = lane & 3;
  const bool odd = lane & 1;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const uint64_t row = block + a.values + (line + (lane >> 2) + 8 * r) * Stored<F>::ROW;
    const uint2 first = codes_of<F, false>(x[0][r], inverse[0][r], make_uint2(0, 0)), second = codes_of<F, false>(x[1][r], inverse[1][r], make_uint2(0, 0));
    if constexpr (F == STATE_F16 || F == STATE_BF16) {
      at<uint2>(row)[4 * i + c] = first, at<uint2>(row)[4 * i + 4 + c] = second;
    } else {
      const uint32_t own = odd ? second.x : first.x, got = __shfl_xor_sync(~0u, odd ? first.x : second.x, 1), low = odd ? got : own, high = odd ? own : got;
      if constexpr (F == STATE_F8)
        at<uint2>(row)[2 * (i + odd) + (c >> 1)] = make_uint2(low, high);
      else
        at<uint32_t>(row)[2 * (i + odd) + (c >> 1)] = low | high << 16;
    }
  }
}

// ---------------------------------------------------------------- a warp's tiles of a row that flushes

// What every way of flushing shares. C: the kernel's Config; a warp has TILES of one head, one behind the other.
template <class C>
struct Flush {
  const Replay& state;
  uint64_t src, dst;  // blocks
  Noise noise;
  int head;
  int64_t line;           // the first tile's first value row, over all heads
  uint8_t* ring;          // ring_bytes of this warp
  uint64_t* bars;
  const uint8_t* scales;  // of the first tile's rows
  float whole;            // the scale of the stored nvfp4 head

  template <int F>
  static constexpr int DEPTH = F == C::FORMAT || C::STAGES * Stored<F>::TILE <= TILE_BYTES ? C::STAGES : TILE_BYTES / Stored<F>::TILE;  // tiles in flight
  // An nvfp4 head needs its largest value before anything is rounded: all tiles are folded twice.
  static constexpr bool MEASURES = C::FORMAT == STATE_NVFP4;
  static constexpr int ALL = MEASURES ? 2 * C::TILES : C::TILES;
  // Whether all tiles lie in the ring, so that none is asked for twice.
  template <int F>
  static constexpr bool KEPT = C::TILES <= DEPTH<F>;
  template <int F>
  static constexpr int LOADS = KEPT<F> ? C::TILES : ALL;
  // Lane 0: the i-th tile asked for.
  template <int F>
  __device__ void request(int i) const {
    constexpr int D = DEPTH<F>;
    mbar_expect(bars + i % D, Stored<F>::TILE);
    bulk_load(ring + i % D * Stored<F>::TILE, at<uint8_t>(src + state.hp.values) + (line + i % C::TILES * TILE_ROWS) * Stored<F>::ROW, Stored<F>::TILE, bars + i % D);
  }
  template <int F>
  __device__ void start() const {
    for (int i = 0; i < DEPTH<F> && i < LOADS<F>; i++) request<F>(i);
  }
  // The i-th tile.
  template <int F>
  __device__ RawTile<F> wait(int i) const {
    constexpr int D = DEPTH<F>;
    if constexpr (KEPT<F>) i %= C::TILES;
    mbar_wait(bars + i % D, i / D & 1);
    return {ring + i % D * Stored<F>::TILE, scales + i % C::TILES * TILE_ROWS * Stored<F>::SCALES, whole};
  }

  // Does all tiles. prepare(tile, i): makes folding's wv for tile i; query(n, k): this lane's four elements of chunk k of
  // query n; done(i, acc): the rest of tile i, whose products with the queries are acc, while it is stored. shared: WORDS words
  // for every warp.
  template <int F, int NT, int M, typename Prepare, typename Query, typename Done>
  __device__ __forceinline__ void run(uint32_t* shared, int warp, int lane, const Folding<M>& folding, Prepare prepare, Query query, Done done) const {
    Scale scale = {0.f, 0.f};
    uint32_t largest = 0;
#pragma unroll 1
    for (int it = 0; it < ALL; it++) {
      const int i = it % C::TILES;
      const RawTile<F> tile = wait<F>(it);
      prepare(tile, i);
      if (MEASURES && it < C::TILES) {
        uint32_t m[2];
        measure(m, Folded<F, M>(tile, folding, lane));
        largest = max(largest, max(m[0], m[1]));
        if (i == C::TILES - 1) scale = head_scale(largest_of_lanes(largest, 32), shared, warp, lane);
        __syncwarp();
        if (lane == 0 && it + DEPTH<F> < LOADS<F>) request<F>(it + DEPTH<F>);
        continue;
      }
      float acc[NT][4];
      const int64_t at_line = line + i * TILE_ROWS;
      pass<F>(acc, tile, folding, at_line, scale, lane, query);
      async_proxy_fence();
      __syncwarp();
      if (lane == 0) bulk_store(at<uint8_t>(dst + state.hp.values) + at_line * Stored<F>::ROW, tile.raw, Stored<F>::TILE);
      done(i, acc);
      if (lane == 0 && it + DEPTH<F> < LOADS<F>) bulk_store_wait_read(), request<F>(it + DEPTH<F>);
    }
    if (lane == 0) bulk_store_wait();
  }

 private:
  // acc[n] = S Q[n], and the folded tile into every copy.
  template <int F, int NT, int M, typename Query>
  __device__ __forceinline__ void pass(float (&acc)[NT][4], const RawTile<F>& tile, const Folding<M>& folding, int64_t at_line, const Scale& scale, int lane, Query query) const {
    constexpr bool TWO = F != C::FORMAT;
    const Folded<F, M> folded(tile, folding, lane);
    const float unit[2] = {tile.unit(lane, 0), tile.unit(lane, 1)};
    float part[2][NT][4];
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
      for (int e = 0; e < 4; e++) part[0][n][e] = part[1][n][e] = 0.f;
    Inverses rows, blocks;
    if constexpr (F == STATE_F8 || C::FORMAT == STATE_F8) {
      uint32_t m[2];
      measure(m, folded);
      row_scales(rows, m, F == STATE_F8 ? state.hp : state.lp, dst, at_line, lane);
    }
#pragma unroll 1
    for (int i = 0; i < 8; i += 2) {
      float4 x[2][2];
#pragma unroll
      for (int k = 0; k < 2; k++) {
        const float4 s0 = tile.load(lane, 0, i + k), s1 = tile.load(lane, 1, i + k);
#pragma unroll
        for (int n = 0; n < NT; n++) read_chunk<Stored<F>::TF32>(part[k][n], s0, s1, query(n, i + k));
        folded.chunk(x[k][0], x[k][1], s0, s1, i + k);
      }
      if constexpr (F == STATE_NVFP4)
        block_scales(blocks, x, state.hp, dst, at_line, i, scale, noise.stochastic, lane);
      else if constexpr (C::FORMAT == STATE_NVFP4)
        block_scales(blocks, x, state.lp, dst, at_line, i, scale, false, lane);
      round_in_place<F>(x, tile, at_line, i, F == STATE_F8 ? rows : blocks, noise, lane);
      if constexpr (TWO) round_copy<C::FORMAT>(x, state.lp, dst, at_line, i, C::FORMAT == STATE_F8 ? rows : blocks, lane);
    }
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
      for (int e = 0; e < 4; e++) acc[n][e] = (part[0][n][e] + part[1][n][e]) * unit[e >> 1];
  }
  // The head's scale from the largest values of its warps, stored.
  __device__ Scale head_scale(uint32_t largest, uint32_t* shared, int warp, int lane) const {
    if constexpr (C::WPH > 1) {
      if (lane == 0) shared[warp * C::WORDS] = largest;
      __syncthreads();
      for (int w = 0; w < C::WPH; w++) largest = max(largest, shared[(warp / C::WPH * C::WPH + w) * C::WORDS]);
      __syncthreads();
    }
    const Scale scale = scale_of(largest, 6.f * 448.f);
    const StateArray& a = state.hp.format == STATE_NVFP4 ? state.hp : state.lp;
    if (lane == 0 && warp % C::WPH == 0) at<float>(dst + a.head_scales)[head] = scale.scale;
    return scale;
  }
};
