// All kernels that multiply with, or decode, affine weights of 2 bits.
#include "linear/affine.h"
#include "linear/kernels.h"

INSTANTIATE_LINEAR(affine_2, Affine<2>)
