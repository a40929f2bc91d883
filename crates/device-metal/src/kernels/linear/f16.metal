// Everything that multiplies with, or decodes, weights of type F16.
#include "linear/f16.h"
#include "linear/kernels.h"

INSTANTIATE_LINEAR(f16, F16)
