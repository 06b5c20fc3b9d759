// The step of a Gated DeltaNet layer in one kernel.
#include "delta_step.cuh"

// delta_whole_T_W_HEADS_WARPS_STAGES: up to T tokens a row, window up to W, value heads and warps a block, tiles in flight a warp.
// A thread convolves SPAN tokens.
#define KERNEL(T, W, HPC, WARPS, STAGES, SPAN, MINB)                                                                              \
  extern "C" __global__ void __launch_bounds__(WARPS * 32, MINB) delta_whole_##T##_##W##_##HPC##_##WARPS##_##STAGES(PARAMS(Delta, p)) { \
    delta::step<delta::Config<T, W, HPC, WARPS, STAGES, SPAN>>(p);                                                                         \
  }
KERNEL(1, 16, 1, 8, 1, 1, 2)
KERNEL(1, 16, 2, 4, 2, 1, 2)
KERNEL(4, 16, 1, 8, 1, 1, 2)
KERNEL(4, 16, 2, 4, 2, 2, 2)
KERNEL(4, 32, 1, 8, 1, 1, 2)
KERNEL(4, 32, 2, 4, 2, 2, 2)
KERNEL(8, 32, 1, 8, 1, 2, 1)
KERNEL(8, 32, 2, 4, 2, 4, 2)
