// The persistent decode kernel of several rows for heads of 64 columns, 4 query heads of a KV head, over pages of Q8_0 (persistent/decode_rows.cuh).
#include "persistent/decode_rows.cuh"

PERSISTENT_DECODE_ROWS_Q8_0(64, 4)
