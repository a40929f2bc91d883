// Products with weights of codec nl on sm_90a.
#include "gemm/gemm_wgmma.h"

GEMM_WGMMA(nl, 32)
GEMM_WGMMA(nl, 64)
GEMM_WGMMA(nl, 96)
GEMM_WGMMA(nl, 128)
GEMM_WGMMA(nl, 160)
GEMM_WGMMA(nl, 192)
GEMM_WGMMA(nl, 256)
