// All kernels that multiply with, or decode, affine weights of 5 bits.
#include "linear/affine.h"
#include "linear/kernels.h"

INSTANTIATE_LINEAR(affine_5, Affine<5>)
