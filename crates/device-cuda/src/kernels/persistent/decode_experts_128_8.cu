// The persistent decode kernel of mixtures for heads of 128 columns, 8 query heads of a KV head (persistent/decode.cuh).
#include "persistent/decode.cuh"

PERSISTENT_DECODE_EXPERTS(128, 8)
