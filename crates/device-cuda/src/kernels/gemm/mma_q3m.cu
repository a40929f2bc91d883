// Products with weights of codec q3m on sm_80 and later.
#include "gemm/gemm_mma.h"

GEMM_MMA(q3m, 32)
GEMM_MMA(q3m, 64)
GEMM_MMA(q3m, 128)
