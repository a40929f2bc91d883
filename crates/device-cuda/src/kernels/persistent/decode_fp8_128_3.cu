// The persistent decode kernel for heads of 128 columns, 3 query heads of a KV head, over pages of FP8 (persistent/decode.cuh).
#include "persistent/decode.cuh"

PERSISTENT_DECODE_FP8(128, 3)
