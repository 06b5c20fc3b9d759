// The kernels of a Mamba-2 step that read nvfp4 checkpoints.
#include "mamba2_low.cuh"

MAMBA2_LOW_ALL(5, 4)
MAMBA2_LOW(dense, 80, 16, 5, 5, 4)
