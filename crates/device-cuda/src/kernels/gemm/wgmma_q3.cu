// Products with weights of codec q3 on sm_90a.
#include "gemm/gemm_wgmma.h"

GEMM_WGMMA(q3, 32)
GEMM_WGMMA(q3, 64)
GEMM_WGMMA(q3, 96)
GEMM_WGMMA(q3, 128)
GEMM_WGMMA(q3, 160)
GEMM_WGMMA(q3, 192)
GEMM_WGMMA(q3, 256)
