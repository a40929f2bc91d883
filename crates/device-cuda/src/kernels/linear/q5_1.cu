// Products with and rows of a matrix in Q5_1.
#include "linear/kernels.cuh"

BLOCK_KERNELS(Q5_1)
