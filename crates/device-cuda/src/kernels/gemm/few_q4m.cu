// Products of few rows with weights of codec q4m.
#include "gemm/gemm_few.h"

GEMM_FEW_ALL(q4m)
