// The persistent decode kernel of several rows for heads of 128 columns, 3 query heads of a KV head, over pages of Q8_0 (persistent/decode_rows.cuh).
#include "persistent/decode_rows.cuh"

PERSISTENT_DECODE_ROWS_Q8_0(128, 3)
