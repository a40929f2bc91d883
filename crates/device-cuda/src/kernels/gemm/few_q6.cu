// Products of few rows with weights of codec q6.
#include "gemm/gemm_few.h"

GEMM_FEW_ALL(q6)
