// The kernels of a Gated DeltaNet step that read bfloat16 checkpoints.
#include "delta_low.cuh"

DELTA_LOW_ALL(2, 2)
DELTA_LOW_WHOLE(7, 2)
