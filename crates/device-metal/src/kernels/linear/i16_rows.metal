// All kernels that multiply with, or decode, rows of signed 16-bit integers.
#include "linear/affine.h"
#include "linear/kernels.h"

INSTANTIATE_LINEAR(i16_rows, IntegerRow<short>)
