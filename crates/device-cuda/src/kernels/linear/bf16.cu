// Products with and rows of a matrix in BF16.
#include "linear/kernels.cuh"

FLOAT_KERNELS(BF16)
