// Products with and rows of a matrix in AFFINE4.
#include "linear/kernels.cuh"

BLOCK_KERNELS(AFFINE4)
