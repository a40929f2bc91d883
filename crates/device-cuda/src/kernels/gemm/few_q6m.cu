// Products of few rows with weights of codec q6m.
#include "gemm/gemm_few.h"

GEMM_FEW_ALL(q6m)
