// The kernels of a Gated DeltaNet step: a convolution, then the rest.
#include "delta_step.cuh"

// delta_convolve_SPAN
extern "C" __global__ void __launch_bounds__(CONV_THREADS) delta_convolve_1(PARAMS(Delta, p)) { delta::convolve_step<1>(p); }
extern "C" __global__ void __launch_bounds__(CONV_THREADS, 3) delta_convolve_4(PARAMS(Delta, p)) { delta::convolve_step<4>(p); }

// delta_step_T_W_HEADS_WARPS_STAGES: up to T tokens a row, window up to W, value heads and warps a block, tiles in flight a warp.
#define KERNEL(T, W, HPC, WARPS, STAGES, MINB)                                                                                     \
  extern "C" __global__ void __launch_bounds__(WARPS * 32, MINB) delta_step_##T##_##W##_##HPC##_##WARPS##_##STAGES(PARAMS(Delta, p)) { \
    delta::step<delta::Config<T, W, HPC, WARPS, STAGES>>(p);                                                                               \
  }
KERNEL(1, 16, 1, 8, 1, 1)
KERNEL(1, 16, 2, 4, 2, 1)
KERNEL(1, 16, 2, 4, 1, 4)
KERNEL(4, 16, 1, 8, 1, 1)
KERNEL(4, 16, 2, 4, 2, 1)
KERNEL(4, 16, 2, 4, 1, 4)
KERNEL(8, 16, 1, 8, 1, 1)
KERNEL(8, 16, 2, 4, 2, 1)
KERNEL(8, 16, 2, 4, 1, 3)
KERNEL(4, 32, 1, 8, 1, 1)
KERNEL(4, 32, 2, 4, 2, 1)
KERNEL(4, 32, 2, 4, 1, 3)
KERNEL(8, 32, 1, 8, 1, 1)
KERNEL(8, 32, 2, 4, 2, 1)
KERNEL(8, 32, 2, 4, 1, 3)
