// Products with weights of codec q5m on sm_80 and later.
#include "gemm/gemm_mma.h"

GEMM_MMA(q5m, 32)
GEMM_MMA(q5m, 64)
GEMM_MMA(q5m, 128)
