// Products with and rows of a matrix in Q5_K.
#include "linear/kernels.cuh"

BLOCK_KERNELS(Q5_K)
