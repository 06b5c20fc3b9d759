// Parameters of the Gated DeltaNet kernels; deltaParams of ssm_delta.go.
#pragma once
#include "ssm.cuh"

struct Delta {
  Rows rows;
  Cursors cursors;
  Replay state;
  Mat qkv, z, b, a, out;
  uint64_t conv_w, decay_a, dt_bias, norm_w;
  uint64_t query, value, beta;  // scratch of the step's tokens: q [keys], v fp32 [values], beta fp32 [value_heads]
  int key_heads, value_heads, key_dim, value_dim, taps, mode;
  float eps;
  int row0, row1;  // of a launch that does not take all rows
  int per_block;   // rows a block of the convolution takes
  int calm;        // the kernel in front leaves cursors, rings and blocks alone, and started this one behind its own wait
  __device__ int keys() const { return key_heads * key_dim; }
  __device__ int values() const { return value_heads * value_dim; }
  __device__ int conv() const { return 2 * keys() + values(); }
};
