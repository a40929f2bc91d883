// Products with and rows of a matrix in IQ4_XS.
#include "linear/kernels.cuh"

BLOCK_KERNELS(IQ4_XS)
