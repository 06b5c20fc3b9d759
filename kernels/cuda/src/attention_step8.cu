// Attention of step rows over e4m3 pages; see attention_step.cu.
#include "attention_step.cuh"

ATTEND(step_64_e4m3_32, 64, true, 2, 4, 2, 4)
ATTEND(step_64_e4m3_64, 64, true, 4, 3, 2, 4)
ATTEND(step_128_e4m3_32, 128, true, 2, 3, 2, 4)
ATTEND(step_128_e4m3_64, 128, true, 4, 2, 2, 4)
ATTEND(step_256_e4m3_16, 256, true, 1, 2, 2, 8)
ATTEND(step_256_e4m3_32, 256, true, 2, 2, 2, 8)
ATTEND(step_256_e4m3_64, 256, true, 4, 3, 1, 8)
