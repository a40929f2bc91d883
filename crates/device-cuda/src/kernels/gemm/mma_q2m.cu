// Products with weights of codec q2m on sm_80 and later.
#include "gemm/gemm_mma.h"

GEMM_MMA(q2m, 32)
GEMM_MMA(q2m, 64)
GEMM_MMA(q2m, 128)
