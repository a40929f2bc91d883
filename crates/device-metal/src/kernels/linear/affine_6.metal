// Everything that multiplies with, or decodes, affine weights of 6 bits.
#include "linear/affine.h"
#include "linear/kernels.h"

INSTANTIATE_LINEAR(affine_6, Affine<6>)
