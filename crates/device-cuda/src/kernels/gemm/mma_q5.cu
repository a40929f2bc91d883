// Products with weights of codec q5 on sm_80 and later.
#include "gemm/gemm_mma.h"

GEMM_MMA(q5, 32)
GEMM_MMA(q5, 64)
GEMM_MMA(q5, 128)
