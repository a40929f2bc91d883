// Products of few rows with weights of codec q2m.
#include "gemm/gemm_few.h"

GEMM_FEW_ALL(q2m)
