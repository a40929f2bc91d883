// All kernels that multiply with, or decode, affine weights of 6 bits.
#include "linear/affine.h"
#include "linear/kernels.h"

INSTANTIATE_LINEAR(affine_6, Affine<6>)
