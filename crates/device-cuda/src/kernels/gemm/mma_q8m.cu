// Products with weights of codec q8m on sm_80 and later.
#include "gemm/gemm_mma.h"

GEMM_MMA(q8m, 32)
GEMM_MMA(q8m, 64)
GEMM_MMA(q8m, 128)
