// Products with weights of codec q5m on sm_90a.
#include "gemm/gemm_wgmma.h"

GEMM_WGMMA(q5m, 32)
GEMM_WGMMA(q5m, 64)
GEMM_WGMMA(q5m, 96)
GEMM_WGMMA(q5m, 128)
GEMM_WGMMA(q5m, 160)
GEMM_WGMMA(q5m, 192)
GEMM_WGMMA(q5m, 256)
