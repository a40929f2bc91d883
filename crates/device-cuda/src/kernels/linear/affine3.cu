// Products with and rows of a matrix in AFFINE3.
#include "linear/kernels.cuh"

BLOCK_KERNELS(AFFINE3)
