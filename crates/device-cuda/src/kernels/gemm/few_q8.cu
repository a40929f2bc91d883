// Products of few rows with weights of codec q8.
#include "gemm/gemm_few.h"

GEMM_FEW_ALL(q8)
