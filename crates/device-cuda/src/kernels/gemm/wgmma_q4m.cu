// Products with weights of codec q4m on sm_90a.
#include "gemm/gemm_wgmma.h"

GEMM_WGMMA(q4m, 32)
GEMM_WGMMA(q4m, 64)
GEMM_WGMMA(q4m, 96)
GEMM_WGMMA(q4m, 128)
GEMM_WGMMA(q4m, 160)
GEMM_WGMMA(q4m, 192)
GEMM_WGMMA(q4m, 256)
