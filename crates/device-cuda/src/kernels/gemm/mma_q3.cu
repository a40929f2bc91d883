// Products with weights of codec q3 on sm_80 and later.
#include "gemm/gemm_mma.h"

GEMM_MMA(q3, 32)
GEMM_MMA(q3, 64)
GEMM_MMA(q3, 128)
