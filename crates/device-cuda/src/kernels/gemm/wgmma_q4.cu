// Products with weights of codec q4 on sm_90a.
#include "gemm/gemm_wgmma.h"

GEMM_WGMMA(q4, 32)
GEMM_WGMMA(q4, 64)
GEMM_WGMMA(q4, 96)
GEMM_WGMMA(q4, 128)
GEMM_WGMMA(q4, 160)
GEMM_WGMMA(q4, 192)
GEMM_WGMMA(q4, 256)
