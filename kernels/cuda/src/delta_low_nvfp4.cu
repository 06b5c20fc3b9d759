// The kernels of a Gated DeltaNet step that read nvfp4 checkpoints.
#include "delta_low.cuh"

DELTA_LOW_ALL(5, 4)
DELTA_LOW(reads, READS, false, 1, 16, 2, 4, 9, 4)
DELTA_LOW(flushes, FLUSHES, false, 1, 16, 8, 2, 2, 4)
