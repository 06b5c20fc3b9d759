// The convolution of a Gated DeltaNet step in front of kernels that read checkpoints below float32.
#include "delta_convolve.cuh"

// delta_convolve_SPAN, and of rows of one token
extern "C" __global__ void __launch_bounds__(CONV_THREADS, 8) delta_convolve_one(PARAMS(Delta, p)) { delta::convolve_step<1, true>(p); }
extern "C" __global__ void __launch_bounds__(CONV_THREADS) delta_convolve_1(PARAMS(Delta, p)) { delta::convolve_step<1, false>(p); }
extern "C" __global__ void __launch_bounds__(CONV_THREADS, 3) delta_convolve_4(PARAMS(Delta, p)) { delta::convolve_step<4, false>(p); }
