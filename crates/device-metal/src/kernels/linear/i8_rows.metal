// All kernels that multiply with, or decode, rows of signed 8-bit integers.
#include "linear/affine.h"
#include "linear/kernels.h"

INSTANTIATE_LINEAR(i8_rows, IntegerRow<char>)
