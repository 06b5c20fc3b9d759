// The kernels of a Gated DeltaNet step that read checkpoints below float32.
#include "delta_step.cuh"

// delta_step_T_W_HEADS_WARPS_STAGES_FORMAT: as in delta_step.cu; FORMAT is that of kernels.StateFormat.
#define KERNEL(T, W, HPC, WARPS, STAGES, MINB, FORMAT)                                                                                       \
  extern "C" __global__ void __launch_bounds__(WARPS * 32, MINB) delta_step_##T##_##W##_##HPC##_##WARPS##_##STAGES##_##FORMAT(PARAMS(Delta, p)) { \
    delta::step<delta::Config<T, W, HPC, WARPS, STAGES, false, FORMAT>>(p);                                                               \
  }
#define FORMATS(T, W, MINB)        \
  KERNEL(T, W, 2, 4, 2, MINB, 1) \
  KERNEL(T, W, 2, 4, 2, MINB, 2) \
  KERNEL(T, W, 2, 4, 4, MINB, 3) \
  KERNEL(T, W, 2, 4, 5, MINB, 4)
FORMATS(1, 16, 4)
FORMATS(4, 16, 4)
FORMATS(4, 32, 3)
FORMATS(8, 32, 2)
