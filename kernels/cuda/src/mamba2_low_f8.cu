// The kernels of a Mamba-2 step that read fp8 checkpoints.
#include "mamba2_low.cuh"

MAMBA2_LOW_ALL(4, 3)
