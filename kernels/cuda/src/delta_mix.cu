// The step of a Gated DeltaNet layer in one kernel, for few rows.
#include "delta_step.cuh"

// delta_mix_T_W: up to T tokens a row, window up to W.
#define KERNEL(T, W, MINB) \
  extern "C" __global__ void __launch_bounds__(256, MINB) delta_mix_##T##_##W(PARAMS(Delta, p)) { delta::step<delta::Config<T, W, 1, 8, 1, true>>(p); }
KERNEL(1, 16, 2)
KERNEL(4, 16, 2)
KERNEL(4, 32, 2)
KERNEL(8, 32, 1)
