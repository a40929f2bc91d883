// Products of few rows with weights of codec fp4_16.
#include "gemm/gemm_few.h"

GEMM_FEW_ALL(fp4_16)
