// Parameters of the Mamba-2 kernels; mamba2Params of ssm_mamba2.go.
#pragma once
#include "ssm.cuh"

struct Mamba2 {
  Rows rows;
  Cursors cursors;
  Replay state;
  Mat z, xbc, dt, out;
  uint64_t conv_w, conv_b, a, d, dt_bias, norm_w;
  uint64_t query;  // scratch: C of the step's tokens, [rows * t, groups * keys]
  int heads, dim, keys, groups, taps, mode;
  float dt_min, dt_max, eps;
  int row0, row1;  // of a launch that does not take all rows
  int per_block;   // rows a block of the convolution takes
  int calm;        // the kernel in front leaves cursors, rings and blocks alone, and started this one behind its own wait
  __device__ int inner() const { return heads * dim; }
  __device__ int bc() const { return groups * keys; }
  __device__ int conv() const { return inner() + 2 * bc(); }
};

__device__ __forceinline__ float step_size(const Mamba2& p, float raw, int head) {
  float v = fmaxf(softplus(raw + at<float>(p.dt_bias)[head]), p.dt_min);
  return p.dt_max > 0.f ? fminf(v, p.dt_max) : v;
}
