// All kernels that multiply with, or decode, affine weights of 4 bits.
#include "linear/affine.h"
#include "linear/kernels.h"

INSTANTIATE_LINEAR(affine_4, Affine<4>)
