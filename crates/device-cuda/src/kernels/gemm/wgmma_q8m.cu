// Products with weights of codec q8m on sm_90a.
#include "gemm/gemm_wgmma.h"

GEMM_WGMMA(q8m, 32)
GEMM_WGMMA(q8m, 64)
GEMM_WGMMA(q8m, 96)
GEMM_WGMMA(q8m, 128)
GEMM_WGMMA(q8m, 160)
GEMM_WGMMA(q8m, 192)
GEMM_WGMMA(q8m, 256)
