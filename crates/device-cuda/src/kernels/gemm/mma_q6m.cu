// Products with weights of codec q6m on sm_80 and later.
#include "gemm/gemm_mma.h"

GEMM_MMA(q6m, 32)
GEMM_MMA(q6m, 64)
GEMM_MMA(q6m, 128)
