// Products with weights of codec nl on sm_80 and later.
#include "gemm/gemm_mma.h"

GEMM_MMA(nl, 32)
GEMM_MMA(nl, 64)
GEMM_MMA(nl, 128)
