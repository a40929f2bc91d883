// Products of few rows with weights of codec q4.
#include "gemm/gemm_few.h"

GEMM_FEW_ALL(q4)
