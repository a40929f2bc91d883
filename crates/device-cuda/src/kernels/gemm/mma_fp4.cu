// Products with weights of codec fp4 on sm_80 and later.
#include "gemm/gemm_mma.h"

GEMM_MMA(fp4, 32)
GEMM_MMA(fp4, 64)
GEMM_MMA(fp4, 128)
