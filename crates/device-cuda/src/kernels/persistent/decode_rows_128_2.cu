// The persistent decode kernel of several rows for heads of 128 columns, 2 query heads of a KV head (persistent/decode_rows.cuh).
#include "persistent/decode_rows.cuh"

PERSISTENT_DECODE_ROWS(128, 2)
