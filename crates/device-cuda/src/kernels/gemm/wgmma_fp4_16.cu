// Products with weights of codec fp4_16 on sm_90a.
#include "gemm/gemm_wgmma.h"

GEMM_WGMMA(fp4_16, 32)
GEMM_WGMMA(fp4_16, 64)
GEMM_WGMMA(fp4_16, 96)
GEMM_WGMMA(fp4_16, 128)
GEMM_WGMMA(fp4_16, 160)
GEMM_WGMMA(fp4_16, 192)
GEMM_WGMMA(fp4_16, 256)
