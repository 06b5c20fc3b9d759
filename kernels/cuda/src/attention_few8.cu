// Attention of step rows with few packed rows over e4m3 pages; see attention_few.cu.
#include "attention_few.cuh"

FEW(few_64_e4m3_8, 64, true, 1, 32, 3, 3, 4, false, false)
FEW(few_64_e4m3_16, 64, true, 2, 32, 3, 3, 4, false, false)
FEW(few_64_e4m3_24, 64, true, 3, 32, 3, 2, 4, false, false)
FEW(few_128_e4m3_8, 128, true, 1, 16, 3, 4, 4, false, false)
FEW(few_128_e4m3_16, 128, true, 2, 16, 3, 3, 4, false, false)
FEW(few_128_e4m3_24, 128, true, 3, 16, 5, 2, 4, false, false)
FEW(few_256_e4m3_8, 256, true, 1, 16, 3, 2, 4, false, false)
FEW(few_128_e4m3_pairs, 128, true, 1, 32, 3, 2, 4, true, false)
FEW(few_256_e4m3_pairs, 256, true, 1, 32, 3, 1, 4, true, false)
FEW(few_128_e4m3_16_own, 128, true, 2, 16, 3, 1, 8, false, true)
FEW(few_128_e4m3_24_own, 128, true, 3, 16, 5, 2, 4, false, true)
