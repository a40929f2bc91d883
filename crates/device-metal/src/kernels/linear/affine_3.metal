// All kernels that multiply with, or decode, affine weights of 3 bits.
#include "linear/affine.h"
#include "linear/kernels.h"

INSTANTIATE_LINEAR(affine_3, Affine<3>)
