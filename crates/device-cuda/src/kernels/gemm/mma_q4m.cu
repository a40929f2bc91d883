// Products with weights of codec q4m on sm_80 and later.
#include "gemm/gemm_mma.h"

GEMM_MMA(q4m, 32)
GEMM_MMA(q4m, 64)
GEMM_MMA(q4m, 128)
