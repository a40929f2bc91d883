// Products with and rows of a matrix in AFFINE5.
#include "linear/kernels.cuh"

BLOCK_KERNELS(AFFINE5)
