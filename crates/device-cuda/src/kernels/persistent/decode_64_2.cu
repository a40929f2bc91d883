// The persistent decode kernel for heads of 64 columns, 2 query heads of a KV head (persistent/decode.cuh).
#include "persistent/decode.cuh"

PERSISTENT_DECODE(64, 2)
