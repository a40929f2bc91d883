// Products with and rows of a matrix in AFFINE2.
#include "linear/kernels.cuh"

BLOCK_KERNELS(AFFINE2)
