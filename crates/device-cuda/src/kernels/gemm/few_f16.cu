// Products of few rows with weights of codec f16.
#include "gemm/gemm_few.h"

GEMM_FEW_ALL(f16)
