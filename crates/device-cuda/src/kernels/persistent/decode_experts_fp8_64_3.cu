// The persistent decode kernel of mixtures for heads of 64 columns, 3 query heads of a KV head, over pages of FP8 (persistent/decode.cuh).
#include "persistent/decode.cuh"

PERSISTENT_DECODE_EXPERTS_FP8(64, 3)
