// The kernels of a Gated DeltaNet step that read float16 checkpoints.
#include "delta_low.cuh"

DELTA_LOW_ALL(2, 1)
DELTA_LOW_WHOLE(7, 1)
