// Products with weights of codec fp4 on sm_90a.
#include "gemm/gemm_wgmma.h"

GEMM_WGMMA(fp4, 32)
GEMM_WGMMA(fp4, 64)
GEMM_WGMMA(fp4, 96)
GEMM_WGMMA(fp4, 128)
GEMM_WGMMA(fp4, 160)
GEMM_WGMMA(fp4, 192)
GEMM_WGMMA(fp4, 256)
