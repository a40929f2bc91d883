// Products with weights of codec fp4_16 on sm_80 and later.
#include "gemm/gemm_mma.h"

GEMM_MMA(fp4_16, 32)
GEMM_MMA(fp4_16, 64)
GEMM_MMA(fp4_16, 128)
