// Products with and rows of a matrix in Q4_1.
#include "linear/kernels.cuh"

BLOCK_KERNELS(Q4_1)
