// The persistent decode kernel of mixtures for heads of 64 columns, 4 query heads of a KV head (persistent/decode.cuh).
#include "persistent/decode.cuh"

PERSISTENT_DECODE_EXPERTS(64, 4)
