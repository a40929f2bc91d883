// Products of few rows with weights of codec fp4.
#include "gemm/gemm_few.h"

GEMM_FEW_ALL(fp4)
