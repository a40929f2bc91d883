// Products with weights of codec f16 on sm_80 and later.
#include "gemm/gemm_mma.h"

GEMM_MMA(f16, 32)
GEMM_MMA(f16, 64)
GEMM_MMA(f16, 128)
