// Products with and rows of a matrix in Q4_K.
#include "linear/kernels.cuh"

BLOCK_KERNELS(Q4_K)
