// The kernels of a Gated DeltaNet step that read fp8 checkpoints.
#include "delta_low.cuh"

DELTA_LOW_ALL(4, 3)
DELTA_LOW_WHOLE(8, 3)
