// Attention of prefill rows; see attention_step.cu.
#include "attention.cuh"

ATTEND(rows_64_bf16_64, 64, false, 4, false, 3, 2)
ATTEND(rows_128_bf16_64, 128, false, 4, false, 2, 2)
ATTEND(rows_256_bf16_64, 256, false, 4, false, 2, 1)
ATTEND(rows_64_e4m3_64, 64, true, 4, false, 3, 2)
ATTEND(rows_128_e4m3_64, 128, true, 4, false, 3, 2)
ATTEND(rows_256_e4m3_64, 256, true, 4, false, 3, 1)
