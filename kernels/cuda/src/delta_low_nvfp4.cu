// The kernels of a Gated DeltaNet step that read nvfp4 checkpoints.
#include "delta_low.cuh"

DELTA_LOW_ALL(5, 4)
