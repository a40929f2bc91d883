// Everything that multiplies with, or decodes, rows of signed 8-bit integers.
#include "linear/affine.h"
#include "linear/kernels.h"

INSTANTIATE_LINEAR(i8_rows, IntegerRow<char>)
