// The step of a Mamba-2 layer in one kernel.
#include "mamba2_step.cuh"

// mamba2_whole_P_T_W_HEADS_WARPS_STAGES: up to T tokens a row; the rest as in mamba2_step.cu. A thread convolves SPAN tokens.
#define KERNEL(P, T, W, HPC, WARPS, STAGES, SPAN, MINB)                                                            \
  extern "C" __global__ void __launch_bounds__(WARPS * 32, MINB) mamba2_whole_##P##_##T##_##W##_##HPC##_##WARPS##_##STAGES(PARAMS(Mamba2, p)) { \
    mamba2::step<mamba2::Config<P, W, HPC, WARPS, STAGES, T, SPAN>>(p);                                                    \
  }
#define KERNELS(T, W, SPAN, MINB)         \
  KERNEL(80, T, W, 1, 5, 1, SPAN, MINB)   \
  KERNEL(80, T, W, 2, 4, 2, SPAN, 2)      \
  KERNEL(80, T, W, 4, 4, 2, SPAN, 2)      \
  KERNEL(64, T, W, 1, 4, 1, SPAN, MINB)   \
  KERNEL(64, T, W, 2, 4, 2, SPAN, 2)      \
  KERNEL(64, T, W, 4, 4, 2, SPAN, 2)
KERNELS(1, 16, 1, 3)
KERNELS(4, 32, 2, 3)
KERNELS(8, 32, 4, 2)

