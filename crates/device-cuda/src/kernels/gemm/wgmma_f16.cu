// Products with weights of codec f16 on sm_90a.
#include "gemm/gemm_wgmma.h"

GEMM_WGMMA(f16, 32)
GEMM_WGMMA(f16, 64)
GEMM_WGMMA(f16, 96)
GEMM_WGMMA(f16, 128)
GEMM_WGMMA(f16, 160)
GEMM_WGMMA(f16, 192)
GEMM_WGMMA(f16, 256)
