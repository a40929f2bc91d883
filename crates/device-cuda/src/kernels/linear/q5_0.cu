// Products with and rows of a matrix in Q5_0.
#include "linear/kernels.cuh"

BLOCK_KERNELS(Q5_0)
