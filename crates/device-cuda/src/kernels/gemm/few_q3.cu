// Products of few rows with weights of codec q3.
#include "gemm/gemm_few.h"

GEMM_FEW_ALL(q3)
