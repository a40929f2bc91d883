// The persistent decode kernel for heads of 128 columns, 8 query heads of a KV head (persistent/decode.cuh).
#include "persistent/decode.cuh"

PERSISTENT_DECODE(128, 8)
