// Products with weights of codec q2m on sm_90a.
#include "gemm/gemm_wgmma.h"

GEMM_WGMMA(q2m, 32)
GEMM_WGMMA(q2m, 64)
GEMM_WGMMA(q2m, 96)
GEMM_WGMMA(q2m, 128)
GEMM_WGMMA(q2m, 160)
GEMM_WGMMA(q2m, 192)
GEMM_WGMMA(q2m, 256)
