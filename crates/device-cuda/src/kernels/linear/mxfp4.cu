// Products with and rows of a matrix in MXFP4.
#include "linear/kernels.cuh"

BLOCK_KERNELS(MXFP4)
