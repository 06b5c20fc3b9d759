// Attention of step rows with few packed rows: name_dim_pages_queries, queries being packed rows of a block. Tokens of a
// step, stages and blocks a multiprocessor are in the table of ../attention.go too.
#include "attention_few.cuh"

FEW(few_64_bf16_8, 64, false, 1, 32, 3, 2, 4, false, false)
FEW(few_64_bf16_16, 64, false, 2, 32, 3, 2, 4, false, false)
FEW(few_64_bf16_24, 64, false, 3, 32, 3, 2, 4, false, false)
FEW(few_128_bf16_8, 128, false, 1, 16, 3, 2, 4, false, false)
FEW(few_128_bf16_16, 128, false, 2, 16, 3, 2, 4, false, false)
FEW(few_128_bf16_24, 128, false, 3, 16, 3, 2, 4, false, false)
FEW(few_256_bf16_8, 256, false, 1, 16, 3, 1, 4, false, false)
FEW(few_128_bf16_16_own, 128, false, 2, 16, 3, 1, 8, false, true)
FEW(few_128_bf16_24_own, 128, false, 3, 16, 3, 2, 4, false, true)
