// Products with and rows of a matrix in Q2_K.
#include "linear/kernels.cuh"

BLOCK_KERNELS(Q2_K)
