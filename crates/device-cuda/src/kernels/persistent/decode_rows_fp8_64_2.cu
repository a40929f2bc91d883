// The persistent decode kernel of several rows for heads of 64 columns, 2 query heads of a KV head, over pages of FP8 (persistent/decode_rows.cuh).
#include "persistent/decode_rows.cuh"

PERSISTENT_DECODE_ROWS_FP8(64, 2)
