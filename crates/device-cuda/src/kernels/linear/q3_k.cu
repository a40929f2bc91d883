// Products with and rows of a matrix in Q3_K.
#include "linear/kernels.cuh"

BLOCK_KERNELS(Q3_K)
