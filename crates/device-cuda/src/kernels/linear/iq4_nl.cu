// Products with and rows of a matrix in IQ4_NL.
#include "linear/kernels.cuh"

BLOCK_KERNELS(IQ4_NL)
