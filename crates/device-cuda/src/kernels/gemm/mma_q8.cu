// Products with weights of codec q8 on sm_80 and later.
#include "gemm/gemm_mma.h"

GEMM_MMA(q8, 32)
GEMM_MMA(q8, 64)
GEMM_MMA(q8, 128)
