// The kernels of a Mamba-2 step: a convolution, then all but the norm.
#include "mamba2_step.cuh"

// mamba2_convolve_SPAN, and of rows of one token
extern "C" __global__ void __launch_bounds__(CONV_THREADS, 8) mamba2_convolve_one(PARAMS(Mamba2, p)) { mamba2::convolve_step<1, true>(p); }
extern "C" __global__ void __launch_bounds__(CONV_THREADS) mamba2_convolve_1(PARAMS(Mamba2, p)) { mamba2::convolve_step<1, false>(p); }
extern "C" __global__ void __launch_bounds__(CONV_THREADS, 3) mamba2_convolve_4(PARAMS(Mamba2, p)) { mamba2::convolve_step<4, false>(p); }

// mamba2_step_P_W_HEADS_WARPS_STAGES: P value rows a head, window up to W, heads and warps a block, tiles in flight a warp.
#define KERNEL(P, W, HPC, WARPS, STAGES, MINB)                                                                                       \
  extern "C" __global__ void __launch_bounds__(WARPS * 32, MINB) mamba2_step_##P##_##W##_##HPC##_##WARPS##_##STAGES(PARAMS(Mamba2, p)) { \
    mamba2::step<mamba2::Config<P, W, HPC, WARPS, STAGES>>(p);                                                                                 \
  }
KERNEL(80, 16, 1, 5, 1, 3)
KERNEL(80, 16, 4, 4, 2, 1)
KERNEL(80, 32, 1, 5, 1, 2)
KERNEL(80, 32, 4, 4, 2, 1)
KERNEL(64, 16, 1, 4, 1, 3)
KERNEL(64, 16, 4, 4, 2, 1)
KERNEL(64, 32, 1, 4, 1, 2)
KERNEL(64, 32, 4, 4, 2, 1)
