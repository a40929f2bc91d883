// Products with and rows of a matrix in Q4_0.
#include "linear/kernels.cuh"

BLOCK_KERNELS(Q4_0)
