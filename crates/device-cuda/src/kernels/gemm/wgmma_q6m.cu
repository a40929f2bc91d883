// Products with weights of codec q6m on sm_90a.
#include "gemm/gemm_wgmma.h"

GEMM_WGMMA(q6m, 32)
GEMM_WGMMA(q6m, 64)
GEMM_WGMMA(q6m, 96)
GEMM_WGMMA(q6m, 128)
GEMM_WGMMA(q6m, 160)
GEMM_WGMMA(q6m, 192)
GEMM_WGMMA(q6m, 256)
