// Products of few rows with weights of codec q5m.
#include "gemm/gemm_few.h"

GEMM_FEW_ALL(q5m)
