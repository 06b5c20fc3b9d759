// The kernels of a Mamba-2 step that read fp8 checkpoints.
#include "mamba2_low.cuh"

MAMBA2_LOW_ALL(4, 3)
MAMBA2_LOW(dense, 80, 16, 2, 6, 3)
