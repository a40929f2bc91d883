// Products with and rows of a matrix in AFFINE8.
#include "linear/kernels.cuh"

BLOCK_KERNELS(AFFINE8)
