// Everything that multiplies with, or decodes, affine weights of 2 bits.
#include "linear/affine.h"
#include "linear/kernels.h"

INSTANTIATE_LINEAR(affine_2, Affine<2>)
