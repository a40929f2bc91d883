// Products with and rows of a matrix in F32.
#include "linear/kernels.cuh"

FLOAT_KERNELS(F32)
