// All kernels that multiply with, or decode, affine weights of 8 bits.
#include "linear/affine.h"
#include "linear/kernels.h"

INSTANTIATE_LINEAR(affine_8, Affine<8>)
