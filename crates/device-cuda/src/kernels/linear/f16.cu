// Products with and rows of a matrix in F16.
#include "linear/kernels.cuh"

FLOAT_KERNELS(F16)
