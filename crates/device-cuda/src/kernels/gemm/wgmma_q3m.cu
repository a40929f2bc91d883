// Products with weights of codec q3m on sm_90a.
#include "gemm/gemm_wgmma.h"

GEMM_WGMMA(q3m, 32)
GEMM_WGMMA(q3m, 64)
GEMM_WGMMA(q3m, 96)
GEMM_WGMMA(q3m, 128)
GEMM_WGMMA(q3m, 160)
GEMM_WGMMA(q3m, 192)
GEMM_WGMMA(q3m, 256)
