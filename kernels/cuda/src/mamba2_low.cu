// The kernels of a Mamba-2 step that read checkpoints below float32.
#include "mamba2_step.cuh"

// mamba2_step_P_W_HEADS_WARPS_STAGES_FORMAT: as in mamba2_step.cu; FORMAT is that of kernels.StateFormat.
#define KERNEL(P, W, HPC, WARPS, STAGES, MINB, FORMAT)                                                                                        \
  extern "C" __global__ void __launch_bounds__(WARPS * 32, MINB) mamba2_step_##P##_##W##_##HPC##_##WARPS##_##STAGES##_##FORMAT(PARAMS(Mamba2, p)) { \
    mamba2::step<mamba2::Config<P, W, HPC, WARPS, STAGES, FORMAT>>(p);                                                                     \
  }
#define FORMATS(P, W, MINB)        \
  KERNEL(P, W, 4, 4, 2, MINB, 1) \
  KERNEL(P, W, 4, 4, 2, MINB, 2) \
  KERNEL(P, W, 4, 4, 4, MINB, 3) \
  KERNEL(P, W, 4, 4, 5, MINB, 4)
FORMATS(80, 16, 4)
FORMATS(80, 32, 3)
FORMATS(64, 16, 4)
FORMATS(64, 32, 3)
