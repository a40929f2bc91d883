// Products with and rows of a matrix in F32.
#include "linear/kernels.cuh"
#include "linear/small.cuh"

FLOAT_KERNELS(F32)
KERNEL(256) small_row(const __grid_constant__ LinearArguments a) { write_small_row(a); }
KERNEL(128) small_rows(const __grid_constant__ LinearArguments a) { write_small_rows(a); }
