// Attention of step rows: name_dim_pages_queries, queries being packed rows of a block. Stages and blocks a
// multiprocessor are in the table of ../attention.go too.
#include "attention_step.cuh"

ATTEND(step_64_bf16_32, 64, false, 2, 4, 2, 4)
ATTEND(step_64_bf16_64, 64, false, 4, 3, 2, 4)
ATTEND(step_128_bf16_32, 128, false, 2, 2, 2, 4)
ATTEND(step_128_bf16_64, 128, false, 4, 3, 1, 4)
ATTEND(step_256_bf16_16, 256, false, 1, 3, 1, 8)
ATTEND(step_256_bf16_32, 256, false, 2, 2, 1, 8)
ATTEND(step_256_bf16_64, 256, false, 4, 2, 1, 8)
