// Products of few rows with weights of codec nl.
#include "gemm/gemm_few.h"

GEMM_FEW_ALL(nl)
