// The step of a Mamba-2 layer in one kernel.
#include "mamba2_step.cuh"

// mamba2_whole_P_T_W_HEADS_WARPS_STAGES: up to T tokens a row; the rest as in mamba2_step.cu. A thread convolves SPAN tokens.
#define KERNEL(P, T, W, HPC, WARPS, STAGES, SPAN, MINB)                                                            \
  extern "C" __global__ void __launch_bounds__(WARPS * 32, MINB) mamba2_whole_##P##_##T##_##W##_##HPC##_##WARPS##_##STAGES(PARAMS(Mamba2, p)) { \
    mamba2::step<mamba2::Config<P, W, HPC, WARPS, STAGES, T, SPAN>>(p);                                                    \
  }
KERNEL(80, 1, 16, 2, 4, 2, 1, 2)
KERNEL(80, 1, 16, 4, 4, 2, 1, 2)
KERNEL(64, 1, 16, 2, 4, 2, 1, 2)
KERNEL(64, 1, 16, 4, 4, 2, 1, 2)

