// Attention of prefill rows: name_dim_pages.
#include "attention_rows.cuh"

ATTEND_ROWS(rows_64_bf16, 64, false)
ATTEND_ROWS(rows_128_bf16, 128, false)
ATTEND_ROWS(rows_256_bf16, 256, false)
ATTEND_ROWS(rows_64_e4m3, 64, true)
ATTEND_ROWS(rows_128_e4m3, 128, true)
ATTEND_ROWS(rows_256_e4m3, 256, true)
