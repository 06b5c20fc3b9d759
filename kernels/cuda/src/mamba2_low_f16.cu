// The kernels of a Mamba-2 step that read float16 checkpoints.
#include "mamba2_low.cuh"

MAMBA2_LOW_ALL(2, 1)
