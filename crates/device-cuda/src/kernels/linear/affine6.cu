// Products with and rows of a matrix in AFFINE6.
#include "linear/kernels.cuh"

BLOCK_KERNELS(AFFINE6)
