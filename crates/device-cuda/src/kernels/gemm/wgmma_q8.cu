// Products with weights of codec q8 on sm_90a.
#include "gemm/gemm_wgmma.h"

GEMM_WGMMA(q8, 32)
GEMM_WGMMA(q8, 64)
GEMM_WGMMA(q8, 96)
GEMM_WGMMA(q8, 128)
GEMM_WGMMA(q8, 160)
GEMM_WGMMA(q8, 192)
GEMM_WGMMA(q8, 256)
