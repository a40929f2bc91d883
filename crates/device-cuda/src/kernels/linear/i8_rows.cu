// Products with and rows of a matrix in I8_ROWS.
#include "linear/kernels.cuh"

BLOCK_KERNELS(I8_ROWS)
