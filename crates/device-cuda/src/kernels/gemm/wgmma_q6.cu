// Products with weights of codec q6 on sm_90a.
#include "gemm/gemm_wgmma.h"

GEMM_WGMMA(q6, 32)
GEMM_WGMMA(q6, 64)
GEMM_WGMMA(q6, 96)
GEMM_WGMMA(q6, 128)
GEMM_WGMMA(q6, 160)
GEMM_WGMMA(q6, 192)
GEMM_WGMMA(q6, 256)
