// Products with and rows of a matrix in Q6_K.
#include "linear/kernels.cuh"

BLOCK_KERNELS(Q6_K)
