// Products with weights of codec q5 on sm_90a.
#include "gemm/gemm_wgmma.h"

GEMM_WGMMA(q5, 32)
GEMM_WGMMA(q5, 64)
GEMM_WGMMA(q5, 96)
GEMM_WGMMA(q5, 128)
GEMM_WGMMA(q5, 160)
GEMM_WGMMA(q5, 192)
GEMM_WGMMA(q5, 256)
