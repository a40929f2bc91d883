// Products with weights of codec q4 on sm_80 and later.
#include "gemm/gemm_mma.h"

GEMM_MMA(q4, 32)
GEMM_MMA(q4, 64)
GEMM_MMA(q4, 128)
