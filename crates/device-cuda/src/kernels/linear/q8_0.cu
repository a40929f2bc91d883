// Products with and rows of a matrix in Q8_0.
#include "linear/kernels.cuh"

BLOCK_KERNELS(Q8_0)
