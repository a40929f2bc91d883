// Products with weights of codec q6 on sm_80 and later.
#include "gemm/gemm_mma.h"

GEMM_MMA(q6, 32)
GEMM_MMA(q6, 64)
GEMM_MMA(q6, 128)
